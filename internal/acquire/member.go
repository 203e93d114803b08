package acquire

import (
	"context"
	"slices"
	"time"

	"github.com/natslock/locks/internal/call"
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

// again has the member wait on when the lease has ended before it was served.
func (m *member) again() {
	rs, l := m.runs, m.run().lease
	rs.mu.Lock()
	r := m.run()
	last, opens := m.Lost(rs.b.Instant())
	if r.line == nil {
		r.lease = nil
	}
	if opens {
		rs.line(m.a.Keys).Reopen(&m.Member, rs.b.Instant())
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
		r.line.updateLeases(rs.b.Instant())
	}
	outage := r.outage()
	if r.Leased() && !m.Inside { // of this client: the member waits behind its holder
		outage = nil
	}
	a.GivesUp(m.seen(), outage, r.Driver == &m.Member)
	left, drives := m.GiveUp(rs.b.Instant())
	switch {
	case left == core.Unused:
		return func() { a.Unused(r.lease) }
	case left == core.Withdrawn:
		if r.line == nil {
			rs.setPlace(r, nil)
		}
		return a.Withdraw
	case drives != nil:
		memberOf(drives).a.TakeOver(a) //safety:run-driven-on
	}
	return func() {}
}

// Release ends the member's part in the lease. The next member is admitted, the other
// readers go on, or the lease is released: then see [session.Lease.Release]. Further calls
// wait for the first and return its result.
func (m *member) Release(ctx context.Context) error {
	m.released.Do(func() {
		rs := m.runs
		rs.mu.Lock()
		now := rs.b.Instant()
		r, left := m.run(), core.Unused
		if r == nil {
			delete(rs.alone, m.gate)
		} else {
			if r.line != nil {
				r.line.updateLeases(now)
			}
			left = m.Member.Leave(now)
		}
		rs.unlock()
		if left == core.Unused {
			m.result = m.Holder.Release(ctx)
			return
		}
		// First: the next holder may release at once, or end the lease by giving up.
		m.result = m.Holder.Leave(now) //safety:one-at-a-time
		rs.mu.Lock()
		r.line.updateLeases(now)
		left = r.Next(now)
		rs.unlock()
		if left == core.Unused { // the caller learns whether the lock was released, as with Holder.Release above
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
	m.Part(rs.b.Instant())
}

// seen returns what the driver of the run has seen, with the position of the member in the
// queue. Under mu.
func (m *member) seen() *call.LockState {
	r, s := m.run(), new(call.LockState)
	now := m.runs.b.Instant()
	i := max(slices.Index(r.Members, &m.Member), 0)
	if known := r.waited().state; known != nil {
		*s = *known
	}
	if r.line != nil && !m.Inside {
		if r.Leased() {
			return &call.LockState{Holder: r.lease.Entry(), Ahead: i + 1}
		}
		for _, x := range r.line.Runs {
			if x.Leased() && !x.Ended(now) && !(r.Reads() && x.Reads()) { // the driver has not read this lease
				s.Holder = ownerOf(x).lease.Entry()
			}
		}
	}
	if s.Ahead > 0 {
		s.Ahead += i
		if s.Holder.Live() && s.Holder.Status == record.StatusHeld { // those behind it in its run
			s.Ahead += s.Holder.Goroutines() - 1
		}
	}
	return s
}

// Contended returns a channel that is closed when a goroutine or another client waits for
// what the member holds. The first call has the client subscribe to the queue and list it,
// in the background. The subscription ends with the lease.
func (m *member) Contended() <-chan struct{} {
	rs := m.runs
	rs.mu.Lock()
	defer rs.unlock()
	hint, first := m.Hint()
	now := rs.b.Instant()
	if !first || m.Holder.Lease().Ended(now) {
		return hint
	}
	r := m.lined()
	switch {
	case r == nil: // it has left
	case r.line == nil || r.Contended(now): // or other goroutines wait
		close(hint)
	default:
		m.WantHint(hint)
		r.Listen()
		rs.perform()
		if !r.Over && !r.Informed(now) {
			rs.s.Background(func(ctx context.Context) { r.line.inform(ctx, r.Reads()) })
		}
	}
	return hint
}

// lined returns the run of a holder. It has a line, unless it is that of a one-shot acquire
// and other goroutines wait. lined returns nil if the holder has left. Under mu.
func (m *member) lined() *run {
	rs := m.runs
	encoded, err := record.EncodeName(m.Name())
	if err != nil {
		return nil
	}
	keys := record.KeysOf(m.Holder.Lease().Kind, encoded)
	switch r := m.run(); {
	case r == nil && rs.alone[keys.Gate] == m:
		rs.line(keys)
	case r == nil || r.line != nil || r.Inside == 0:
	case keys.Kind == record.Semaphore: // each permit by itself
		l := &line{runs: rs, keys: keys}
		l.Begin(&rs.core, l)
		l.head(r, m)
	case rs.lines[keys.Gate] == nil:
		rs.line(keys).head(r, m)
	}
	if m.Run == nil || m.Run.Over || m.Run.Inside == 0 {
		return nil
	}
	return m.run()
}
