package acquire

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
)

// Holding is what a caller holds: a lease of its own, or a part in one.
type Holding interface {
	Name() string
	ID() string
	Token() uint64
	Context() context.Context
	Status() (session.State, time.Duration, error)
	Left() time.Duration
	Extend(ctx context.Context, ttl time.Duration) error
	Release() error
	Abandon()
}

// member is one call of Acquire in its run, and what the call returns.
type member struct {
	*session.Holder // once it is served
	runs            *runs
	a               *acquisition // nil once it is served

	// The following fields are under runs.mu.
	run    *run          // nil: it holds the lock, and has no line
	wake   chan struct{} // its part in the run has changed; nil: it has not waited
	inside bool          // it is the holder, or is to be
	late   bool          // it passes other clients: it joined in the turn, or too late for the claim
	early  bool          // it was there before the run wrote a place
	queued bool          // published to the observers as such

	turnEnds clock.Instant // of the run it had

	released sync.Once
	result   error // of the release
}

// acquire waits for the lock.
func (m *member) acquire() error {
	for {
		m.runs.mu.Lock()
		r, inside, drives := m.run, m.inside, m.run.driver == m
		if m.wake == nil && !inside && !drives {
			m.wake = make(chan struct{}, 1)
		}
		m.runs.mu.Unlock()
		var res result
		switch {
		case inside:
			res = m.enter(r.lease, r.line != nil)
		case drives:
			if res = m.a.drive(r); res.outcome == granted {
				r.granted(m, m.a.hold(res.grant(m.a.bid.cur)))
				continue
			}
		default:
			select {
			case <-m.wake:
				continue
			case <-m.a.ctx.Done():
			case <-m.a.c.b.Life().Done():
			}
			res = result{outcome: ended, err: m.a.over()}
		}
		switch res.outcome {
		case granted:
			m.runs.mu.Lock()
			m.a, m.wake = nil, nil
			r.fold(m)
			m.runs.mu.Unlock()
			return nil
		case lost:
			m.again()
		default:
			withdraw := m.leave()
			err := m.a.failure(res)
			withdraw()
			return err
		}
	}
}

// enter makes the member the holder of its run's lease.
func (m *member) enter(l *session.Lease, listed bool) result {
	a := m.a
	for {
		if cause := a.over(); cause != nil && listed {
			return result{outcome: ended, err: cause}
		}
		h, err := l.Admit(session.Admission{Parent: a.parent, Detached: a.req.Detached, Meta: a.req.Meta, Waited: a.waited()})
		switch {
		case err != nil:
			return result{outcome: lost}
		case h == nil:
			_ = l.Renewed(a.ctx) // an error shows in the next try
			continue
		}
		if a.drains() {
			if res := a.drain(h); res.outcome != granted {
				l.Leave(record.StatusGone)
				return res
			}
		}
		m.Holder = h
		h.Announce(a.waited(), a.req.WarnBefore, a.req.OnWarn)
		return result{outcome: granted}
	}
}

// again has the member wait on when the lease has ended before it was served.
func (m *member) again() {
	rs, r := m.runs, m.run
	l := r.lease
	rs.mu.Lock()
	m.inside = false
	switch {
	case r.line == nil:
		r.lease, r.driver = nil, m
	case !r.over:
		r.members = slices.Insert(r.members, 0, m)
		r.end()
	case r.next != nil && !r.next.over && r.next.lease == nil: // ahead of those that waited behind it
		m.run, m.late, m.early = r.next, false, false
		m.run.members = slices.Insert(m.run.members, 0, m)
		m.run.resize()
	default:
		rs.line(m.a).open([]*member{m})
	}
	rs.mu.Unlock()
	l.Leave(record.StatusGone) // a broken record keeps others out until it is deleted
}

// leave takes the member out of its run. When it was the last one, withdraw takes the
// record of the run along.
func (m *member) leave() (withdraw func()) {
	rs, a := m.runs, m.a
	rs.mu.Lock()
	defer rs.mu.Unlock()
	r := m.run
	a.holder, a.ahead = m.seen()
	if r.driver == m && a.bid.cur != nil {
		a.id = a.bid.cur.id
	}
	if r.line == nil {
		return a.withdraw
	}
	r.members = slices.DeleteFunc(r.members, func(x *member) bool { return x == m })
	r.resize()
	switch {
	case m.inside: // and not served
		if next := r.follow(); next != nil {
			next.poke()
			break
		}
		return func() { r.lease.Leave(record.StatusGone) } //safety:run-unused-released
	case r.driver != m:
	case len(r.members) == 0:
		r.close()
		return a.withdraw //safety:run-withdrawn
	default:
		r.driver = r.members[0]
		r.driver.a.takeOver(a) //safety:run-driven-on
		r.driver.poke()
	}
	return func() {}
}

// poke wakes the member after a change of its part in the run. Under mu.
func (m *member) poke() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// Release ends the member's part in the lease. The next member is admitted, or the lease
// released: then see [session.Lease.Release]. Further calls wait for the first and
// return its result.
func (m *member) Release() error {
	m.released.Do(func() {
		rs := m.runs
		rs.mu.Lock()
		r := m.run
		goesOn := r != nil && r.goesOn()
		if r == nil {
			delete(rs.alone, m.Lease().Key)
		}
		rs.mu.Unlock()
		if !goesOn {
			m.result = m.Holder.Release()
			return
		}
		// First: the next holder may release at once, or end the lease by giving up.
		m.result = m.Holder.Leave() //safety:one-at-a-time
		rs.mu.Lock()
		next := r.follow()
		if next != nil {
			next.poke()
		}
		rs.mu.Unlock()
		if next == nil { // they have given up meanwhile, or the lease has ended
			r.lease.Leave(record.StatusGone)
		}
	})
	return m.result
}

// Abandon has the lease run out: the handle of its holder was dropped. The other members
// of the run wait on, in a new run.
func (m *member) Abandon() {
	m.released.Do(func() {
		m.Holder.Abandon()
		m.runs.mu.Lock()
		defer m.runs.mu.Unlock()
		switch r := m.run; {
		case r == nil:
			delete(m.runs.alone, m.Lease().Key)
		case r.line != nil:
			r.end()
		}
	})
}

// seen returns the holder that the driver of the run has seen, and the position of the
// member in the queue, from 1; 0: not known. Under mu.
func (m *member) seen() (holder record.Entry, position int) {
	r := m.run
	i := max(slices.Index(r.members, m), 0)
	if r.shown != nil {
		holder, position = r.shown.holder, r.shown.ahead
	}
	if r.line != nil {
		if r.lease != nil {
			return r.lease.Entry(), i + 1
		}
		for _, x := range r.line.all {
			if x.lease != nil && !x.lease.Ended() { // it has not read that
				holder = x.lease.Entry()
			}
		}
	}
	if position > 0 {
		position += i
		if holder.Live() && holder.Status == record.StatusHeld { // those behind it in its run
			position += holder.Goroutines() - 1
		}
	}
	return holder, position
}
