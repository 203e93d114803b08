package session

import (
	"context"
	"sync"
)

// work is the clean-up that outlives its caller. Close waits for it.
type work struct {
	ctx context.Context // of the clean-up; ends when Close gives up on it
	end context.CancelFunc

	mu    sync.Mutex
	ended bool
	n     int           // under way
	idled chan struct{} // closed when n falls to 0; nil: nobody waits for that
}

// begin registers work; false when it is too late. The caller ends it with done.
func (w *work) begin() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return false
	}
	w.n++
	return true
}

func (w *work) done() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.n--; w.n == 0 && w.idled != nil {
		close(w.idled)
		w.idled = nil
	}
}

// background runs fn on a goroutine of its own, if it is not too late.
func (w *work) background(fn func(ctx context.Context)) {
	if w.begin() {
		go func() { defer w.done(); fn(w.ctx) }()
	}
}

// cancel refuses further work and ends the context of what is under way.
func (w *work) cancel() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	w.end()
}

// awaitIdle waits until no work is under way or ctx ends. A WaitGroup does not do:
// work begins during the wait.
func (w *work) awaitIdle(ctx context.Context) {
	w.mu.Lock()
	if w.n == 0 {
		w.mu.Unlock()
		return
	}
	if w.idled == nil {
		w.idled = make(chan struct{})
	}
	idled := w.idled
	w.mu.Unlock()
	select {
	case <-idled:
	case <-ctx.Done():
	}
}
