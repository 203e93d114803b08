package bucket

import (
	"context"
	"sync"
	"time"
)

// linger is how long a worker's goroutine stays when there is nothing to
// do: a new one for every lock would have to grow its stack every time.
const linger = time.Second

// Worker runs functions one after the other on a goroutine that exists only
// while there are any, and a little longer. The queue has no limit, so that
// adding never blocks.
type Worker struct {
	mu      sync.Mutex
	queue   []func()
	running bool
	stopped bool
	wake    chan struct{}
	wg      sync.WaitGroup
}

// NewWorker returns a worker without work.
func NewWorker() *Worker { return &Worker{wake: make(chan struct{}, 1)} }

// Add queues fn. It returns false when the worker was stopped: then fn is not run.
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
	w.poke()
	return true
}

func (w *Worker) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *Worker) run() {
	timer := time.NewTimer(linger)
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
			timer.Reset(linger)
		}
	}
}

// Stop refuses new work and waits for what is queued, until ctx ends.
func (w *Worker) Stop(ctx context.Context) {
	w.mu.Lock()
	w.stopped = true
	w.mu.Unlock()
	w.poke()
	waitFor(ctx, &w.wg)
}

// waitFor waits for wg until ctx ends.
func waitFor(ctx context.Context, wg *sync.WaitGroup) {
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
	}
}
