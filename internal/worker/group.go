package worker

import (
	"context"
	"sync"
)

// Group runs each function on its own goroutine, which outlives the caller. Closing the client waits for all of them.
type Group struct {
	ctx context.Context // passed to the functions; it ends when Close gives up on them
	end context.CancelFunc

	mu    sync.Mutex
	ended bool
	n     int           // number of running functions
	idled chan struct{} // closed when n drops to 0; nil if no Wait needs it
}

// NewGroup returns an empty group.
func NewGroup() *Group {
	g := &Group{}
	g.ctx, g.end = context.WithCancel(context.Background())
	return g
}

// Context returns the context of the group's functions.
func (g *Group) Context() context.Context { return g.ctx }

// Begin registers work that the caller does itself and ends with Done. It returns false after Cancel, in which case
// Done must not be called.
func (g *Group) Begin() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended {
		return false
	}
	g.n++
	return true
}

// Done ends work that was registered with Begin.
func (g *Group) Done() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.n--; g.n == 0 && g.idled != nil {
		close(g.idled)
		g.idled = nil
	}
}

// Go runs fn on a new goroutine. After Cancel, it does nothing.
func (g *Group) Go(fn func(ctx context.Context)) {
	if g.Begin() {
		go func() { defer g.Done(); fn(g.ctx) }()
	}
}

// Cancel rejects further functions and ends the context of the running ones.
func (g *Group) Cancel() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ended = true
	g.end()
}

// Wait waits until nothing is running or ctx ends. A [sync.WaitGroup] would not do, because functions can begin during
// the wait.
func (g *Group) Wait(ctx context.Context) {
	g.mu.Lock()
	if g.n == 0 {
		g.mu.Unlock()
		return
	}
	if g.idled == nil {
		g.idled = make(chan struct{})
	}
	idled := g.idled
	g.mu.Unlock()
	select {
	case <-idled:
	case <-ctx.Done():
	}
}
