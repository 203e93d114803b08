package acquire

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
)

// Holding is what a caller holds: a part in a lease.
type Holding interface {
	Name() string
	ID() string
	Token() uint64
	Context() context.Context
	Status() (session.State, time.Duration, error)
	Left() time.Duration
	Extend(ctx context.Context, ttl time.Duration) error
	SetMeta(ctx context.Context, meta map[string]string) error
	Contended() <-chan struct{}
	HandOff(ctx context.Context) (session.Handed, error)
	Release(ctx context.Context) error
	Retire() error
	Abandon()
}

// member is one call of Acquire in its run, and what the call returns.
type member struct {
	session.Holder // once it is served
	runs           *runs
	a              *acquisition // nil once it is served

	// The following fields are under runs.mu.
	run    *run          // nil: it holds the lock, and has no line
	wake   chan struct{} // its part in the run has changed; nil: it has not waited
	inside bool          // it is the holder, or is to be
	late   bool          // it passes other clients: it joined in the turn, or too late for the claim
	early  bool          // it was there before the run wrote a place
	queued bool          // published to the observers as such
	rests  bool          // its lease may rest after it

	linger time.Duration // as it asked

	turnEnds clock.Instant // of the run it had
	gate     string        // of the lock it has alone

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
			res = m.enter(r)
		case drives:
			if res = r.afterRecall(m.a); res.outcome != ended {
				res = m.a.drive(r)
			}
			switch res.outcome {
			case granted:
				if l := m.a.hold(res.grant(m.a.bid.cur)); !r.granted(m, l) {
					l.Leave(record.StatusGone) //safety:claim-unwanted
				}
				continue
			case merged:
				continue
			}
		default:
			select {
			case <-m.wake:
				continue
			case <-m.a.ctx.Done():
			case <-m.a.c.b.Granting().Done():
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

// enter makes the member a holder of its run's lease. The first member of a run that
// writes drains the readers. Those after it enter behind the same gate, which has admitted
// no reader since: Admit sees to it that it stands.
func (m *member) enter(r *run) result {
	a, l := m.a, r.lease
	if a.drains() && !r.drained {
		if res := a.drain(l); res.outcome != granted {
			return res
		}
		m.runs.mu.Lock()
		r.drained = true
		m.runs.mu.Unlock()
	}
	for {
		// Also a claim whose answer comes now, and a lease that another member leaves.
		if err := a.unfit(); err != nil { //safety:unfit-grants-none
			return result{outcome: ended, err: err}
		}
		if cause := a.over(); cause != nil && (r.line != nil || !a.req.Once) {
			return result{outcome: ended, err: cause}
		}
		admitted, err := l.Admit(&m.Holder, session.Admission{
			Parent: a.parent, Detached: a.req.Detached, Meta: a.req.Meta, Begun: a.begun, Queued: m.wake != nil,
			Lingers: m.linger > 0, Least: a.req.MinHold, Warn: a.req.OnWarn, WarnBefore: a.req.WarnBefore,
		})
		switch {
		case err != nil:
			return result{outcome: lost}
		case !admitted:
			_ = l.Renewed(a.ctx) // an error shows in the next try
			continue
		}
		return result{outcome: granted}
	}
}

// again has the member wait on when the lease has ended before it was served.
func (m *member) again() {
	rs, r := m.runs, m.run
	l := r.lease
	rs.mu.Lock()
	m.inside = false
	r.inside--
	last := r.inside == 0 //safety:last-again
	switch {
	case r.line == nil:
		r.lease, r.driver = nil, m
	case !r.over:
		r.members = slices.Insert(r.members, 0, m)
		r.end()
	// Ahead of those that waited behind it. A one-shot acquire does not wait with others.
	case r.next != nil && !r.next.over && r.next.lease == nil && !m.a.req.Once && r.next.takes(m.a):
		m.run, m.late, m.early = r.next, false, false
		m.run.members = slices.Insert(m.run.members, 0, m)
		m.run.resize()
		if m.run.place != nil {
			m.run.announce(m)
		}
	default:
		r.next = rs.line(m.a.keys).open([]*member{m}) // readers that were to enter beside it follow
	}
	rs.mu.Unlock()
	if last {
		l.Leave(record.StatusGone) // a broken record keeps others out until it is deleted
	}
}

// leave takes the member out of its run. When it was the last one, withdraw takes the
// record of the run along.
func (m *member) leave() (withdraw func()) {
	rs, a := m.runs, m.a
	rs.mu.Lock()
	defer rs.mu.Unlock()
	r := m.run
	a.seen, a.outage = m.seen(), r.outage()
	if r.lease != nil && !m.inside { // of this client: the member waits behind its holder
		a.outage = nil
	}
	if r.driver == m && a.bid != nil && a.bid.cur != nil {
		a.id = a.bid.cur.id
	}
	if m.inside { // and not served
		if r.follow(rs.c.b.Instant()) {
			return func() {}
		}
		return func() { a.unused(r.lease) } //safety:run-unused-released
	}
	if r.line == nil {
		rs.setPlace(r, nil)
		return a.withdraw
	}
	r.members = slices.DeleteFunc(r.members, func(x *member) bool { return x == m })
	r.resize()
	switch {
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

// unused releases a lease that has admitted nobody. A writer returns when its gate is gone:
// it stalls no reader that comes then. A one-shot writer, which has time, waits longer for that.
func (a *acquisition) unused(gate *session.Lease) {
	gone := gate.Leave(record.StatusGone)
	if a.req.Once { //safety:refused-gate-gone
		a.deleted(gone, bucket.AnswerTimeout)
	} else {
		a.leaves(gone) //safety:drained-gate-gone
	}
}

// poke wakes the member after a change of its part in the run. Under mu.
func (m *member) poke() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// Release ends the member's part in the lease. The next member is admitted, the other
// readers go on, or the lease is released: then see [session.Lease.Release]. Further calls
// wait for the first and return its result.
func (m *member) Release(ctx context.Context) error {
	m.released.Do(func() {
		rs := m.runs
		now := rs.c.b.Instant()
		rs.mu.Lock()
		r := m.run
		if r == nil {
			delete(rs.alone, m.gate)
		} else {
			r.rest.linger = m.linger
			m.unhint()
		}
		goesOn := r != nil && r.goesOn(now)
		rs.mu.Unlock()
		if !goesOn {
			m.result = m.Holder.Release(ctx)
			return
		}
		// First: the next holder may release at once, or end the lease by giving up.
		m.result = m.Holder.Leave(now) //safety:one-at-a-time
		rs.mu.Lock()
		goesOn = r.follow(now)
		rs.mu.Unlock()
		switch {
		case goesOn:
		case r.reads(): // the last one
			if err := r.lease.Release(ctx); m.result == nil {
				m.result = err
			}
		default: // they have given up meanwhile, or the lease has ended
			r.lease.Leave(record.StatusGone)
		}
	})
	return m.result
}

// Retire ends the member's part in a lease that is not renewed, and leaves the record: see
// [session.Lease.Retire]. It is for a lease that has no other member.
func (m *member) Retire() error {
	m.released.Do(func() {
		m.result = m.Holder.Retire()
		m.part()
	})
	return m.result
}

// Abandon has the lease run out: the handle of a holder was dropped. The members of the
// run that wait do so in a new run, and nobody joins those that read beside it.
func (m *member) Abandon() {
	m.released.Do(func() {
		m.Holder.Abandon()
		m.part()
	})
}

// part ends the run of a lease that nobody else is to get.
func (m *member) part() {
	m.runs.mu.Lock()
	defer m.runs.mu.Unlock()
	switch r := m.run; {
	case r == nil:
		delete(m.runs.alone, m.gate)
	case r.line != nil:
		m.unhint()
		r.end()
	}
}

// seen returns what the driver of the run has seen, with the position of the member in the
// queue. Under mu.
func (m *member) seen() *shown {
	rs, r, s := m.runs, m.run, new(shown)
	i := max(slices.Index(r.members, m), 0)
	if r.shown != nil {
		*s = *r.shown
	}
	if r.line != nil && !m.inside {
		if r.lease != nil {
			return &shown{r.lease.Entry(), i + 1}
		}
		for _, x := range r.line.all {
			if x.lease != nil && !x.lease.Ended(rs.c.b.Instant()) && !(r.reads() && x.reads()) { // it has not read that
				s.holder = x.lease.Entry()
			}
		}
	}
	if s.ahead > 0 {
		s.ahead += i
		if s.holder.Live() && s.holder.Status == record.StatusHeld { // those behind it in its run
			s.ahead += s.holder.Goroutines() - 1
		}
	}
	return s
}
