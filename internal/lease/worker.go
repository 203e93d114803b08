package lease

import (
	"context"
	"sync"
	"time"
)

// workerLinger is how long a worker's goroutine stays when there is nothing to
// do: a new one for every lock would have to grow its stack every time.
const workerLinger = time.Second

// worker runs functions one after the other on a goroutine that exists only
// while there are any, and a little longer. The queue has no limit, so that
// adding never blocks.
type worker struct {
	mu      sync.Mutex
	queue   []func()
	running bool
	stopped bool
	wake    chan struct{}
	wg      sync.WaitGroup
}

func newWorker() *worker { return &worker{wake: make(chan struct{}, 1)} }

// add returns false when the worker was stopped: then fn is not run.
func (w *worker) add(fn func()) bool {
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
	w.poke()
	return true
}

func (w *worker) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *worker) run() {
	timer := time.NewTimer(workerLinger)
	defer timer.Stop()
	var batch []func()
	used, idle := false, false // since the timer was set, and when it fired
	for {
		w.mu.Lock()
		batch, w.queue = w.queue, batch[:0]
		if len(batch) == 0 && (idle || w.stopped) {
			w.running = false
			w.mu.Unlock()
			return
		}
		w.mu.Unlock()
		for i, fn := range batch {
			fn()
			batch[i] = nil
		}
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
			timer.Reset(workerLinger)
		}
	}
}

// stop refuses new work and waits for what is queued, until ctx ends.
func (w *worker) stop(ctx context.Context) {
	w.mu.Lock()
	w.stopped = true
	w.mu.Unlock()
	w.poke()
	waitFor(ctx, &w.wg)
}
