package cohort

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/call"
	"github.com/natslock/locks/internal/claim"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/kvstore"
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
	Keep(d time.Duration)
	HandOff(ctx context.Context) (session.Handed, error)
	Release(ctx context.Context) error
	Retire() error
	Abandon()
}

// holder is one call of Acquire, and its result: first a goroutine that wants a lock, then its part in a lease.
type holder struct {
	session.Holder // set once it is inside
	c              *Client
	a              *call.Call // nil once it is inside

	// Under Client.mu.
	cohort     *cohort        // nil if the holder is folded
	tenure     *tenure        // the one that it is inside of, or about to enter; nil while it waits
	prev, next *holder        // in the FIFO
	number     uint64         // in the order in which the goroutines of the cohort asked
	waits      bool           // it is in the FIFO
	queued     bool           // announced as waiting
	informed   bool           // it has listed the queue, before it enters an idle lease
	confirms   bool           // the lease was idle for a long time, and has to be confirmed
	releases   bool           // it has to release the lease that it has left
	failure    *claim.Result  // the cohort's; nil while there is none
	awaits     *session.Lease // an idle lease that was given up: the claim waits until its record is gone; nil if there is none
	wake       chan struct{}  // signals that it is admitted, or fails; nil if it has not waited
	hint       chan struct{}  // closed when the lock is contended
	left       bool           // it no longer holds the lock
	gate       string         // of the lock of a folded holder
	turnEnds   clock.Instant  // the turn of its lease

	linger   time.Duration
	released sync.Once
	result   error // of the release
}

// signal wakes a waiting goroutine.
func (h *holder) signal() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// Acquire takes the lock that req names. It returns what is held, or an error: a [call.BusyError] (only with Once), a
// [call.WaitError] if the context or the maximum wait ended the wait, or one that matches another sentinel.
func (c *Client) Acquire(ctx context.Context, req call.Request) (Holding, error) {
	a, err := c.begin(ctx, req)
	if err != nil {
		return nil, err
	}
	defer c.leave()
	defer a.Bound()()
	h := &holder{c: c, a: a, linger: a.Req.Linger}
	a.Join(h)
	if req.Once && a.Drains() && !c.lingering(a) {
		// This comes before the gate, so that a one-shot writer stalls no reader.
		if reader, ok := a.CurrentReader(); ok {
			return nil, a.Locked(reader)
		}
	}
	if err := h.acquire(c, c.ask(h)); err != nil {
		return nil, err
	}
	return h, nil
}

// begin checks a request, and registers the call. The caller calls leave.
func (c *Client) begin(ctx context.Context, req call.Request) (*call.Call, error) {
	a, err := c.calls.New(ctx, req)
	if err != nil {
		return nil, err
	}
	if c.turn < 0 && a.Req.Linger > 0 && !a.Reads() {
		return nil, fmt.Errorf("lock %q: %w: Linger goes with no Turn below 0, where each goroutine queues by itself", req.Name, record.ErrInvalidOption)
	}
	if ctx.Err() != nil {
		return nil, a.GaveUp(context.Cause(ctx))
	}
	if err := a.Unfit(); err != nil { // before anything is sent
		return nil, a.GaveUp(err)
	}
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil, fmt.Errorf("acquire lock %q: %w", req.Name, bucket.ErrClosed)
	}
	err = c.checkKind(req.Kind, req.Name)
	if err == nil {
		c.noteKind(req.Kind, req.Name)
		c.enter()
	}
	c.mu.Unlock()
	if err != nil {
		return nil, err
	}
	c.b.Listen()
	a.Requested = true
	c.s.VerifyIfDue()
	return a, nil
}

// lingering reports whether the client has an idle lease that a one-shot writer can enter.
func (c *Client) lingering(a *call.Call) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.locks[a.Keys.Gate]
	if l == nil {
		return false
	}
	for _, k := range l.cohorts {
		if k.idleTenure() != nil {
			return true
		}
	}
	return false
}

// acquire gets the lock. does is the first step, as returned by [Client.ask].
func (h *holder) acquire(c *Client, does role) error {
	for {
		var res claim.Result
		switch does {
		case founds:
			res, does = h.found(c)
		case enters:
			res = h.enter()
		case informs:
			does = h.inform(c)
		default:
			res, does = h.wait(c)
		}
		switch {
		case res.Outcome == core.Undecided:
		case res.Outcome == core.Granted:
			c.mu.Lock()
			h.a = nil
			h.fold()
			c.mu.Unlock()
			return nil
		case res.Outcome == core.Lost:
			does = h.lost()
		default:
			wait := h.giveUp(c)
			err := h.a.Failure(res)
			wait()
			return err
		}
	}
}

// wait waits in the FIFO until the goroutine is admitted.
func (h *holder) wait(c *Client) (claim.Result, role) {
	select {
	case <-h.wake:
		c.mu.Lock()
		defer c.mu.Unlock()
		switch {
		case h.tenure != nil:
			return claim.Result{}, enters
		case h.failure != nil:
			return *h.failure, waits
		}
		return claim.Result{}, waits
	case <-h.a.Context().Done():
	case <-c.b.Granting().Done():
	}
	return claim.Result{Outcome: core.Ended, Err: h.a.Over()}, waits
}

// informWithin limits the wait of a one-shot acquire for a list of the queue.
const informWithin = 250 * time.Millisecond

// inform makes a one-shot acquire list the queue before it enters an idle lease, and ask again.
func (h *holder) inform(c *Client) role {
	h.informed = true
	l := h.cohort.lock
	c.mu.Lock()
	o := l.others
	c.mu.Unlock()
	if o != nil {
		ctx, cancel := context.WithTimeout(h.a.Context(), informWithin)
		defer cancel()
		_ = l.inform(ctx, o) // without an answer the lease is given up
		c.mu.Lock()
		l.changed(c.b.Instant())
		c.unlock()
	}
	return c.ask(h)
}

// found tries to get the lock with a first write on the caller's goroutine. If that is refused, the caller waits in the
// FIFO, and the seeker continues its claim.
func (h *holder) found(c *Client) (claim.Result, role) {
	a := h.a
	res := h.firstWrite(c)
	var lease *session.Lease
	if res.Outcome == core.Granted {
		lease = a.Hold(res)
	}
	c.mu.Lock()
	defer c.unlock()
	k, now := h.cohort, c.b.Instant()
	if a.Req.Once {
		k.oneShots--
	} else {
		k.founder = false
		defer k.decide(now)
	}
	switch {
	case lease != nil:
		t := k.hold(lease, now)
		t.admit(h)
		if k.fifo.n > 0 {
			t.listen()
			k.announceAll(false)
			k.resize()
			if k.reads() {
				// Readers that arrived before the answer enter with the founder, unless a writer is known.
				t.marked, t.mark = k.lock.standing(k, now) != somebody, k.asked
				k.serve(t, nil, now)
			}
			k.seek(now)
		}
		return claim.Result{}, enters
	case !a.Req.Once && (res.Outcome == core.Free || res.Outcome == core.Busy):
		k.fifo.insert(h) // ahead of those that have arrived since
		k.seekFrom(a, now)
		k.joined(h, now)
		return claim.Result{}, waits
	}
	if errors.Is(res.Err, kvstore.ErrNoStream) && !a.Req.Once {
		k.fail(res, now) // the leader is missing for all
	}
	k.seek(now)
	k.settle()
	return res, waits
}

// firstWrite tries to get the lock at once.
func (h *holder) firstWrite(c *Client) claim.Result {
	a := h.a
	for h.awaits != nil {
		select {
		case <-h.awaits.Leave(record.StatusGone): // which has begun
		case <-a.Context().Done():
			return claim.Result{Outcome: core.Ended, Err: a.Over()}
		case <-c.b.Granting().Done():
			return claim.Result{Outcome: core.Ended, Err: a.Over()}
		}
		c.mu.Lock()
		h.awaits = h.cohort.lock.recallFor(h) // another one may have become idle
		c.unlock()
	}
	a.Prepare()
	var o *others
	var epoch uint32
	if h.linger > 0 { // before the claim, whose answer proves the subscription //safety:try-subscribed
		o, epoch = h.cohort.lock.subscribe()
	}
	res := a.AtOnce()
	if o != nil && res.Outcome == core.Granted {
		c.mu.Lock()
		o.prove(c.b.Instant(), epoch)
		c.mu.Unlock()
	}
	if a.Req.Once && res.Outcome != core.Granted {
		defer a.WhileGranting()()
		res = a.Confirmed(res)
	}
	return res
}

// enter makes the goroutine a holder of its lease. The first writer drains the readers. Later writers enter behind the
// same gate, which has admitted no reader since. Admit refuses all of them once the lease of the gate has ended.
func (h *holder) enter() claim.Result {
	a, t := h.a, h.tenure
	c := h.c
	if a.Drains() && !t.drained {
		if res := a.Drain(t.lease); res.Outcome != core.Granted {
			return res
		}
		c.mu.Lock()
		t.drained = true
		c.mu.Unlock()
	}
	if h.confirms {
		h.confirms = false
		_ = t.lease.Confirm(a.Context()) // Admit decides
	}
	for {
		// The bucket is checked here too, for a claim that was acknowledged just now, and a lease that was handed on.
		if err := a.Unfit(); err != nil { //safety:unfit-grants-none
			return claim.Result{Outcome: core.Ended, Err: err}
		}
		if cause := a.Over(); cause != nil && !a.Req.Once {
			return claim.Result{Outcome: core.Ended, Err: cause}
		}
		admitted, err := t.lease.Admit(&h.Holder, session.Admission{
			Parent: a.Parent, Detached: a.Req.Detached, Meta: a.Req.Meta, Begun: a.Begun, Queued: h.wake != nil,
			Lingers: h.linger > 0, Least: a.Req.MinHold, Warn: a.Req.OnWarn, WarnBefore: a.Req.WarnBefore,
		})
		switch {
		case err != nil:
			return claim.Result{Outcome: core.Lost}
		case !admitted:
			if cause := a.Over(); cause != nil { // a one-shot acquire then waits for nothing
				return claim.Result{Outcome: core.Ended, Err: cause}
			}
			_ = t.lease.Renewed(a.Context()) // an error shows in the next try
			continue
		}
		return claim.Result{Outcome: core.Granted}
	}
}

// giveUp removes the goroutine from its cohort. wait waits until its records are gone, so that no client meets the
// place of a call that has returned.
func (h *holder) giveUp(c *Client) (wait func()) {
	c.mu.Lock()
	defer c.unlock()
	k, t, now := h.cohort, h.tenure, c.b.Instant()
	seen, outage := k.seen(h, now)
	founded := !h.waits && t == nil && h.failure == nil
	h.a.GivesUp(seen, outage, founded)
	switch {
	case t != nil:
		t.inside--
		h.tenure = nil
		if k.fifo.n == 0 && t.inside == 0 {
			t.drop()
			return func() { h.a.Unused(t.lease) }
		}
		k.serve(t, nil, now)
	case h.waits:
		k.fifo.remove(h)
		k.resize()
		if k.fifo.n > 0 {
			break
		}
		for _, t := range k.tenures {
			if t.deciding {
				defer k.serve(t, nil, now)
			}
		}
		if s := k.seeker; s != nil {
			k.unqueued()
			return func() { h.a.Await(s.gone) }
		}
	case founded:
		return h.a.Withdraw
	}
	return func() {}
}

// seen returns what is known about the lock, with the goroutine's position in the queue. The error is the reason why
// the server may be unavailable to it, nil if the server's last answer was that the lock is held or the cohort queued.
func (k *cohort) seen(h *holder, now clock.Instant) (*call.LockState, error) {
	s := new(call.LockState)
	var outage error = call.ErrUnanswered
	if k.known != nil {
		*s = k.known.state
		switch {
		case k.known.answered:
			outage = nil
		case k.known.trouble != nil:
			outage = k.known.trouble
		}
	}
	i := 0
	for x := k.fifo.first; x != nil && x != h; x = x.next {
		i++
	}
	for _, x := range k.lock.cohorts {
		for _, t := range x.tenures {
			switch {
			case t == h.tenure || t.lease.Ended(now):
			case k.reads() && x.reads():
				if x == k { // it waits alongside readers of its client
					outage = nil
				}
			default:
				s.Holder = t.lease.Entry()
				if x == k && len(k.tenures) >= k.limit() {
					s.Ahead = i + 1
					if o := k.lock.others; o != nil && k.judge(t, h, now) == release {
						s.Ahead += len(o.places)
					}
					return s, nil
				}
			}
		}
	}
	if o := k.lock.others; k.reads() && o != nil && o.gate.inPlace(now) {
		s.Holder = *o.gate.entry
	}
	if s.Ahead > 0 {
		s.Ahead += i
	}
	return s, outage
}

// Release ends the holder's part in the lease. Either the first waiter is admitted, or the other readers continue, or
// the lease is released: see [session.Lease.Release]. Further calls wait for the first and return its result.
func (h *holder) Release(ctx context.Context) error {
	h.released.Do(func() {
		c := h.c
		c.mu.Lock()
		if h.cohort == nil {
			delete(c.lone, h.gate)
			h.left = true
			c.mu.Unlock()
			h.result = h.Holder.Release(ctx)
			return
		}
		k, t := h.cohort, h.tenure
		h.unhint()
		now := c.b.Instant()
		if !t.goesOn(h, now) {
			t.inside--
			t.drop()
			c.unlock()
			h.result = h.Holder.Release(ctx)
			return
		}
		c.unlock()
		// Leave comes first: the next holder may release at once, or end the lease by giving up.
		h.result = h.Holder.Leave(now) //safety:one-at-a-time
		c.mu.Lock()
		t.inside--
		k.serve(t, h, c.b.Instant())
		releases := h.releases
		c.unlock()
		if releases { //safety:left-released
			if err := t.lease.Release(ctx); h.result == nil {
				h.result = err
			}
		}
	})
	return h.result
}

// goesOn reports whether the lease is still of use when h leaves it.
func (t *tenure) goesOn(h *holder, now clock.Instant) bool {
	k := t.cohort
	switch {
	// This holds even if the lease has ended: the last reader to leave deletes a broken record.
	case t.inside > 1: //safety:last-leaves
		return true
	case t.over:
		return false
	case k.fifo.n > 0:
		return k.judge(t, k.fifo.first, now) != release
	}
	return t.lingers(h.linger, now)
}

// Retire ends the holder's part in a lease that is not renewed, and leaves the record: see [session.Lease.Retire]. The
// lease has no other holder.
func (h *holder) Retire() error {
	h.released.Do(func() {
		h.result = h.Holder.Retire()
		h.part()
	})
	return h.result
}

// Abandon lets the lease run out, because the handle of a holder was dropped. No further reader joins it.
func (h *holder) Abandon() {
	h.released.Do(func() {
		h.Holder.Abandon()
		h.part()
	})
}

// part removes the holder's lease from its cohort: no other goroutine gets it.
func (h *holder) part() {
	c := h.c
	c.mu.Lock()
	defer c.unlock()
	if h.cohort == nil {
		delete(c.lone, h.gate)
		h.left = true
		return
	}
	h.unhint()
	h.tenure.inside--
	h.tenure.drop()
}

// Contended returns a channel that is closed when a goroutine or another client waits for what the holder has. The
// first call makes the client subscribe to the queue and list it, in the background. The subscription ends with the
// lease.
func (h *holder) Contended() <-chan struct{} {
	c := h.c
	c.mu.Lock()
	defer c.unlock()
	if h.hint != nil {
		return h.hint
	}
	h.hint = make(chan struct{})
	if h.cohort == nil && !h.left {
		encoded, _ := record.EncodeName(h.Name()) // cannot fail: it was encoded before
		c.lockOf(record.KeysOf(h.Holder.Lease().Kind, encoded))
	}
	if h.left {
		return h.hint
	}
	k, t, now := h.cohort, h.tenure, c.b.Instant()
	if t.over || t.lease.Ended(now) {
		return h.hint
	}
	if k.contended(now) {
		close(h.hint)
		return h.hint
	}
	k.hinted = append(k.hinted, h)
	t.listen()
	k.lock.refresh(now)
	return h.hint
}

// unhint stops the notification of a holder that leaves.
func (h *holder) unhint() {
	h.left = true
	k := h.cohort
	for i, x := range k.hinted {
		if x == h {
			k.hinted = append(k.hinted[:i], k.hinted[i+1:]...)
			return
		}
	}
}
