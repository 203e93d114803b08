package kit

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

// Observer records a client's events. Create one with [NewObserver].
type Observer struct {
	mu     sync.Mutex
	events []admin.Event
	ctxs   []context.Context
	more   chan struct{} // closed and replaced at every event
}

// NewObserver returns an Observer without events.
func NewObserver() *Observer { return &Observer{more: make(chan struct{})} }

// Option makes a client report its events to o.
func (o *Observer) Option() natslock.Option {
	return admin.WithObserver(func(ctx context.Context, ev admin.Event) {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.events = append(o.events, ev)
		o.ctxs = append(o.ctxs, ctx)
		close(o.more)
		o.more = make(chan struct{})
	})
}

// Len returns the number of events so far.
func (o *Observer) Len() int { return len(o.All()) }

// All returns the events so far.
func (o *Observer) All() []admin.Event {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.events)
}

// Contexts returns the contexts of the events so far.
func (o *Observer) Contexts() []context.Context {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.ctxs)
}

// Count returns the number of events of type typ about the named lock so far.
func (o *Observer) Count(typ admin.EventType, name string) (n int) {
	for _, ev := range o.All() {
		if ev.Type == typ && ev.Name == name {
			n++
		}
	}
	return n
}

// Wait returns the first event of type typ about the named lock, waiting for it if necessary.
func (o *Observer) Wait(t testing.TB, typ admin.EventType, name string) admin.Event {
	t.Helper()
	return o.WaitFrom(t, 0, typ, name)
}

// WaitFrom is [Observer.Wait], but skips the first from events; see [Observer.Len].
func (o *Observer) WaitFrom(t testing.TB, from int, typ admin.EventType, name string) admin.Event {
	t.Helper()
	timer := time.NewTimer(Patience)
	defer timer.Stop()
	for {
		o.mu.Lock()
		events, more := o.events, o.more
		o.mu.Unlock()
		for _, ev := range events[from:] {
			if ev.Type == typ && ev.Name == name {
				return ev
			}
		}
		select {
		case <-more:
		case <-timer.C:
			t.Fatalf("waited in vain for %v of %q", typ, name)
		}
	}
}
