package fleet

import (
	"math"
	"slices"
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/record"
)

// recallWithin is how long a goroutine that asks once waits for the client of an idle lease.
const recallWithin = 250 * time.Millisecond

// recall is what a goroutine that asks once has to do with the client of a lease.
type recall struct {
	Again    bool   // the lock is to be read again: another one was quicker
	ID       string // of the lease
	Own      bool   // it is one of the same client, whose release is on its way
	Revision uint64 // of the record that asks; 0: there is none
	Key      string // of that record
	Idle     bool   // the lease was, when it asked, and nobody was queued
	At       clock.Instant
}

// recalls says whether the records say who may have idle leases: somebody asks for them.
func (s *Scope) recalls() bool { return s.Faults.Tries != 0 }

// readyIdle sees to the idle lease of the client before a goroutine asks once.
func (c *client) readyIdle(w *World, g *call) {
	r := c.Line.Spare()
	if r == nil || !r.Idle() {
		return
	}
	c.see(w)
	switch {
	case !r.Takes(&g.Want):
		r.Recall(w.Now)
	case !r.Informed(w.Now):
		c.lists(w, listing{Line: c.Line})
	}
	c.perform(w)
}

// recall has a goroutine that asks once, and has found the lock held, ask for it where it may be idle.
func (r *run) recall(w *World, holder record.Entry, queue []record.Entry) {
	c, apart := r.C, 0
	for _, e := range queue {
		if !holder.Live() || e.Client != holder.Client {
			apart++
		}
	}
	own := holder.Client == c.ID
	holds := own && slices.ContainsFunc(c.Runs, func(x *run) bool {
		return x.Lease != nil && x.Lease.Body.ID == holder.ID && x.Lease.State == core.StateHeld
	})
	idle := apart == 0 && slices.ContainsFunc(w.Clients, func(x *client) bool {
		s := x.Line.Spare()
		return s != nil && s.Idle() && ownerOf(s).Lease.Body.ID == holder.ID
	})
	if !core.RequestsRecall(holder, apart, own, holds) {
		r.refused(w, idle)
		return
	}
	k := r.Recall
	if k == nil || k.Revision == 0 {
		k = &recall{At: w.Now.Add(recallWithin), Idle: idle}
		if !own {
			id := w.free(c, "t")
			k.Key = placePrefix + id
			r.Recall, r.At = k, atRecall // it watches the lock
			k.Revision = w.write(stored{Key: k.Key, ID: id, Client: c.ID, Status: record.StatusTrying, TTL: time.Second}, 0, "", -1).Revision
		}
	}
	k.ID, k.Own, k.Again = holder.ID, own, false
	r.Recall, r.At = k, atRecall
}

// recalls goes on when the lock has changed, or the patience is over.
func (r *run) recalls(w *World) bool {
	k := r.Recall
	if k.Again {
		r.Recall = nil
		r.survey(w, w.Server.Seq)
		return true
	}
	late := w.Now >= k.At
	e := r.C.read(w, gateKey, w.Server.Seq)
	asked := k.Revision
	if k.Own {
		asked = math.MaxUint64
	}
	switch core.RecallFound(e, k.ID, asked, late) {
	case core.RecallGranted:
		r.survey(w, e.Revision)
	case core.RecallRefused:
		r.refused(w, k.Idle)
	default:
		return false
	}
	return true
}

// refused has a goroutine that asks once end without the lock. An idle lease does not keep it out.
func (r *run) refused(w *World, idle bool) {
	if idle && w.Scope.Prompt && !w.Failed {
		w.fail("an idle lease keeps out a goroutine that asks once")
	}
	r.ends(w)
}

// ends ends a call without the lock.
func (r *run) ends(w *World) {
	g := r.R.Driver.Want.Owner.(*call)
	r.withdraw(w)
	r.C.forget(g)
}

// unknock deletes the record that asks.
func (r *run) unknock(w *World) {
	if k := r.Recall; k != nil && k.Revision != 0 {
		w.discard(r.C, k.Key, k.Key[len(placePrefix):], k.Revision)
	}
	r.Recall = nil
}
