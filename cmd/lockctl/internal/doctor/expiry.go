package doctor

import (
	"fmt"

	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/natslock"
)

// expiry searches for records that the server should have removed, or never will.
func (d *doctor) expiry() {
	ctx, cancel := d.g.Bounded()
	defer cancel()
	var overdue, lasting, stuck []string
	n := 0
	for info, err := range d.s.List(ctx, d.Pattern) {
		if err != nil {
			d.add("expiry", checkUnknown, "", "the locks cannot be listed: %v", d.why(err))
			return
		}
		n++
		for _, h := range show.Holdings(info) {
			switch name := fmt.Sprintf("%s lock %s", info.Kind, show.Plain(info.Name)); {
			case h.Overdue:
				overdue = append(overdue, "the "+h.Title+" of "+name)
			case h.Expires.IsZero():
				lasting = append(lasting, "the "+h.Title+" of "+name)
			}
		}
		for _, w := range info.Queue {
			if w.Overdue {
				overdue = append(overdue, placeName(info, w))
			} else if w.Expires.IsZero() {
				stuck = append(stuck, placeName(info, w))
			}
		}
	}
	bad := false
	warn := func(records []string, repair, why string) {
		if len(records) > 0 {
			bad = true
			d.add("expiry", checkWarning, repair, "%s %s: %s", show.Count(len(records), "record"), why, records[0])
		}
	}
	warn(overdue, "nothing to do: the next acquire of each lock replaces its record; \"lockctl break\" deletes that of a holder",
		"whose TTL has ended and that the server has not removed, because it forgot TTLs over a restart or is late")
	warn(lasting, "\"lockctl break NAME\" frees the lock; then find the program that writes records without a TTL, no client of this library does",
		"without a TTL, which keep others out for ever")
	warn(stuck, fmt.Sprintf("find the key that ends in the id with \"nats kv ls %s\" and delete it with \"nats kv del %s KEY\"; no client of this library writes records without a TTL", d.g.Bucket, d.g.Bucket),
		"without a TTL in queues, which keep those behind them waiting for ever")
	if !bad {
		d.ok("expiry", "no record of %s outlives its TTL", show.Count(n, "lock"))
	}
}

func placeName(info natslock.Info, w natslock.Waiter) string {
	return fmt.Sprintf("place %s of %s lock %s", show.Plain(w.ID), info.Kind, show.Plain(info.Name))
}
