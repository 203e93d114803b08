package cohort

import (
	"context"
	"errors"

	"github.com/natslock/locks/internal/call"
	"github.com/natslock/locks/internal/claim"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
)

// seeker is the goroutine that gets a lease for a cohort's FIFO. It ends when it has a lease, when it fails, or when no
// goroutine is waiting anymore. If it ends without a lease, it withdraws its claim and its place. An acknowledgment
// that arrives after that only causes the acknowledged record to be deleted and is never a grant.
type seeker struct {
	cohort *cohort
	a      *call.Call
	ctx    context.Context
	cancel context.CancelFunc
	queues bool          // others are ahead of the cohort, so the seeker queues before it claims
	gone   chan struct{} // closed when the seeker has ended

	// Guarded by Client.mu.
	place *session.Place // the seeker's place in the queue; nil if it has none
	asked uint64         // number of the last goroutine that had asked when the seeker began
	mark  uint64         // number of the last goroutine that had asked when the ticket was sent; 0 if no ticket was sent
	proof func()         // to be called when the place is acknowledged; may be nil
}

// seek starts a seeker if goroutines are waiting and the cohort can have another lease.
func (k *cohort) seek(now clock.Instant) { k.seekFrom(nil, now) }

// seekFrom is like seek, but the seeker continues the claim of a founder that was refused.
func (k *cohort) seekFrom(founder *call.Call, now clock.Instant) {
	c := k.lock.c
	if k.seeker != nil || k.founder || k.fifo.n == 0 || len(k.tenures) >= k.limit() || !c.enter() {
		if founder != nil {
			c.later(founder.Withdraw)
		}
		return
	}
	if founder == nil {
		k.known = nil // left over from an earlier wait
	}
	first := k.fifo.first
	s := &seeker{cohort: k, asked: k.asked, gone: make(chan struct{}), queues: founder != nil || k.lock.standing(k, now) == somebody}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	req := first.a.Req
	req.Once, req.MaxWait, req.OnWarn = false, 0, nil
	k.seeker = s
	a, err := c.calls.New(s.ctx, req)
	if err == nil {
		a.Begun, a.Requested = first.a.Begun, true
		a.Join(s)
		if founder != nil {
			a.TakeOver(founder)
		}
		s.a = a
	}
	c.later(func() {
		go func() {
			defer c.leave()
			defer close(s.gone)
			defer s.cancel()
			if err != nil { // the requested end of the lease has already passed
				s.failed(claim.Result{Outcome: core.Failed, Err: err})
				return
			}
			s.run()
		}()
	})
}

func (s *seeker) run() {
	a := s.a
	a.Prepare()
	res := claim.Result{Outcome: core.Busy}
	if !s.queues {
		res = a.AtOnce()
	}
	if res.Outcome == core.Free || res.Outcome == core.Busy {
		res = a.Wait(res.Entry)
	}
	if res.Outcome == core.Granted {
		if l := a.Hold(res); !s.granted(l) {
			l.Leave(record.StatusGone) //safety:claim-unwanted
		}
		return
	}
	s.failed(res)
	a.Withdraw()
}

// granted adds the new lease to the cohort. It returns false if no goroutine is waiting anymore.
func (s *seeker) granted(l *session.Lease) bool {
	k := s.cohort
	c := k.lock.c
	c.mu.Lock()
	defer c.unlock()
	if k.seeker != s {
		return false
	}
	now := c.b.Instant()
	k.seeker = nil
	t := k.hold(l, now)
	t.marked, t.mark = s.mark != 0, s.mark
	// The grant may belong to a claim that was made before the place and whose answer was lost.
	if s.place != nil && record.TokenRevision(l.Body.Token) < s.place.Ticket() { //safety:claim-found
		t.mark = s.asked
	}
	t.listen()
	k.serve(t, nil, now)
	if !t.over {
		k.announceAll(false)
	}
	k.seek(now)
	k.resize()
	return true
}

// failed ends the wait of the goroutines in the FIFO with an error.
func (s *seeker) failed(res claim.Result) {
	k := s.cohort
	c := k.lock.c
	c.mu.Lock()
	defer c.unlock()
	if k.seeker == s {
		k.seeker = nil
		k.fail(res, c.b.Instant())
	}
}

// fail ends the wait of the goroutines in the FIFO with an error. If the reason is that the stream has had no leader
// for a long time, goroutines that have waited for only a small part of that time get another seeker instead.
func (k *cohort) fail(res claim.Result, now clock.Instant) {
	leaderless := errors.Is(res.Err, kvstore.ErrNoStream)
	for h := k.fifo.first; h != nil; {
		next := h.next
		if !leaderless || now.Sub(h.a.Begun) >= core.NoStreamFor/2 {
			k.fifo.remove(h)
			h.failure = &res
			h.signal()
		}
		h = next
	}
	k.seek(now)
	if s := k.seeker; s != nil && s.a != nil {
		s.a.Since = s.a.Begun
	}
	k.settle()
}

// The following methods implement [call.Cohort] for seekers and founders.

func (s *seeker) Queueing() {
	k := s.cohort
	l := k.lock
	c := l.c
	c.mu.Lock()
	others := k.fifo.n > 1 || len(l.cohorts) > 1
	for h := k.fifo.first; h != nil && !others; h = h.next {
		others = h.linger > 0
	}
	c.mu.Unlock()
	s.proof = nil
	if others { // before the write, whose answer proves the subscription //safety:queue-subscribed
		o, epoch := l.subscribe()
		s.proof = func() { o.prove(c.b.Instant(), epoch) }
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.mark = k.asked
}

func (s *seeker) Queued(p *session.Place) {
	k := s.cohort
	c := k.lock.c
	c.mu.Lock()
	defer c.unlock()
	s.place = p
	if k.seeker != s {
		return
	}
	if p != nil {
		if s.proof != nil {
			s.proof()
		}
		k.announceAll(true)
		k.resize()
	}
}

func (s *seeker) Listed(queue []record.Entry, from uint64, cut bool, at clock.Instant) {
	l := s.cohort.lock
	l.c.mu.Lock()
	defer l.c.unlock()
	o := l.others
	if o == nil {
		return
	}
	l.notePlaces(o, queue, at)
	if from == 0 && !cut {
		o.listedAt = at
	}
	l.changed(l.c.b.Instant())
}

func (s *seeker) Answered(err error)             { s.cohort.answered(err) }
func (s *seeker) HolderSeen(seen call.LockState) { s.cohort.holderSeen(seen) }

func (h *holder) Queueing()                                          {}
func (h *holder) Queued(*session.Place)                              {}
func (h *holder) Listed([]record.Entry, uint64, bool, clock.Instant) {}
func (h *holder) Answered(err error)                                 { h.cohort.answered(err) }
func (h *holder) HolderSeen(seen call.LockState)                     { h.cohort.holderSeen(seen) }

// answered records the result of the last request. A refusal because another write is being replicated neither begins
// nor ends an outage, so it does not replace an earlier result.
func (k *cohort) answered(err error) {
	c := k.lock.c
	c.mu.Lock()
	defer c.mu.Unlock()
	w := k.learned()
	if (w.answered || w.trouble != nil) && errors.Is(err, kvstore.ErrInFlight) {
		return
	}
	w.answered, w.trouble = err == nil, err
}

func (k *cohort) holderSeen(seen call.LockState) {
	c := k.lock.c
	c.mu.Lock()
	defer c.mu.Unlock()
	k.learned().state = seen
}

func (k *cohort) learned() *known {
	if k.known == nil {
		k.known = &known{}
	}
	return k.known
}
