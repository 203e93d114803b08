package doctor

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/natslock/admin"
)

// repairMost is the maximum number of records that a single run removes, and repairWithin is
// how long that may take.
const (
	repairMost   = 10_000
	repairWithin = time.Minute
)

// repair removes the records that the server has kept past their TTL.
func (d *doctor) repair() {
	ctx, cancel := context.WithTimeout(context.Background(), repairWithin)
	defer cancel()
	d.removed(admin.New(d.s.Client).RemoveOverdue(ctx, d.Pattern, repairMost))
}

func (d *doctor) removed(removed, left int, err error) {
	switch {
	case err != nil && !errors.Is(err, context.DeadlineExceeded):
		d.fail("repair", fmt.Errorf("%s removed, %d left: %w", show.Count(removed, "overdue record"), left, err), "run it again once the cause is removed")
	case left > 0:
		d.add("repair", checkWarning, "run \"lockctl doctor --repair\" again", "%s removed, %d left", show.Count(removed, "overdue record"), left)
	default:
		d.ok("repair", "%s removed", show.Count(removed, "overdue record"))
	}
}

// expiry lists the records, and looks for those that the server should have removed or never
// will remove. In the same pass, it counts the renewals that the other records need, so that a
// busy server need not list the records twice.
func (d *doctor) expiry() {
	ctx, cancel := d.g.Bounded()
	defer cancel()
	r := &renewals{}
	if stream, err := d.s.JS.Stream(ctx, d.info.Config.Name); err == nil {
		r.at = stream.CachedInfo().TimeStamp
	}
	d.records(admin.New(d.s.Client).List(ctx, d.Pattern), r)
}

// records adds the rows for lock records and for their renewals.
func (d *doctor) records(locks iter.Seq2[admin.Info, error], r *renewals) {
	var overdue, lasting, stuck, mixed []string
	var last admin.Info // previous lock; the list is sorted by name
	n := 0
	for info, err := range locks {
		if err != nil {
			d.unseen("expiry", err, "the locks cannot be listed")
			return
		}
		n++
		if info.Name == last.Name && info.Kind != last.Kind && (len(mixed) == 0 || mixed[len(mixed)-1] != info.Name) {
			mixed = append(mixed, info.Name)
		}
		last = info
		for _, h := range show.Holdings(info) {
			if renewed(h.Holder) {
				r.count(h.TTL, h.Expires, func() string { return fmt.Sprintf("the %s of %s lock %s", h.Title, info.Kind, show.Plain(info.Name)) })
			}
			switch name := fmt.Sprintf("%s lock %s", info.Kind, show.Plain(info.Name)); {
			case h.Overdue:
				overdue = append(overdue, "the "+h.Title+" of "+name)
			case h.Expires.IsZero():
				lasting = append(lasting, "the "+h.Title+" of "+name)
			}
		}
		for _, w := range info.Queue {
			if !w.Overdue {
				r.count(w.TTL, w.Expires, func() string { return placeName(info, w) })
			}
			if w.Overdue {
				overdue = append(overdue, placeName(info, w))
			} else if w.Expires.IsZero() {
				stuck = append(stuck, placeName(info, w))
			}
		}
	}
	if len(mixed) > 0 {
		d.add("kinds", checkWarning, "give each lock its own name, and restart the clients that use the wrong kind",
			"%s used by locks of different kinds, which do not exclude each other: %s", show.Count(len(mixed), "name"), show.Plain(mixed[0]))
	}
	bad := false
	warn := func(records []string, repair, why string) {
		if len(records) > 0 {
			bad = true
			d.add("expiry", checkWarning, repair, "%s %s: %s", show.Count(len(records), "record"), why, records[0])
		}
	}
	warn(overdue, "no action needed: they block no client, and the next acquire of each lock replaces its record; \"lockctl doctor --repair\" removes them",
		"whose TTL has ended but that the server has not removed, because it forgot TTLs in a restart or is late")
	warn(lasting, "\"lockctl break NAME\" frees the lock; then find the program that writes records without a TTL; no client of this library does",
		"without a TTL, blocking other clients forever")
	warn(stuck, fmt.Sprintf("find the key that ends in the id with \"nats kv ls %s\" and delete it with \"nats kv del %s KEY\"; no client of this library writes records without a TTL", d.g.Bucket, d.g.Bucket),
		"without a TTL in queues, blocking the waiters behind them forever")
	if !bad {
		d.ok("expiry", "no record of %s outlives its TTL", show.Count(n, "lock"))
	}
	if r.at.IsZero() {
		d.add("renewals", checkUnknown, "", "the server's time is unknown")
		return
	}
	d.Renewals = r
	status, found, repair := r.judge()
	d.add("renewals", status, repair, "%s", found)
}

func placeName(info admin.Info, w admin.Waiter) string {
	return fmt.Sprintf("place %s of %s lock %s", show.Plain(w.ID), info.Kind, show.Plain(info.Name))
}
