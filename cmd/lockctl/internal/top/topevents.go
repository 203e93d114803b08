package top

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/natslock/admin"
)

// placeStays is how long a place may be in the bucket after its grant. One that stays
// longer is shown: it may belong to another waiter of the process, see [places.served].
const placeStays = time.Second

// places are the places in queues that grants have taken, by the revision of the grant. A
// client deletes its place after the grant: a read between the two still finds it.
type places map[uint64]place

type place struct {
	id    string
	taken time.Time // by this machine's clock
}

// forget drops the places that were taken long before now.
func (p places) forget(now time.Time) {
	maps.DeleteFunc(p, func(_ uint64, taken place) bool { return now.Sub(taken.taken) > placeStays })
}

// ids returns the set of the places' ids.
func (p places) ids() map[string]bool {
	ids := make(map[string]bool, len(p))
	for _, taken := range p {
		ids[taken.id] = true
	}
	return ids
}

// applied returns the state of a lock after an event. An event that a read has seen
// already changes nothing. Where an event leaves a doubt the state stays as it was: a
// read follows each event but renewals. The slices of info are never changed.
func (p places) applied(info admin.Info, ev admin.Event) admin.Info {
	if ev.Holder == nil { // an end whose record was never seen
		info.Queue = offQueue(info.Queue, ev.ID)
		return without(info, ev.ID)
	}
	h := *ev.Holder
	switch ev.Type {
	case admin.EventQueued:
		return queued(info, ev)
	case admin.EventGaveUp:
		info.Queue = offQueue(info.Queue, h.ID)
	case admin.EventGranted:
		info.Queue = p.served(info.Queue, ev)
		return granted(info, ev)
	case admin.EventRenewed, admin.EventBroken:
		if !h.Expires.IsZero() { // else the record is gone
			return replaced(info, h)
		}
	case admin.EventReleased:
		return without(info, h.ID)
	case admin.EventExpired:
		// The lease is over by this machine's clock. Only the server knows whether it
		// was renewed, or is overdue: until then the lease is shown as over.
	}
	return info
}

// queued adds a waiter, in the order of the tickets.
func queued(info admin.Info, ev admin.Event) admin.Info {
	h := ev.Holder
	if slices.ContainsFunc(info.Queue, func(w admin.Waiter) bool { return w.ID == h.ID }) {
		return info
	}
	w := admin.Waiter{
		Ticket: ev.Token, Goroutines: h.Waiting + 1, ID: h.ID, Owner: h.Owner, Host: h.Host, PID: h.PID,
		Since: h.Since, Mode: ev.Mode, Of: h.Of,
	}
	at, _ := slices.BinarySearchFunc(info.Queue, w, func(a, b admin.Waiter) int { return cmp.Compare(a.Ticket, b.Ticket) })
	info.Queue = slices.Insert(slices.Clone(info.Queue), at, w)
	return info
}

// offQueue removes a waiter.
func offQueue(queue []admin.Waiter, id string) []admin.Waiter {
	return slices.DeleteFunc(slices.Clone(queue), func(w admin.Waiter) bool { return w.ID == id })
}

// served removes the waiter that an event grants the lock. A holder and its place in the
// queue have different ids: the process and the mode have to do, and the first of several.
// A grant that is applied again takes the same place.
func (p places) served(queue []admin.Waiter, ev admin.Event) []admin.Waiter {
	h := ev.Holder
	if taken, again := p[h.Revision]; again {
		return offQueue(queue, taken.id)
	}
	i := slices.IndexFunc(queue, func(w admin.Waiter) bool {
		return w.Owner == h.Owner && w.Host == h.Host && w.PID == h.PID && w.Mode == ev.Mode && w.Ticket < h.Revision
	})
	if i < 0 {
		return queue
	}
	p[h.Revision] = place{queue[i].ID, time.Now()}
	return slices.Delete(slices.Clone(queue), i, i+1)
}

// granted adds a holder. A holder of the same place with a newer record stays.
func granted(info admin.Info, ev admin.Event) admin.Info {
	h := *ev.Holder
	same := func(o admin.Holder) bool { return o.ID == h.ID }
	switch {
	case info.Kind == admin.KindSemaphore:
		same = func(o admin.Holder) bool { return o.Slot == h.Slot }
		info.Permits = put(info.Permits, h, same)
		slices.SortFunc(info.Permits, func(a, b admin.Holder) int { return cmp.Compare(a.Slot, b.Slot) })
	case ev.Mode == admin.Shared:
		info.Readers = put(info.Readers, h, same)
		show.InOrder(info.Readers)
	case info.Holder == nil || info.Holder.Revision < h.Revision:
		info.Holder = &h
	}
	return info
}

// put returns a new slice with h in the place of the holder that is the same, unless that
// has a newer record.
func put(all []admin.Holder, h admin.Holder, same func(admin.Holder) bool) []admin.Holder {
	all = slices.Clone(all)
	switch i := slices.IndexFunc(all, same); {
	case i < 0:
		return append(all, h)
	case all[i].Revision < h.Revision:
		all[i] = h
	}
	return all
}

// holds says whether the claim with this id is among the holders.
func holds(info admin.Info, id string) bool {
	return slices.ContainsFunc(show.Holdings(info), func(h show.Holding) bool { return h.ID == id })
}

// replaced updates the record of a holder that is known.
func replaced(info admin.Info, h admin.Holder) admin.Info {
	same := func(o admin.Holder) bool { return o.ID == h.ID }
	switch {
	case info.Holder != nil && same(*info.Holder):
		if info.Holder.Revision < h.Revision {
			info.Holder = &h
		}
	case slices.ContainsFunc(info.Readers, same):
		info.Readers = put(info.Readers, h, same)
	case slices.ContainsFunc(info.Permits, same):
		info.Permits = put(info.Permits, h, same)
	}
	return info
}

// without removes the holder with this id.
func without(info admin.Info, id string) admin.Info {
	gone := func(h admin.Holder) bool { return h.ID == id && id != "" }
	if info.Holder != nil && gone(*info.Holder) {
		info.Holder = nil
	}
	info.Readers = slices.DeleteFunc(slices.Clone(info.Readers), gone)
	info.Permits = slices.DeleteFunc(slices.Clone(info.Permits), gone)
	return info
}
