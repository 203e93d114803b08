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

// Holding is what a caller holds: a share of a lease.
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

// holder is one call to Acquire and its result: first a goroutine that wants a lock, then its share of a lease.
type holder struct {
	session.Holder // set once the holder is inside
	c              *Client
	a              *call.Call // nil once the holder is inside

	// Guarded by Client.mu.
	cohort     *cohort        // nil if the holder is folded
	tenure     *tenure        // the lease it has entered or is about to enter; nil while it waits
	prev, next *holder        // links in the FIFO
	number     uint64         // position in the order in which the cohort's goroutines asked
	waits      bool           // it is in the FIFO
	queued     bool           // it was announced as waiting
	informed   bool           // it has listed the queue before entering an idle lease
	confirms   bool           // it has to confirm a lease that was idle for a long time
	releases   bool           // it has to release the lease that it has left
	failure    *claim.Result  // why the cohort failed; nil if it has not
	awaits     *session.Lease // an idle lease given up for it, whose record must be gone before it claims; nil if there is none
	wake       chan struct{}  // signals that it is admitted or has failed; nil if it has never waited
	hint       chan struct{}  // closed when the lock becomes contended
	left       bool           // it no longer holds the lock
	gate       string         // of the lock, if the holder is folded
	turnEnds   clock.Instant  // of the lease, if the holder is folded

	linger   time.Duration
	released sync.Once
	result   error // of the release
}

func (h *holder) signal() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// Acquire takes the lock that req names. If it fails, it returns a [call.BusyError] (only with Once), a
// [call.WaitError] if the context or the maximum wait ended the wait, or an error that matches another sentinel.
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
		// Look for a reader before claiming the gate, so that a one-shot writer does not stall readers.
		if reader, ok := a.CurrentReader(); ok {
			return nil, a.Locked(reader)
		}
	}
	if err := h.acquire(c, c.ask(h)); err != nil {
		return nil, err
	}
	return h, nil
}

// begin checks a request and registers the call. Unless it returns an error, the caller must call leave.
func (c *Client) begin(ctx context.Context, req call.Request) (*call.Call, error) {
	a, err := c.calls.New(ctx, req)
	if err != nil {
		return nil, err
	}
	if c.turn < 0 && a.Req.Linger > 0 && !a.Reads() {
		return nil, fmt.Errorf("lock %q: %w: Linger cannot be combined with a negative Turn, which makes each goroutine queue by itself", req.Name, record.ErrInvalidOption)
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

// lingering reports whether the client has an idle lease on the lock that a one-shot writer could enter.
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

// wait waits in the FIFO until h is admitted, fails, or gives up.
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

// informWithin limits how long a one-shot acquire waits for a list of the queue.
const informWithin = 250 * time.Millisecond

// inform makes a one-shot acquire list the queue before it enters an idle lease, and then ask again.
func (h *holder) inform(c *Client) role {
	h.informed = true
	l := h.cohort.lock
	c.mu.Lock()
	o := l.others
	c.mu.Unlock()
	if o != nil {
		ctx, cancel := context.WithTimeout(h.a.Context(), informWithin)
		defer cancel()
		_ = l.inform(ctx, o) // without an answer, ask gives up the lease
		c.mu.Lock()
		l.changed(c.b.Instant())
		c.unlock()
	}
	return c.ask(h)
}

// found tries to get the lock with a first write from the caller's goroutine. If the write is refused, the caller waits
// in the FIFO and a seeker continues its claim, unless the acquire is one-shot.
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
				// Unless a writer is known to be waiting, readers that arrived before the answer enter with the
				// founder.
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
		k.fail(res, now) // none of the waiters can reach a leader
	}
	k.seek(now)
	k.settle()
	return res, waits
}

// firstWrite tries to get the lock without queueing.
func (h *holder) firstWrite(c *Client) claim.Result {
	a := h.a
	for h.awaits != nil {
		select {
		case <-h.awaits.Leave(record.StatusGone): // already under way
		case <-a.Context().Done():
			return claim.Result{Outcome: core.Ended, Err: a.Over()}
		case <-c.b.Granting().Done():
			return claim.Result{Outcome: core.Ended, Err: a.Over()}
		}
		c.mu.Lock()
		h.awaits = h.cohort.lock.recallFor(h) // another lease may have become idle
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

// enter makes h a holder of its lease. The first writer waits for the readers to leave. Later writers enter behind the
// same gate, which has admitted no readers in the meantime. Once the gate's lease has ended, Admit refuses all of them.
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
		// Check the bucket here as well, for a claim that has just been acknowledged or a lease that was handed on.
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
			if cause := a.Over(); cause != nil { // a one-shot acquire whose time is up does not wait
				return claim.Result{Outcome: core.Ended, Err: cause}
			}
			_ = t.lease.Renewed(a.Context()) // an error shows up on the next try
			continue
		}
		return claim.Result{Outcome: core.Granted}
	}
}

// giveUp removes h from its cohort. wait blocks until h's records are gone, so that no client runs into the place of a
// call that has returned.
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

// seen returns what is known about the lock, including h's position in the queue. The error is why the server may be
// unavailable to h, or nil if the server's last answer was that the lock is held or the cohort is queued.
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
				if x == k { // h waits alongside readers of its own client
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

// Release gives up the holder's share of the lease. Then the first waiter is admitted, the other readers continue, or
// the lease is released; see [session.Lease.Release]. Further calls wait for the first and return its result.
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
		// Leave first, because the next holder may release immediately or end the lease by giving up.
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

// goesOn reports whether the lease is still needed after h has left it.
func (t *tenure) goesOn(h *holder, now clock.Instant) bool {
	k := t.cohort
	switch {
	// This applies even if the lease has ended, because the last reader to leave deletes a broken record.
	case t.inside > 1: //safety:last-leaves
		return true
	case t.over:
		return false
	case k.fifo.n > 0:
		return k.judge(t, k.fifo.first, now) != release
	}
	return t.lingers(h.linger, now)
}

// Retire gives up the holder's share of a lease that is not renewed, and leaves the record in place; see
// [session.Lease.Retire]. Such a lease has no other holder.
func (h *holder) Retire() error {
	h.released.Do(func() {
		h.result = h.Holder.Retire()
		h.part()
	})
	return h.result
}

// Abandon lets the lease run out, because the holder's handle has been dropped. No more readers join the lease.
func (h *holder) Abandon() {
	h.released.Do(func() {
		h.Holder.Abandon()
		h.part()
	})
}

// part removes h's lease from the cohort, so that no other goroutine gets it.
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

// Contended returns a channel that is closed when another goroutine or another client is waiting for what h holds. The
// first call makes the client subscribe to the queue and list it in the background. The subscription ends with the
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
		encoded, _ := record.EncodeName(h.Name()) // cannot fail, because the name has been encoded before
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

// unhint stops contention notifications for h, which is leaving.
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
