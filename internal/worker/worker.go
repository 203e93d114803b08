// Package worker runs functions in the background, either one after another or each on its own goroutine.
package worker

import (
	"context"
	"reflect"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// linger is how long a worker's goroutine stays around when there is no work. A new goroutine for every lock would have
// to grow its stack each time.
const linger = time.Second

// Worker runs functions one after another on a goroutine that exists only while there is work, and a little longer. The
// queue is unbounded, so adding never blocks.
type Worker struct {
	mu      sync.Mutex
	queue   []func()
	running bool
	stopped bool
	wake    chan struct{}
	wg      sync.WaitGroup
	own     chan struct{} // closed when one of the worker's functions stops the worker; see [Worker.StopWithin]
	ownOnce sync.Once
	made    time.Time
	begun   atomic.Int64 // when the worker began to run its current functions, relative to made; 0 if it runs none
}

// New returns an idle worker.
func New() *Worker {
	return &Worker{wake: make(chan struct{}, 1), own: make(chan struct{}), made: time.Now()}
}

// Add queues fn. It returns false, and does not run fn, if the worker has been stopped.
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
	used, idle := false, false // work ran since the timer was set; none had when it fired
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
			if cap(batch) > 1024 { // left over from a burst
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

// Busy returns how long the worker has been running its current functions, or 0 if it runs none.
func (w *Worker) Busy() time.Duration {
	if begun := w.begun.Load(); begun != 0 {
		return time.Since(w.made) - time.Duration(begun)
	}
	return 0
}

// Stop rejects new work and waits for the queued functions until ctx ends, or until one of them would wait for Stop
// itself: see [Worker.StopWithin].
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

// StopWithin tells the worker that one of its own functions is stopping it. After that, no Stop waits for the worker,
// because it would be waiting for that function.
func (w *Worker) StopWithin() { w.ownOnce.Do(func() { close(w.own) }) }

// Within reports whether the caller is running inside a worker's function.
func Within() bool {
	pcs := make([]uintptr, 1024) // deep enough for an observer's stack
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
