package acquire

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
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
	core.Member    // under runs.mu
	runs           *runs
	a              *acquisition // nil once it is served

	// The following fields are under runs.mu.
	wake     chan struct{} // its part in the run has changed; nil: it has not waited
	rests    bool          // its lease may rest after it
	turnEnds clock.Instant // of the run it had
	gate     string        // of the lock it has alone

	released sync.Once
	result   error // of the release
}

// run returns the run of the member; nil: it holds the lock, and has no line. Under mu, or on the
// goroutine that drives the run.
func (m *member) run() *run {
	if m.Run == nil {
		return nil
	}
	return ownerOf(m.Run)
}

// acquire waits for the lock.
func (m *member) acquire() error {
	for {
		m.runs.mu.Lock()
		r, inside, drives := m.run(), m.Inside, m.Run.Driver == &m.Member
		if m.wake == nil && !inside && !drives {
			m.wake = make(chan struct{}, 1)
		}
		m.runs.unlock()
		var res result
		switch {
		case inside:
			res = m.enter(r)
		case drives:
			if res = m.a.afterRecall(r); res.outcome != ended {
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
			m.a, m.Want, m.wake = nil, nil, nil
			r.fold(m)
			m.runs.unlock()
			return nil
		case lost:
			m.again()
		default:
			withdraw := m.giveUp()
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
	if a.drains() && !r.Drained {
		if res := a.drain(l); res.outcome != granted {
			return res
		}
		m.runs.mu.Lock()
		r.Drained = true
		m.runs.unlock()
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
			Lingers: m.Linger > 0, Least: a.req.MinHold, Warn: a.req.OnWarn, WarnBefore: a.req.WarnBefore,
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
	rs, l := m.runs, m.run().lease
	rs.mu.Lock()
	r := m.run()
	last, opens := m.Lost(rs.c.b.Instant())
	if r.line == nil {
		r.lease = nil
	}
	if opens {
		rs.line(m.a.keys).Reopen(&m.Member, rs.c.b.Instant())
	}
	rs.unlock()
	if last {
		l.Leave(record.StatusGone) // a broken record keeps others out until it is deleted
	}
}

// giveUp takes the member out of its run. When it was the last one, withdraw takes the
// record of the run along.
func (m *member) giveUp() (withdraw func()) {
	rs, a := m.runs, m.a
	rs.mu.Lock()
	defer rs.unlock()
	r := m.run()
	if r.line != nil {
		r.line.see(rs.c.b.Instant())
	}
	a.seen, a.outage = m.seen(), r.outage()
	if r.Leased() && !m.Inside { // of this client: the member waits behind its holder
		a.outage = nil
	}
	if r.Driver == &m.Member && a.bid != nil && a.bid.cur != nil {
		a.id = a.bid.cur.state.ID
	}
	left, drives := m.GiveUp(rs.c.b.Instant())
	switch {
	case left == core.Unused:
		return func() { a.unused(r.lease) }
	case left == core.Withdrawn:
		if r.line == nil {
			rs.setPlace(r, nil)
		}
		return a.withdraw
	case drives != nil:
		callOf(drives).a.takeOver(a) //safety:run-driven-on
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
		rs.mu.Lock()
		now := rs.c.b.Instant()
		r, goesOn := m.run(), false
		if r == nil {
			delete(rs.alone, m.gate)
		} else {
			if r.line != nil {
				r.line.see(now)
			}
			goesOn = m.Member.Leave(now)
		}
		rs.unlock()
		if !goesOn {
			m.result = m.Holder.Release(ctx)
			return
		}
		// First: the next holder may release at once, or end the lease by giving up.
		m.result = m.Holder.Leave(now) //safety:one-at-a-time
		rs.mu.Lock()
		r.line.see(now)
		goesOn = r.Next(now)
		rs.perform()
		dropped := r.released != nil // an idle lease that was given up at once
		rs.unlock()
		// The last reader; or those that waited have gone meanwhile, or the lease has ended. A caller
		// that is told that it has released the lock can rely on that.
		if !goesOn && !dropped {
			if err := r.lease.Release(ctx); m.result == nil {
				m.result = err
			}
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
	rs := m.runs
	rs.mu.Lock()
	defer rs.unlock()
	if m.Run == nil {
		delete(rs.alone, m.gate)
		return
	}
	m.Part(rs.c.b.Instant())
}

// seen returns what the driver of the run has seen, with the position of the member in the
// queue. Under mu.
func (m *member) seen() *shown {
	r, s := m.run(), new(shown)
	now := m.runs.c.b.Instant()
	i := max(slices.Index(r.Members, &m.Member), 0)
	if shown := r.waited().shown; shown != nil {
		*s = *shown
	}
	if r.line != nil && !m.Inside {
		if r.Leased() {
			return &shown{r.lease.Entry(), i + 1}
		}
		for _, x := range r.line.Runs {
			if x.Leased() && !x.Ended(now) && !(r.Reads() && x.Reads()) { // it has not read that
				s.holder = ownerOf(x).lease.Entry()
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
