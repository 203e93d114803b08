package partition

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/natslock/locks/internal/again"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/plain"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

// runner carries out the worker's decisions and makes none of its own. Only Run's goroutine
// modifies the worker. It does so under the group's mutex, so that the group's methods can read
// it.
type runner struct {
	g       *Group
	w       *worker
	fn      func(context.Context, *Partition) error
	ctx     context.Context // Run's context, without its cancellation
	running sync.WaitGroup
	happens chan func(now time.Time) // events for Run's goroutine
	over    chan struct{}            // closed once no more events are handled
	end     context.CancelFunc       // ends the membership
	err     error                    // why Run ends before its context, or nil
	reads   context.Context          // context of the watch and of all reads of the group
	claims  []context.CancelFunc     // cancel functions of the acquires, by partition
	served  []*serving
	report  func(Event)
	cut     atomic.Bool // the last attempt to reach the group failed
}

// serving is a partition that the worker was granted, and the call to its function.
type serving struct {
	*Partition
	begun  time.Time
	left   time.Time               // when the function returned; zero until then
	ctx    context.Context         // the function's context
	cancel context.CancelCauseFunc // cancels ctx
	timer  *time.Timer             // for the drain time; nil until it begins
}

// Run joins the group and calls fn for each partition that the worker is granted, each time on a
// separate goroutine, until ctx ends. It survives outages, server restarts, lost leases, and a
// bucket that is deleted and re-created.
//
// fn's context carries the values of ctx but does not end with it. It ends when the worker loses
// the partition, or when fn has not returned within the drain time after the channel of
// [Partition.Leaving] was closed. Its cause matches [natslock.ErrLost], [natslock.ErrBroken],
// [natslock.ErrClosed] or [ErrDrainTime]. The worker keeps the partition until fn returns. If fn
// returns before it was asked to, the worker gives up the partition and takes it again after a
// pause: at most 100 ms at first, and up to 10 s if that keeps happening. If fn panics, the
// partition is released before the panic ends the process.
//
// The client's logger gets a warning when fn returns an error other than the end of its context,
// when fn returns too early or too late, when a partition cannot be released, and when the worker
// cannot reach the group.
//
// When ctx ends, the worker leaves the group: it ends its membership and hands each partition to
// its next owner. This takes between half a second and six seconds, or no time for the last
// member. Calling Run on a Group that is already running returns [natslock.ErrInvalid].
//
// Run always returns an error. If ctx has ended, it matches ctx's error and cause. If the
// connection was closed for good, it matches [natslock.ErrUnavailable] and
// nats.ErrConnectionClosed. If the group uses a different number of partitions, it matches
// [ErrCount]. If another attempt would fail in the same way, it matches [natslock.ErrClosed],
// [natslock.ErrPermission] or [natslock.ErrInvalid]. By the time Run returns, all functions have
// returned, and the worker has released its partitions or spent 5 s trying to: see
// [EventReleased]. If a function never returns, neither does Run, and an [EventSlow] names the
// partition. Cancel ctx before calling [natslock.Client.Close].
func (g *Group) Run(ctx context.Context, fn func(ctx context.Context, p *Partition) error) error {
	if err := g.ready(); err != nil {
		return err
	}
	if fn == nil || ctx == nil {
		return fmt.Errorf("partitions of %q: %w: the function or the context is nil", g.name, natslock.ErrInvalid)
	}
	r := &runner{
		g: g, w: newWorker(g.id, g.count), fn: fn, ctx: context.WithoutCancel(ctx),
		happens: make(chan func(time.Time)), over: make(chan struct{}),
		claims: make([]context.CancelFunc, g.count), served: make([]*serving, g.count),
	}
	g.mu.Lock()
	if g.running {
		g.mu.Unlock()
		return fmt.Errorf("partitions of %q: %w: this Group is already running", g.name, natslock.ErrInvalid)
	}
	g.running, g.w = true, r.w
	g.mu.Unlock()
	report, stop := reporting(g.onEvent)
	r.report = report
	r.loop(ctx)
	stop()
	g.mu.Lock()
	g.running, g.w = false, nil
	g.stats.Reads += r.w.looks
	g.mu.Unlock()
	if r.err != nil {
		return fmt.Errorf("partitions of %q: %w", g.name, r.err)
	}
	return fmt.Errorf("partitions of %q: %w", g.name, plain.EndOf(ctx))
}

func (r *runner) loop(ctx context.Context) {
	var membership context.Context
	var stop context.CancelFunc
	membership, r.end = context.WithCancel(r.ctx)
	r.reads, stop = context.WithCancel(r.ctx)
	defer func() {
		stop()
		close(r.over)
		r.running.Wait()
	}()
	r.running.Go(func() { r.join(membership) })
	r.running.Go(func() { r.watch(r.reads) })
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ended := ctx.Done(); ; {
		var happened func(time.Time)
		select {
		case happened = <-r.happens:
		case <-timer.C:
			happened = func(time.Time) {}
		case <-ended:
			ended, happened = nil, r.leave
		}
		r.g.mu.Lock()
		now := time.Now()
		happened(now)
		effects := r.w.decide(now)
		next, done := r.w.next(now), r.w.done()
		r.g.mu.Unlock()
		for _, e := range effects {
			r.act(e)
		}
		if done {
			return
		}
		timer.Stop()
		if !next.IsZero() {
			timer.Reset(time.Until(next))
		}
	}
}

// tell has Run's goroutine call happened with the current time, and waits for the call to return.
// Once Run handles no more events, tell does nothing.
func (r *runner) tell(happened func(now time.Time)) {
	done := make(chan struct{})
	select {
	case r.happens <- func(now time.Time) { defer close(done); happened(now) }:
		<-done
	case <-r.over:
	}
}

// leave makes the worker leave the group, unless it is already leaving.
func (r *runner) leave(now time.Time) {
	if !r.w.closing {
		r.w.close(now)
		r.end()
	}
}

// fail ends Run with an error that another attempt would only repeat.
func (r *runner) fail(err error, now time.Time) {
	if r.err == nil && !r.w.closing {
		r.err = err
	}
	if r.leave(now); again.Closed(err) {
		r.w.abandon(now)
	}
}

// unavailable reports an error after which the worker tries again. If the error is final, it ends
// Run instead.
func (r *runner) unavailable(k int, err error, now time.Time) {
	if again.Final(err) {
		r.fail(err, now)
		return
	}
	r.report(Event{Type: EventUnavailable, Partition: k, Err: err})
}

// unreached warns, once per outage, that the group cannot be reached.
func (r *runner) unreached(err error) {
	if r.reads.Err() == nil && !again.Final(err) && !r.cut.Swap(true) {
		r.warn("cannot reach the group; retrying", "error", err)
	}
}

// warn logs a warning with the client's logger. Do not call it while holding the group's mutex,
// because a log handler may call the group's methods.
func (r *runner) warn(what string, with ...any) {
	again.Logger(r.g.c).Warn(what, append([]any{"group", r.g.name}, with...)...)
}

func (r *runner) act(e effect) {
	k := e.partition
	switch e.action {
	case claim:
		ctx, cancel := context.WithCancel(r.ctx)
		r.claims[k] = cancel
		r.running.Go(func() {
			defer cancel()
			r.own(ctx, k)
		})
	case withdraw:
		r.claims[k]()
	case drain:
		s := r.served[k]
		close(s.leaving)
		s.timer = time.AfterFunc(r.g.drain, func() { r.slow(s) })
		r.report(Event{Type: EventLeaving, Partition: k, Token: s.Token(), Held: time.Since(s.begun)})
	case look:
		r.running.Go(r.look)
	}
}

// slow cancels the context of a function that has exceeded its drain time. It does nothing if the
// function has already returned and only the release is still in progress.
func (r *runner) slow(s *serving) {
	late := false
	r.tell(func(time.Time) {
		if late = s.left.IsZero(); late {
			s.cancel(ErrDrainTime)
			r.report(Event{Type: EventSlow, Partition: s.number, Token: s.Token(), Held: time.Since(s.begun), Err: ErrDrainTime})
		}
	})
	if late {
		r.warn("the function for a partition did not return within the drain time", "partition", s.number, "token", s.Token(), "drain time", r.g.drain)
	}
}

// lock acquires one of the group's locks. ctx limits only the wait.
func (r *runner) lock(ctx context.Context, name string, purpose string, meta map[string]string) (*natslock.Lock, error) {
	opts := []natslock.LockOption{again.Patient(), again.For(purpose), natslock.Detached(), natslock.Meta(meta)}
	return r.g.c.Lock(ctx, name, append(opts, r.g.opts...)...)
}

// look reads the group and updates the worker with the result.
func (r *runner) look() {
	ctx, cancel := context.WithTimeout(r.reads, lookTimeout)
	defer cancel()
	state, err := Inspect(ctx, r.g.c, r.g.name)
	if err != nil {
		r.unreached(err)
	} else if r.cut.Swap(false) {
		again.Logger(r.g.c).Info("reached the group again", "group", r.g.name)
	}
	r.tell(func(now time.Time) {
		if err != nil {
			r.w.unread(now)
			r.unavailable(-1, err, now)
		} else if err := r.w.read(state, now); err != nil {
			r.fail(err, now)
		}
	})
}

// lookTimeout limits a single read of the group.
const lookTimeout = 30 * time.Second

// A worker whose ID is taken reports this after firstReport, and then every reportEvery.
const (
	firstReport = time.Second
	reportEvery = 30 * time.Second
)

// join keeps the worker a member until ctx ends.
func (r *runner) join(ctx context.Context) {
	meta := map[string]string{idKey: r.g.id, weightKey: strconv.Itoa(r.g.weight), countKey: strconv.Itoa(r.g.count)}
	maps.Copy(meta, r.g.meta)
	timeout := firstReport
	for failed := 0; ctx.Err() == nil; {
		wait, cancel := context.WithTimeout(ctx, timeout)
		l, err := r.lock(wait, memberName(r.g.name, r.g.id), "member", meta)
		cancel()
		if err != nil {
			if ctx.Err() != nil {
				return
			}
			pause, taken := again.Pause(failed), false
			failed++
			if waited, ok := errors.AsType[*natslock.TimeoutError](err); ok {
				pause, failed, timeout = 0, 0, reportEvery
				if waited.Holder != nil && !errors.Is(err, natslock.ErrUnavailable) {
					err, taken = fmt.Errorf("another worker has the ID %q: %w", r.g.id, err), true
				}
			}
			if taken {
				r.warn("waiting for another worker with the same ID to leave", "error", err)
			} else {
				r.unreached(err)
			}
			r.tell(func(now time.Time) { r.unavailable(-1, err, now) })
			_ = clock.Sleep(ctx, pause) // the loop checks ctx
			continue
		}
		failed, timeout = 0, firstReport
		r.tell(func(now time.Time) {
			r.w.joined(l.Token(), now)
			r.report(Event{Type: EventJoined, Partition: -1, Token: l.Token()})
		})
		select {
		case <-l.Context().Done():
			err = l.Err()
		case <-ctx.Done():
		}
		if ended := l.Unlock(r.ctx); errors.Is(ended, natslock.ErrUnavailable) && err == nil {
			r.warn("membership not released; it ends with its TTL", "error", ended)
			err = ended
		}
		r.tell(func(now time.Time) {
			r.w.left(now)
			r.report(Event{Type: EventLeft, Partition: -1, Token: l.Token(), Err: err})
		})
	}
}

// watch tells the worker about members that join, renew or leave, until ctx ends.
func (r *runner) watch(ctx context.Context) {
	for failed := 0; ctx.Err() == nil; failed++ {
		for ev, err := range admin.New(r.g.c).Watch(ctx, r.g.name+".member.*") {
			switch {
			case err != nil:
				r.unreached(err)
				r.tell(func(now time.Time) { r.unavailable(-1, err, now) })
				continue
			case ev.Type == admin.EventQueued || ev.Type == admin.EventGaveUp:
				continue
			}
			failed = 0
			r.tell(func(now time.Time) {
				switch ev.Type {
				case admin.EventRenewed:
					r.w.renewed(ev.Token, now)
				case admin.EventReleased, admin.EventExpired, admin.EventBroken:
					r.w.gone(ev.Token, now)
				default:
					r.w.moved(now)
				}
			})
		}
		_ = clock.Sleep(ctx, again.Pause(failed)) // the loop checks ctx
	}
}

// own acquires partition k, runs its function, and releases the partition when the function has
// returned.
func (r *runner) own(ctx context.Context, k int) {
	l, err := r.lock(ctx, lockName(r.g.name, k), "partition", map[string]string{idKey: r.g.id})
	if err != nil {
		r.tell(func(now time.Time) {
			withdrawn := r.w.slots[k].withdrawn
			if r.w.ended(k, !withdrawn, now); !withdrawn {
				r.unavailable(k, err, now)
			}
		})
		return
	}
	s := &serving{Partition: &Partition{number: k, lock: l, leaving: make(chan struct{})}, begun: time.Now()}
	s.ctx, s.cancel = context.WithCancelCause(l.Context())
	run := false
	r.tell(func(now time.Time) {
		if run = r.w.granted(k, now); run {
			r.served[k] = s
			r.g.stats.Granted++
			r.report(Event{Type: EventGranted, Partition: k, Token: l.Token()})
		}
	})
	// Deferred, because the function may panic or end its goroutine instead of returning.
	defer func() { r.release(s, run, err) }()
	if !run {
		return
	}
	r.running.Go(func() {
		select {
		case <-l.Contended():
			r.tell(func(time.Time) {
				if r.served[k] == s {
					r.w.asked(k)
				}
			})
		case <-l.Context().Done():
		}
	})
	if s.ctx.Err() == nil {
		err = errExit
		err = r.fn(s.ctx, s.Partition)
	}
}

// errExit is the error of a function that did not return.
var errExit = errors.New("the function panicked or ended its goroutine")

// release unlocks a partition whose function has returned or will not be called.
func (r *runner) release(s *serving, run bool, err error) {
	k, l := s.number, s.lock
	var asked, slow bool
	var lost error
	// Decide what to report about the function before releasing the partition, because the
	// release can take seconds during an outage.
	r.tell(func(now time.Time) {
		s.left, lost = now, l.Err()
		asked, slow = r.w.slots[k].phase == leaving, context.Cause(s.ctx) == ErrDrainTime
		if again.IsEnd(s.ctx, err) {
			err = nil
		}
		r.w.returned(k, now)
	})
	switch {
	case run && err != nil:
		r.warn("work on a partition failed", "partition", k, "token", s.Token(), "error", err)
	case run && !asked && lost == nil:
		r.warn("the function for a partition returned before it was asked to; it must keep running while the worker owns the partition", "partition", k, "token", s.Token())
	}
	s.cancel(nil)
	// The function has returned, so this worker no longer touches the partition. If the server
	// does not confirm the release, the next owner waits at most one TTL.
	ended := l.Unlock(r.ctx)
	switch {
	case ended == nil || lost != nil:
	case errors.Is(ended, natslock.ErrUnavailable):
		r.warn("partition not released; it becomes free when its TTL ends", "partition", k, "token", s.Token(), "error", ended)
		err = plain.Join(ended, err)
	default:
		lost = ended // the loss came to light only now
	}
	r.tell(func(now time.Time) {
		// A lease that is lost soon after its grant also counts as a failure, so that the worker
		// pauses instead of claiming the partition again right away.
		r.w.ended(k, run && !asked && (lost == nil || errors.Is(lost, natslock.ErrReleased) || s.left.Sub(s.begun) < again.Long), now)
		if run {
			r.served[k] = nil
			r.finished(s, asked, slow, lost, err)
		}
	})
}

// finished reports that a function has returned, and updates the statistics.
func (r *runner) finished(s *serving, asked, slow bool, lost, err error) {
	if s.timer != nil {
		s.timer.Stop()
	}
	ev := Event{Type: EventReleased, Partition: s.number, Token: s.Token(), Held: s.left.Sub(s.begun), Err: err}
	switch {
	case lost != nil:
		ev.Type, ev.Err = EventLost, plain.Join(lost, err)
		r.g.stats.Lost++
	case asked:
		r.g.stats.Drained++
		if slow {
			r.g.stats.Slow++
			ev.Err = plain.Join(ErrDrainTime, err)
		}
	default:
		ev.Type = EventFailed
		r.g.stats.Failed++
	}
	r.report(ev)
}

// reporting starts a goroutine that calls fn for each event passed to report. stop waits until fn
// has been called for all of them.
func reporting(fn func(Event)) (report func(Event), stop func()) {
	if fn == nil {
		return func(Event) {}, func() {}
	}
	var mu sync.Mutex
	var events []Event
	wake, done := make(chan struct{}, 1), make(chan struct{})
	signal := func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
	stopped := false
	go func() {
		defer close(done)
		for range wake {
			mu.Lock()
			todo, last := events, stopped
			events = nil
			mu.Unlock()
			for _, ev := range todo {
				fn(ev)
			}
			if last {
				return
			}
		}
	}()
	report = func(ev Event) {
		ev.Time = time.Now()
		mu.Lock()
		events = append(events, ev)
		mu.Unlock()
		signal()
	}
	return report, func() {
		mu.Lock()
		stopped = true
		mu.Unlock()
		signal()
		<-done
	}
}
