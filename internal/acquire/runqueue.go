package acquire

import (
	"errors"

	"github.com/natslock/locks/internal/call"
	"github.com/natslock/locks/internal/claim"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
)

// This file has the events that the member which drives a run reports to the core: what it is
// about to write, and what has come of that.

// granted makes l the lease of the run, and admits its first member, or all that read. m
// has driven it. It returns false if nobody is left that the claim was for.
func (r *run) granted(m *member, l *session.Lease) bool {
	rs := m.runs
	rs.mu.Lock()
	defer rs.unlock()
	rs.setPlace(r, nil)
	r.lease = l
	now := rs.b.Instant()
	lease := core.Lease{Revision: l.Revision}
	lease.Until, r.MayIdle = l.Validity(now)
	if !r.Granted(&m.Member, lease, now) {
		return false
	}
	if r.line == nil && m.Linger > 0 {
		rs.keeps(r, m)
	}
	return true
}

// keeps gives a run that did not wait a line, so that it can linger. It cannot while other
// goroutines of the client wait. Under mu.
func (rs *runs) keeps(r *run, m *member) {
	if l := rs.line(m.a.Keys); len(l.Runs) == 0 {
		m.turnEnds = rs.b.Instant()
		l.head(r, m)
		r.Keep()
	}
}

// behind gets the lock for a run behind others of its client. Readers join the readers
// inside. Behind readers inside a run may try as a newcomer does, behind all others it has
// to queue.
func (m *member) behind(r *run) (res claim.Result, merged bool) {
	a, l := m.a, r.line
	defer a.WhileGranting()()
	if a.Reads() && !a.Req.Once {
		if err := m.InOrder(); err != nil {
			return claim.Result{Outcome: core.Ended, Err: err}, false
		}
	}
	if unsure, _ := m.merges(r, false); unsure {
		l.inform(a.Context(), true)
	}
	if _, merges := m.merges(r, true); merges {
		return res, true
	}
	l.mu.Lock()
	queues := r.Queues || l.Others.Writers(l.b.Instant())
	l.unlock()
	if queues && !a.Req.Once {
		return claim.Result{Outcome: core.Busy}, false
	}
	return a.AtOnce(), false
}

// merges has the run join the readers inside, if no writer has come since their join. unsure
// says that the client does not know that.
func (m *member) merges(r *run, joins bool) (unsure, merged bool) {
	l := r.line
	l.mu.Lock()
	defer l.unlock()
	now := l.b.Instant()
	l.updateLeases(now)
	h := r.Host(&m.a.Want, now)
	if h == nil {
		return false, false
	}
	if !h.Joinable(now) {
		return true, false
	}
	if joins {
		r.Merge(h)
	}
	return false, joins
}

// Queueing is of [call.Run].
func (m *member) Queueing() {
	r := m.run()
	l := r.line
	if l == nil {
		return
	}
	l.mu.Lock()
	shared := r.Several()
	l.unlock()
	if shared { // before the write: its answer proves the subscription
		l.subscribe() //safety:queue-subscribed
	}
	l.mu.Lock()
	defer l.unlock()
	r.Queueing(l.b.Instant())
}

// InOrder waits until the run before has a record. A place that is sent while the claim of
// an earlier run is not answered may get the earlier ticket.
func (m *member) InOrder() error {
	r := m.run()
	for r.line != nil {
		r.line.mu.Lock()
		first := r.Before()
		if first == nil {
			r.line.unlock()
			return nil
		}
		before := ownerOf(first)
		if before.waiting().settled == nil {
			before.settled = make(chan struct{})
		}
		settled := before.settled
		r.line.unlock()
		select {
		case <-settled:
		case <-m.a.Context().Done():
			return m.a.Over()
		}
	}
	return nil
}

// setPlace makes p the place of a run; nil: it has none any more. Under mu.
func (rs *runs) setPlace(r *run, p *session.Place) {
	switch {
	case r.line != nil: // which counts its members
	case r.place == nil && p != nil:
		rs.apart++
	case r.place != nil && p == nil:
		rs.apart--
	}
	r.place = p
}

// Queued makes p the place of the run; nil: it has none any more.
func (m *member) Queued(p *session.Place) {
	rs, r := m.runs, m.run()
	rs.mu.Lock()
	defer rs.unlock()
	rs.setPlace(r, p)
	switch {
	case r.line == nil && p == nil:
		r.Ticket = 0
	case r.line == nil:
		r.Ticket = p.Ticket()
		m.Member.Queued = true
		r.announce(m)
	case p == nil:
		r.PlaceLost()
	default:
		r.PlaceAt(p.Ticket(), rs.b.Instant())
	}
}

// Listed notes what a list of the queue contained, from a revision on, if that was not cut off. The list contains
// the place of the run, and the driver requested it at an instant.
func (m *member) Listed(queue []record.Entry, from uint64, cut bool, at clock.Instant) {
	r := m.run()
	if r.line == nil {
		return
	}
	if !cut { // else it lacks those behind the run
		r.line.noteList(queue, from, nil, at)
	}
	r.line.mu.Lock()
	defer r.line.unlock()
	r.PlaceListed()
}

// Answered notes the outcome of the last request of the driver. That
// another write is being replicated is neither an outage nor the end of one.
func (m *member) Answered(err error) {
	r := m.run()
	if r.line != nil {
		r.line.mu.Lock()
		defer r.line.unlock()
	}
	if w := r.waited(); (w.answered || w.trouble != nil) && errors.Is(err, kvstore.ErrInFlight) {
		return
	}
	w := r.waiting()
	w.answered, w.trouble = err == nil, err
}

// HolderSeen notes what the driver has seen of the lock.
func (m *member) HolderSeen(s call.LockState) {
	r := m.run()
	if r.line != nil {
		r.line.mu.Lock()
		defer r.line.unlock()
	}
	r.waiting().state = &s
}
