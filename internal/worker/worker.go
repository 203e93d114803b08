// Package worker runs functions one after another on a goroutine of their own.
package worker

import (
	"context"
	"reflect"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// linger is the time for which a worker's goroutine stays without work. A new goroutine for every lock would have to
// grow its stack each time.
const linger = time.Second

// Worker runs functions one after another on a goroutine that exists only while there are any, and a little longer. The
// queue has no limit, so that adding never blocks.
type Worker struct {
	mu      sync.Mutex
	queue   []func()
	running bool
	stopped bool
	wake    chan struct{}
	wg      sync.WaitGroup
	own     chan struct{} // closed when one of the worker's functions stops it; see [Worker.StopWithin]
	ownOnce sync.Once
	made    time.Time
	begun   atomic.Int64 // when it began to run the present functions, since made; 0 if it runs none
}

// New returns a worker without work.
func New() *Worker {
	return &Worker{wake: make(chan struct{}, 1), own: make(chan struct{}), made: time.Now()}
}

// Add queues fn. It returns false, and does not run fn, if the worker was stopped.
func (w *Worker) Add(fn func()) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		return false
	}
	w.queue = append(w.queue, fn)
	if !w.running {
		w.running = true
		w.wg.Go(w.run)
	}
	w.signal()
	return true
}

func (w *Worker) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *Worker) run() {
	timer := time.NewTimer(linger)
	defer timer.Stop()
	var batch []func()
	used, idle := false, false // since the timer was set; when it fired
	for {
		w.mu.Lock()
		batch, w.queue = w.queue, batch[:0]
		if len(batch) == 0 && (idle || w.stopped) {
			w.running = false
			w.mu.Unlock()
			return
		}
		w.mu.Unlock()
		if len(batch) > 0 {
			w.begun.Store(int64(max(time.Since(w.made), 1)))
		}
		for i, fn := range batch {
			fn()
			batch[i] = nil
		}
		w.begun.Store(0)
		if idle = false; len(batch) > 0 {
			used = true
			if cap(batch) > 1024 { // of a burst
				batch = nil
			}
			continue
		}
		select {
		case <-w.wake:
		case <-timer.C:
			idle, used = !used, false
			timer.Reset(linger)
		}
	}
}

// Busy returns the time for which the worker has been running its present functions, or 0.
func (w *Worker) Busy() time.Duration {
	if begun := w.begun.Load(); begun != 0 {
		return time.Since(w.made) - time.Duration(begun)
	}
	return 0
}

// Stop refuses new work and waits for what is queued, until ctx ends, or until one of the queued functions would wait
// for Stop itself: see [Worker.StopWithin].
func (w *Worker) Stop(ctx context.Context) {
	w.mu.Lock()
	w.stopped = true
	w.mu.Unlock()
	w.signal()
	done := make(chan struct{})
	go func() { w.wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-w.own:
	case <-ctx.Done():
	}
}

// StopWithin tells the worker that one of its own functions stops it. From then on no Stop waits for the worker,
// because it would wait for that function.
func (w *Worker) StopWithin() { w.ownOnce.Do(func() { close(w.own) }) }

// Within reports whether the caller runs in a function of a worker.
func Within() bool {
	pcs := make([]uintptr, 1024) // a deep observer
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	for {
		f, more := frames.Next()
		if f.Function == runsWork {
			return true
		}
		if !more {
			return false
		}
	}
}

var runsWork = reflect.TypeFor[Worker]().PkgPath() + ".(*Worker).run"
