package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shirou/gopsutil/v4/process"
)

// The figures, by the names that raw.json has. Times are in seconds.
const (
	cycleP50    = "cycle_p50"   // an uncontended lock and unlock
	cycleP99    = "cycle_p99"   //
	allocs      = "allocs"      // of the client, for each of these cycles
	cycleSent   = "cycle_sent"  // messages that the client sends, for each of these cycles
	throughput  = "throughput"  // cycles per second, 64 goroutines on as many names
	waitingCPU  = "waiting_cpu" // cores used by the clients and their servers while 100 wait
	messagesPer = "messages"    // per hand-over, of the clients
	contended   = "contended"   // grants per second, contenders of two clients for one name with empty sections
	longestWait = "longest"     // of a contender meanwhile
	sentEach    = "sent"        // messages that the clients send for each of these grants
	localSuffix = "_local"      // the same three, with all contenders in one client
)

func handOverP50(waiters int) string { return "handover_" + strconv.Itoa(waiters) + "_p50" }

// crowd is the numbers of waiters that a hand-over is measured with.
var crowd = []int{1, 10, 100}

// goroutines that throughput is measured with.
const goroutines = 64

// contenders is the number of goroutines that take one name over and over.
const contenders = 8

// Figures is the result of one step.
type Figures map[string]float64

// audit checks that the locks exclude. Each lock protects a plain number. A holder reads
// the number when it gets the lock, and writes it one higher before it releases the lock.
// Two holders that are inside at a time therefore lose a section. (The race detector
// cannot see locks that are kept elsewhere: it would complain of every one.)
type audit struct {
	sections atomic.Int64 // in all
	lost     atomic.Int64
	stale    atomic.Int64 // sections whose token was not above all before it
}

type protected struct {
	number   int64  // guarded by the lock alone
	token    uint64 // the same
	sections atomic.Int64
	stale    atomic.Int64
}

func (p *protected) enter(token uint64) int64 {
	if token != 0 && token <= p.token {
		p.stale.Add(1)
	}
	p.token = token
	return p.number
}

func (p *protected) leave(entered int64) {
	p.number = entered + 1
	p.sections.Add(1)
}

func (a *audit) add(p *protected) {
	a.sections.Add(p.sections.Load())
	a.lost.Add(p.sections.Load() - p.number)
	a.stale.Add(p.stale.Load())
}

// lock is Lock, with the fencing token of a side that has one, else 0.
func lock(ctx context.Context, c Client, name string) (unlock func(context.Context) error, token uint64, err error) {
	if f, ok := c.(Fencer); ok {
		return f.LockFenced(ctx, name)
	}
	unlock, err = c.Lock(ctx, name)
	return unlock, 0, err
}

// under is one critical section with nothing in it.
func under(ctx context.Context, c Client, name string, p *protected) error {
	unlock, token, err := lock(ctx, c, name)
	if err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	p.leave(p.enter(token))
	if err := unlock(ctx); err != nil {
		return fmt.Errorf("unlock: %w", err)
	}
	return nil
}

// warmUp is how many cycles do not count.
const warmUp = 20

func cycles(ctx context.Context, c Client, name string, d time.Duration, a *audit) (Figures, error) {
	var p protected
	defer a.add(&p)
	for range warmUp {
		if err := under(ctx, c, name, &p); err != nil {
			return nil, err
		}
	}
	var took []time.Duration
	var before, after runtime.MemStats
	took = slices.Grow(took, 1<<16)
	sentBefore, counted := sent([]Client{c})
	runtime.GC()
	runtime.ReadMemStats(&before)
	for end := time.Now().Add(d); len(took) < 10 || time.Now().Before(end); {
		begun := time.Now()
		if err := under(ctx, c, name, &p); err != nil {
			return nil, err
		}
		took = append(took, time.Since(begun))
	}
	runtime.ReadMemStats(&after)
	slices.Sort(took)
	figures := Figures{
		cycleP50: quantile(took, 0.5), cycleP99: quantile(took, 0.99),
		allocs: float64(after.Mallocs-before.Mallocs) / float64(len(took)),
	}
	if counted {
		sentAfter, _ := sent([]Client{c})
		figures[cycleSent] = float64(sentAfter-sentBefore) / float64(len(took))
	}
	return figures, nil
}

// quantile takes sorted times.
func quantile(took []time.Duration, q float64) float64 {
	return took[min(int(float64(len(took))*q), len(took)-1)].Seconds()
}

func manyNames(ctx context.Context, c Client, name string, d time.Duration, a *audit) (Figures, error) {
	var count atomic.Int64
	var warm, done sync.WaitGroup
	errs := make([]error, goroutines)
	var end time.Time // written before start is closed
	start := make(chan struct{})
	for i := range goroutines {
		warm.Add(1)
		done.Go(func() {
			var p protected
			defer a.add(&p)
			own := name + "-" + strconv.Itoa(i)
			errs[i] = under(ctx, c, own, &p)
			warm.Done()
			<-start
			for errs[i] == nil && time.Now().Before(end) {
				if errs[i] = under(ctx, c, own, &p); errs[i] == nil {
					count.Add(1)
				}
			}
		})
	}
	warm.Wait()
	begun := time.Now()
	end = begun.Add(d)
	close(start)
	done.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return Figures{throughput: float64(count.Load()) / time.Since(begun).Seconds()}, nil
}

// contention has several goroutines of some clients take one name over and over, with
// nothing to do under the lock. The names of its figures end in suffix.
func contention(ctx context.Context, o *opened, clients []Client, name, suffix string, d time.Duration) (Figures, error) {
	var p protected
	defer o.audit.add(&p)
	before, counted := sent(clients)
	var done sync.WaitGroup
	errs := make([]error, contenders)
	longest := make([]time.Duration, contenders)
	begun := time.Now()
	for i := range contenders {
		c := clients[i%len(clients)]
		done.Go(func() {
			for asked := time.Now(); errs[i] == nil && time.Since(begun) < d; asked = time.Now() {
				unlock, token, err := lock(ctx, c, name)
				if err != nil {
					errs[i] = fmt.Errorf("lock: %w", err)
					return
				}
				longest[i] = max(longest[i], time.Since(asked))
				p.leave(p.enter(token))
				errs[i] = unlock(ctx)
			}
		})
	}
	done.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	grants := float64(p.sections.Load())
	figures := Figures{contended + suffix: grants / time.Since(begun).Seconds(), longestWait + suffix: slices.Max(longest).Seconds()}
	if counted {
		after, _ := sent(clients)
		figures[sentEach+suffix] = float64(after-before) / grants
	}
	return figures, nil
}

// sent sums the messages that the clients have sent; false: they are not counted.
func sent(clients []Client) (sum uint64, counted bool) {
	for _, c := range clients {
		n, ok := c.(Counter)
		if !ok {
			return 0, false
		}
		sum += n.Sent()
	}
	return sum, true
}

// settle is how long a lock is held when all clients have called Lock: long enough
// for them to be queued.
const settle = 5 * time.Millisecond

// idleTime is how long CPU is measured, which systems count in steps of 10 ms.
const idleTime = time.Second

// relay hands one lock on among waiters+1 clients. It takes the time from the call of
// unlock to the return of the next holder's Lock.
type relay struct {
	protected
	name     string
	waiters  int
	settle   time.Duration
	d        time.Duration
	procs    []*process.Process    // whose CPU is measured while all wait
	sent     func([]Client) uint64 // the messages of all clients so far; nil: not counted
	messages func() uint64

	queued  chan struct{} // a client calls Lock
	granted chan struct{} // the client that has released may queue again

	// Guarded by the lock.
	released time.Time
	took     []time.Duration
	end      time.Time
	before   uint64 // messages
	figures  Figures
}

// warmRelay is how many hand-overs do not count.
const warmRelay = 3

func newRelay(o *opened, name string, waiters int, d time.Duration, procs []*process.Process) *relay {
	return &relay{
		name: name, waiters: waiters, settle: max(settle, o.Settle), d: d, procs: procs, figures: Figures{},
		queued: make(chan struct{}, 2*waiters+2), granted: make(chan struct{}, waiters+1),
	}
}

func (r *relay) measure(ctx context.Context, o *opened) (Figures, error) {
	// Goroutines of one client may hand a lock on among themselves, without the server.
	clients, leave, err := o.crowd(ctx, r.waiters+1)
	defer leave()
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	if r.sent != nil {
		r.messages = func() uint64 { return r.sent(clients) }
	}
	var all sync.WaitGroup
	for i := range r.waiters + 1 {
		time.Sleep(time.Millisecond) // they come one after the other
		all.Go(func() {
			if err := r.run(ctx, clients[i], stop); err != nil {
				stop(err)
			}
		})
	}
	all.Wait()
	o.audit.add(&r.protected)
	if err := context.Cause(ctx); !errors.Is(err, errEnough) {
		return nil, err
	}
	slices.Sort(r.took)
	r.figures[handOverP50(r.waiters)] = quantile(r.took, 0.5)
	return r.figures, nil
}

var errEnough = errors.New("measured")

func (r *relay) run(ctx context.Context, c Client, stop context.CancelCauseFunc) error {
	for {
		r.queued <- struct{}{}
		unlock, token, err := lock(ctx, c, r.name)
		now := time.Now()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("lock: %w", err)
		}
		done := false
		if ctx.Err() == nil { // else the lock may have ended with it
			if done, err = r.hold(ctx, now, token); err != nil {
				stop(err)
			}
		}
		detached, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		err = unlock(detached)
		cancel()
		switch {
		case done:
			stop(errEnough)
			return nil
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("unlock: %w", err)
		}
		select {
		case <-r.granted: // else one client would hand the lock to itself
		case <-ctx.Done():
			return nil
		}
	}
}

// hold is the work under the lock.
func (r *relay) hold(ctx context.Context, now time.Time, token uint64) (done bool, err error) {
	entered := r.enter(token)
	first := r.released.IsZero()
	others := 1
	if first {
		others = r.waiters + 1 // its own call among them
	} else {
		r.took = append(r.took, now.Sub(r.released))
		r.granted <- struct{}{}
	}
	for range others {
		select {
		case <-r.queued:
		case <-ctx.Done():
			return false, nil
		}
	}
	if first {
		time.Sleep(50*settle + time.Duration(r.waiters)*time.Millisecond) // many queue at a time
		if len(r.procs) > 0 {
			if err := r.idle(); err != nil {
				return false, err
			}
		}
	} else {
		time.Sleep(r.settle)
	}
	if len(r.took) == warmRelay && r.end.IsZero() {
		r.took = r.took[:0]
		r.end = time.Now().Add(r.d)
		if r.messages != nil {
			r.before = r.messages()
		}
	}
	done = !r.end.IsZero() && len(r.took) >= 5 && time.Now().After(r.end)
	if done && r.messages != nil {
		r.figures[messagesPer] = float64(r.messages()-r.before) / float64(len(r.took))
	}
	r.leave(entered)
	r.released = time.Now()
	return done, nil
}

// idle measures the CPU that the waiting costs.
func (r *relay) idle() error {
	before, err := usage(r.procs)
	if err != nil {
		return err
	}
	begun := time.Now()
	time.Sleep(idleTime)
	after, err := usage(r.procs)
	r.figures[waitingCPU] = (after - before) / time.Since(begun).Seconds()
	return err
}

// usage is the seconds of CPU that processes have used, in steps of some milliseconds.
func usage(procs []*process.Process) (float64, error) {
	sum := 0.
	for _, p := range procs {
		t, err := p.Times()
		if err != nil {
			return 0, err
		}
		sum += t.User + t.System
	}
	return sum, nil
}
