package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shirou/gopsutil/v4/process"
)

// Names of the figures in raw.json. Times are in seconds.
const (
	cycleP50    = "cycle_p50"   // uncontended lock and unlock
	cycleP99    = "cycle_p99"   //
	allocs      = "allocs"      // allocations in the client per cycle
	throughput  = "throughput"  // cycles per second of 64 goroutines on as many names
	waitingCPU  = "waiting_cpu" // cores used by the clients and their servers while 100 wait
	contended   = "contended"   // grants per second of one name, contended by two clients
	longestWait = "longest"     // a contender's longest wait
	sentEach    = "sent"        // messages sent by the clients per contended grant
	localSuffix = "_local"      // suffix of these three figures with all contenders in one client
)

func handOverP50(waiters int) string { return "handover_" + strconv.Itoa(waiters) + "_p50" }

// crowd lists the numbers of waiters for which hand-overs are measured.
var crowd = []int{1, 10, 100}

// goroutines is the number of goroutines in the throughput step.
const goroutines = 64

// contenders is the number of goroutines that contend for one name.
const contenders = 8

// Figures are the results of one step, keyed by name.
type Figures map[string]float64

// audit checks that the locks provide mutual exclusion. Each lock protects a plain number,
// which a holder reads when it gets the lock and writes back, incremented, before it releases
// the lock. If two clients hold the lock at the same time, an increment is lost. (The race
// detector is no help, because it cannot see a lock that is kept on a server and would report
// every access.)
type audit struct {
	sections atomic.Int64 // total
	lost     atomic.Int64
	stale    atomic.Int64 // sections whose token was not above all earlier tokens
}

type protected struct {
	number   int64  // guarded only by the lock
	token    uint64 // guarded only by the lock
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

// under runs one empty critical section.
func under(ctx context.Context, c *Client, name string, p *protected) error {
	unlock, token, err := c.Lock(ctx, name)
	if err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	p.leave(p.enter(token))
	if err := unlock(ctx); err != nil {
		return fmt.Errorf("unlock: %w", err)
	}
	return nil
}

// warmUp is the number of cycles run before measuring.
const warmUp = 20

func cycles(ctx context.Context, o *opened, name string, d time.Duration) (Figures, error) {
	var p protected
	defer o.audit.add(&p)
	for range warmUp {
		if err := under(ctx, o.clients[0], name, &p); err != nil {
			return nil, err
		}
	}
	took := make([]time.Duration, 0, 1<<16)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for end := time.Now().Add(d); len(took) < 10 || time.Now().Before(end); {
		begun := time.Now()
		if err := under(ctx, o.clients[0], name, &p); err != nil {
			return nil, err
		}
		took = append(took, time.Since(begun))
	}
	runtime.ReadMemStats(&after)
	slices.Sort(took)
	return Figures{
		cycleP50: quantile(took, 0.5), cycleP99: quantile(took, 0.99),
		allocs: float64(after.Mallocs-before.Mallocs) / float64(len(took)),
	}, nil
}

// quantile returns the q-quantile of sorted times, in seconds.
func quantile(took []time.Duration, q float64) float64 {
	return took[min(int(float64(len(took))*q), len(took)-1)].Seconds()
}

func manyNames(ctx context.Context, o *opened, name string, d time.Duration) (Figures, error) {
	var count atomic.Int64
	var warm, done sync.WaitGroup
	errs := make([]error, goroutines)
	var end time.Time // written before start is closed
	start := make(chan struct{})
	for i := range goroutines {
		warm.Add(1)
		done.Go(func() {
			var p protected
			defer o.audit.add(&p)
			own := name + "-" + strconv.Itoa(i)
			errs[i] = under(ctx, o.clients[0], own, &p)
			warm.Done()
			<-start
			for errs[i] == nil && time.Now().Before(end) {
				if errs[i] = under(ctx, o.clients[0], own, &p); errs[i] == nil {
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

// contention measures contention among goroutines of one client, and then among those of two
// clients.
func contention(ctx context.Context, o *opened, name string, d time.Duration) (Figures, error) {
	figures, err := contend(ctx, o, o.clients[:1], name+"-local", localSuffix, d)
	if err != nil {
		return nil, err
	}
	both, err := contend(ctx, o, o.clients, name, "", d)
	maps.Copy(figures, both)
	return figures, err
}

// contend makes goroutines of the clients take and release one lock over and over, with empty
// critical sections. It appends suffix to the names of its figures.
func contend(ctx context.Context, o *opened, clients []*Client, name, suffix string, d time.Duration) (Figures, error) {
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
				unlock, token, err := c.Lock(ctx, name)
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

// sent returns how many messages the clients have sent. It returns false if a client does not
// count them.
func sent(clients []*Client) (sum uint64, counted bool) {
	for _, c := range clients {
		if c.Sent == nil {
			return 0, false
		}
		sum += c.Sent()
	}
	return sum, true
}

// settle is how long a lock is held after all clients have called Lock, to give them time to
// queue.
const settle = 5 * time.Millisecond

// idleTime is how long CPU use is measured. Operating systems count it in steps of 10 ms.
const idleTime = time.Second

// relay passes one lock around among waiters+1 clients. It measures the time from a holder's
// call to unlock until the next holder's Lock returns.
type relay struct {
	protected
	name    string
	waiters int
	settle  time.Duration
	d       time.Duration
	procs   []*process.Process // processes whose CPU use is measured while the clients wait

	queued  chan struct{} // signals that a client is about to call Lock
	granted chan struct{} // signals that the previous holder may queue again

	// Guarded by the lock.
	released time.Time
	took     []time.Duration
	end      time.Time
	figures  Figures
}

// warmRelay is the number of hand-overs made before measuring.
const warmRelay = 3

// handOver measures hand-overs while the given number of clients wait.
func handOver(ctx context.Context, o *opened, name string, waiters int, d time.Duration) (Figures, error) {
	r := &relay{
		name: name, waiters: waiters, settle: max(settle, o.Settle), d: d, figures: Figures{},
		queued: make(chan struct{}, 2*waiters+2), granted: make(chan struct{}, waiters+1),
	}
	if waiters == crowd[len(crowd)-1] {
		r.procs = o.procs
	}
	// Give each waiter its own client, because goroutines of the same client may pass a lock on
	// without involving the server.
	clients := slices.Clone(o.clients)
	for len(clients) < waiters+1 {
		c, err := o.Open(ctx, o.servers)
		if err != nil {
			return nil, err
		}
		defer c.Close()
		clients = append(clients, c)
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var all sync.WaitGroup
	for i := range r.waiters + 1 {
		time.Sleep(time.Millisecond) // let them arrive one after another
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

func (r *relay) run(ctx context.Context, c *Client, stop context.CancelCauseFunc) error {
	for {
		r.queued <- struct{}{}
		unlock, token, err := c.Lock(ctx, r.name)
		now := time.Now()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("lock: %w", err)
		}
		done := false
		if ctx.Err() == nil { // otherwise the lock may have ended with ctx
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
		case <-r.granted: // otherwise a client would hand the lock to itself
		case <-ctx.Done():
			return nil
		}
	}
}

// hold does a holder's work under the lock, and reports whether the measurement is done.
func (r *relay) hold(ctx context.Context, now time.Time, token uint64) (done bool, err error) {
	entered := r.enter(token)
	first := r.released.IsZero()
	others := 1
	if first {
		others = r.waiters + 1 // including its own call
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
		time.Sleep(50*settle + time.Duration(r.waiters)*time.Millisecond) // many clients are queuing at the same time
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
	}
	done = !r.end.IsZero() && len(r.took) >= 5 && time.Now().After(r.end)
	r.leave(entered)
	r.released = time.Now()
	return done, nil
}

// idle measures the CPU use of waiting clients and their servers.
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

// usage returns the CPU time that procs have used, in seconds.
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
