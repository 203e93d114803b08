package fleet

import (
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/record"
)

// travels says whether locks are handed over: their tokens count then.
func (s *Scope) travels() bool { return s.Faults.Hands != 0 }

// wanted has the lease renewed at once when those inside want another TTL.
func (k *kept) wanted(w *World) {
	var longest clock.Terms
	for _, g := range w.clientOf(k.Body.ID).Calls {
		if g.Entered && g.Lease == k {
			longest = g.Wish.Longer(longest, k.Granted)
		}
	}
	if longest.TTL != 0 && k.State == core.StateHeld {
		k.WantTerms(longest, w.Now)
	}
}

// extends has a holder ask for another TTL, or for the usual one again.
func (g *call) extends(w *World) {
	g.Wish.Terms = clock.Terms{TTL: pick(g.Wish.Terms.TTL == w.Scope.Extend, w.Scope.TTL, w.Scope.Extend), Margin: w.Scope.Margin}
	g.Lease.wanted(w)
}

// rest is what is left of the minimum hold of who is inside.
func (k *kept) rest(w *World) (left time.Duration) {
	for _, g := range w.clientOf(k.Body.ID).Calls {
		if g.Lease == k {
			left = max(left, g.Wish.Cooldown(w.Now, 0))
		}
	}
	return left
}

// rests has the record of a lease that is released keep others out for the rest of a minimum hold.
func (k *kept) rests(wish core.Wish) {
	if k.Removal != nil {
		k.Removal.Wish = wish
	}
}

// hands says whether a holder can hand the lock over.
func (g *call) hands(w *World) bool {
	return w.Scope.Kind != record.Semaphore && g.Want.Mode != record.Shared && !g.Holds && g.Lease.holds(w.Now)
}

// handsOff has a holder hand the lock over: it has left when the record says so.
func (g *call) handsOff(w *World) {
	c, l := g.C, g.Lease
	c.see(w)
	g.M.Part(w.Now)
	c.forget(g)
	l.ends(w, core.EndHandedOff, record.StatusGone)
	c.perform(w)
}

// adopts has a goroutine adopt a lock by its handle, which is text, and proves nothing.
func (c *client) adopts(w *World, s stored) {
	e := s.entry()
	g := &call{C: c, Want: core.Want{TTL: w.Scope.TTL, Once: true}}
	g.Want.Owner, g.M.Want = g, &g.Want
	c.Calls = append(c.Calls, g)
	r := c.alone(g)
	r.R.Drained = true // by who has handed it over
	r.Adopts = &core.Adopting{ID: e.ID, Token: e.TokenOrTicket()}
}

// adopts reads the record, and claims it at its revision if it was handed over.
func (r *run) adopts(w *World) bool {
	a := r.Adopts
	asOf := uint64(0)
	if a.Confirmed {
		asOf = w.Server.Seq
	}
	e := r.C.read(w, gateKey, asOf)
	found, again := a.Found(e)
	if found == core.Adoptable && r.overdue(w, e) {
		found, again = a.Expired()
	}
	switch {
	case found == core.Adoptable:
		r.Bid.Token, r.Bid.B.Adopts = a.Token, true
		r.claim(w, byAdopt, 0, e.Revision)
	case !again:
		r.ends(w)
	}
	return true
}
