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

// runner carries out the worker's decisions and makes none itself. Only the goroutine of Run
// changes the worker, under the mutex of the group so that the group's methods can read it.
type runner struct {
	g       *Group
	w       *worker
	fn      func(context.Context, *Partition) error
	ctx     context.Context // Run's, without its cancellation
	running sync.WaitGroup
	happens chan func(now time.Time) // events for the goroutine of Run to handle
	over    chan struct{}            // closed when no more events are handled
	end     context.CancelFunc       // of the membership
	err     error                    // why Run ends before its ctx, or nil
	reads   context.Context          // of the watch and of the reads of the group
	claims  []context.CancelFunc     // by partition
	served  []*serving
	report  func(Event)
	cut     atomic.Bool // the group could not be reached last time
}

// serving is a partition whose function is running.
type serving struct {
	*Partition
	begun  time.Time
	left   time.Time               // when the function returned; zero until then
	ctx    context.Context         // of the function
	cancel context.CancelCauseFunc // of ctx
	timer  *time.Timer             // for the drain time, or nil
}

// Run joins the group and calls fn for each partition that this worker gets, each on a
// goroutine of its own, until ctx ends. It continues through outages and restarts of the
// server, after a lost lease, and in a bucket that was deleted and re-created.
//
// fn's context has the values of ctx and does not end with ctx. It ends when the worker has
// lost the partition, or when fn has not returned within the drain time after
// [Partition.Leaving] was closed. Its cause matches [natslock.ErrLost], [natslock.ErrBroken],
// [natslock.ErrClosed] or [ErrDrainTime]. The worker keeps the partition until fn returns. If
// fn returns before it was asked to, the worker gives the partition up, and takes it again
// after a pause: at most 100 ms at first, and up to 10 s if that repeats. A panic in fn ends
// the process after the partition has been released.
//
// The client's logger gets a warning for each error of fn other than the end of its context,
// for a function that returns early or too late, for a partition that could not be released,
// and when the worker cannot reach the group.
//
// When ctx ends, the worker leaves: it ends its membership and gives each partition to its next
// owner, which takes half a second to six seconds, or no time for the last member. Calling Run
// on a running Group returns [natslock.ErrInvalid].
//
// Run always returns an error. It matches ctx's error and cause if ctx has ended,
// [natslock.ErrUnavailable] and nats.ErrConnectionClosed if the connection was closed for good,
// [ErrCount] if the group uses a different number of partitions, and [natslock.ErrClosed],
// [natslock.ErrPermission] or [natslock.ErrInvalid] if another try would fail in the same way.
// When Run returns, all functions have returned, and the worker has released its partitions, or
// tried to for 5 s: see [EventReleased]. If a function never returns, neither does Run, and
// [EventSlow] names it. End ctx before [natslock.Client.Close].
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
		return fmt.Errorf("partitions of %q: %w: this Group runs already", g.name, natslock.ErrInvalid)
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

// tell makes Run's goroutine call happened with the current time, and waits for that. Once the
// worker has ended, it does nothing.
func (r *runner) tell(happened func(now time.Time)) {
	done := make(chan struct{})
	select {
	case r.happens <- func(now time.Time) { defer close(done); happened(now) }:
		<-done
	case <-r.over:
	}
}

// leave makes the worker start to leave.
func (r *runner) leave(now time.Time) {
	if !r.w.closing {
		r.w.close(now)
		r.end()
	}
}

// fail ends Run with an error that a retry would run into again.
func (r *runner) fail(err error, now time.Time) {
	if r.err == nil && !r.w.closing {
		r.err = err
	}
	if r.leave(now); again.Closed(err) {
		r.w.abandon(now)
	}
}

// unavailable reports an error after which the worker tries again, or ends Run.
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
		r.warn("this worker does not reach its group, and tries again", "error", err)
	}
}

// warn writes to the client's log. Do not call it while holding the group's mutex, because a
// log handler may call the group's methods.
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

// slow ends the context of a function whose drain time is over. It ignores a function that has
// returned and whose partition is only being released.
func (r *runner) slow(s *serving) {
	late := false
	r.tell(func(time.Time) {
		if late = s.left.IsZero(); late {
			s.cancel(ErrDrainTime)
			r.report(Event{Type: EventSlow, Partition: s.number, Token: s.Token(), Held: time.Since(s.begun), Err: ErrDrainTime})
		}
	})
	if late {
		r.warn("a function has not left its partition within the drain time", "partition", s.number, "token", s.Token(), "drain time", r.g.drain)
	}
}

// lock takes a lock of the group. ctx limits only the wait.
func (r *runner) lock(ctx context.Context, name string, purpose string, meta map[string]string) (*natslock.Lock, error) {
	opts := []natslock.LockOption{again.Patient(), again.For(purpose), natslock.Detached(), natslock.Meta(meta)}
	return r.g.c.Lock(ctx, name, append(opts, r.g.opts...)...)
}

// look reads the group.
func (r *runner) look() {
	ctx, cancel := context.WithTimeout(r.reads, lookTimeout)
	defer cancel()
	state, err := Inspect(ctx, r.g.c, r.g.name)
	if err != nil {
		r.unreached(err)
	} else if r.cut.Swap(false) {
		again.Logger(r.g.c).Info("this worker reaches its group again", "group", r.g.name)
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

// lookTimeout limits one read of the group.
const lookTimeout = 30 * time.Second

// A worker whose ID is taken reports that after soon, and then every often.
const (
	soon  = time.Second
	often = 30 * time.Second
)

// join keeps the worker a member until ctx ends.
func (r *runner) join(ctx context.Context) {
	meta := map[string]string{idKey: r.g.id, weightKey: strconv.Itoa(r.g.weight), countKey: strconv.Itoa(r.g.count)}
	maps.Copy(meta, r.g.meta)
	timeout := soon
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
				pause, failed, timeout = 0, 0, often
				if waited.Holder != nil && !errors.Is(err, natslock.ErrUnavailable) {
					err, taken = fmt.Errorf("another worker has the id %q: %w", r.g.id, err), true
				}
			}
			if taken {
				r.warn("this worker waits until another one with its id has left", "error", err)
			} else {
				r.unreached(err)
			}
			r.tell(func(now time.Time) { r.unavailable(-1, err, now) })
			_ = clock.Sleep(ctx, pause) // the loop sees the end of ctx
			continue
		}
		failed, timeout = 0, soon
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
			r.warn("this worker's membership was not released, and ends with its TTL", "error", ended)
			err = ended
		}
		r.tell(func(now time.Time) {
			r.w.left(now)
			r.report(Event{Type: EventLeft, Partition: -1, Token: l.Token(), Err: err})
		})
	}
}

// watch notifies the worker of members that join, renew and leave, until ctx ends.
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
		_ = clock.Sleep(ctx, again.Pause(failed)) // the loop sees the end of ctx
	}
}

// own waits for a partition's lock, and runs its function until the partition is lost or has to
// be given up.
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
	// Deferred, because the function can end its goroutine instead of returning.
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

// errExit is the error for a function that did not return.
var errExit = errors.New("the function panicked, or ended its goroutine")

// release unlocks a partition whose function has returned or is not to be called.
func (r *runner) release(s *serving, run bool, err error) {
	k, l := s.number, s.lock
	var asked, slow bool
	var lost error
	// Decide what to report about the function before the release, which takes seconds in an
	// outage.
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
		r.warn("the work on a partition failed", "partition", k, "token", s.Token(), "error", err)
	case run && !asked && lost == nil:
		r.warn("a function returned before it was asked to; it has to stay as long as the worker is to own the partition", "partition", k, "token", s.Token())
	}
	s.cancel(nil)
	// The function has returned, so nothing here works on the partition any more. If the server
	// does not confirm the release, the next owner waits for the TTL at most.
	ended := l.Unlock(r.ctx)
	switch {
	case ended == nil || lost != nil:
	case errors.Is(ended, natslock.ErrUnavailable):
		r.warn("a partition was not released, and is free at the end of its TTL", "partition", k, "token", s.Token(), "error", ended)
		err = plain.Join(ended, err)
	default:
		lost = ended // a loss that so far only the clock shows
	}
	r.tell(func(now time.Time) {
		// A lease lost soon after its grant counts as a failure too, so the worker pauses instead
		// of claiming again at once.
		r.w.ended(k, run && !asked && (lost == nil || errors.Is(lost, natslock.ErrReleased) || s.left.Sub(s.begun) < again.Long), now)
		if run {
			r.served[k] = nil
			r.finished(s, asked, slow, lost, err)
		}
	})
}

// finished reports the end of a function.
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

// reporting calls fn with each reported event, on a goroutine of its own, until stop, which waits
// for the last call.
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
