package faults

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/plain"
)

// ReadOp names a reading method of [kvstore.KV].
type ReadOp string

// The reading methods that [Store.FailReads] can make fail.
const (
	ReadGet    ReadOp = "Get"
	ReadList   ReadOp = "List"
	ReadState  ReadOp = "State"
	ReadVerify ReadOp = "Verify"
)

// errHang is a distinct type so that no other error equals Hang.
type errHang struct{}

func (errHang) Error() string { return "no answer until the context is done" }

// Hang, when returned by a rule of [Store.FailReads], makes the read wait until its context is
// done. The read then fails with an error that matches both kvstore.ErrUnavailable and the
// context's error.
var Hang error = errHang{}

// FailReads sets the rule that decides which reads fail from now on. A nil rule removes it.
// asked is the key or pattern being read, or empty for Verify. For a list it is only the
// pattern, even with [kvstore.Beside]. If the rule returns an error, the read returns that
// error without asking the store. If the rule returns nil, the read passes; if it returns
// [Hang], the read gets no answer.
func (f *Store) FailReads(rule func(op ReadOp, asked string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reads = rule
}

// read returns an error if an outage or the rule makes the read fail.
func (f *Store) read(ctx context.Context, op ReadOp, what string) error {
	f.mu.Lock()
	rule, err := f.reads, f.outage
	f.mu.Unlock()
	if err == nil && rule != nil {
		err = rule(op, what)
	}
	if err == nil {
		return nil
	}
	f.count(&f.counts.ReadsFailed)
	if err != Hang {
		return err
	}
	select {
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", kvstore.ErrUnavailable, plain.EndOf(ctx))
	case <-f.done:
		return kvstore.ErrClosed
	}
}

// Get calls the wrapped store, unless the rule of [Store.FailReads] makes it fail.
func (f *Store) Get(ctx context.Context, key string, min uint64) (kvstore.Record, error) {
	if err := f.read(ctx, ReadGet, key); err != nil {
		return kvstore.Record{}, err
	}
	return f.wrapped.Get(ctx, key, min)
}

// List calls the wrapped store, unless the rule of [Store.FailReads] makes it fail.
func (f *Store) List(ctx context.Context, pattern string, min uint64, opts ...kvstore.ListOption) (kvstore.Listing, error) {
	if err := f.read(ctx, ReadList, pattern); err != nil {
		return kvstore.Listing{}, err
	}
	return f.wrapped.List(ctx, pattern, min, opts...)
}

// State calls the wrapped store, unless the rule of [Store.FailReads] makes it fail.
func (f *Store) State(ctx context.Context, pattern string) (kvstore.State, error) {
	if err := f.read(ctx, ReadState, pattern); err != nil {
		return kvstore.State{}, err
	}
	return f.wrapped.State(ctx, pattern)
}

// Verify calls the wrapped store, unless the rule of [Store.FailReads] makes it fail.
func (f *Store) Verify(ctx context.Context) error {
	if err := f.read(ctx, ReadVerify, ""); err != nil {
		return err
	}
	return f.wrapped.Verify(ctx)
}

// Watch watches the wrapped store. The rule of [Store.DropEvents] or the rates may lose events,
// and [Store.Forge] may add some.
func (f *Store) Watch(pattern string, deliver func(kvstore.Event)) (kvstore.Watch, error) {
	w := &faultWatch{f: f, pattern: pattern, to: deliver}
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return nil, kvstore.ErrClosed
	}
	f.watches[w] = struct{}{} // before the first event can arrive
	f.mu.Unlock()
	inner, err := f.wrapped.Watch(pattern, func(ev kvstore.Event) {
		if f.drops(ev) {
			return
		}
		f.call(func() { w.deliver(ev) })
	})
	if err != nil {
		w.off()
		return nil, err
	}
	w.inner = inner
	return w, nil
}

// drops decides whether an event is lost.
func (f *Store) drops(ev kvstore.Event) bool {
	f.mu.Lock()
	rule, rate, out := f.drop, f.rates.DropEvent, f.outage != nil
	f.events++
	n := f.events
	f.mu.Unlock()
	lost := out && ev.Kind != kvstore.Expired // Expired events come from the client's own clock
	lost = lost || rule != nil && rule(ev)
	if !lost && rate > 0 && isNotification(ev) {
		// This random stream is independent of the one for writes.
		lost = rand.New(rand.NewPCG(f.seed, ^n)).Float64() < rate
	}
	if lost {
		f.count(&f.counts.EventsDropped)
	}
	return lost
}

// faultWatch is a watch through a Store.
type faultWatch struct {
	f       *Store
	pattern string
	to      func(kvstore.Event)
	inner   kvstore.Watch
}

func (w *faultWatch) deliver(ev kvstore.Event) {
	w.f.mu.Lock()
	_, on := w.f.watches[w]
	w.f.mu.Unlock()
	if on {
		w.to(ev)
	}
}

func (w *faultWatch) Track(r kvstore.Record) { w.inner.Track(r) }

func (w *faultWatch) Stop() {
	w.off()
	w.inner.Stop()
}

func (w *faultWatch) off() {
	w.f.mu.Lock()
	defer w.f.mu.Unlock()
	delete(w.f.watches, w)
}
