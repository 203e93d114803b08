package locktest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/natslock"
)

// faults are what goes wrong between the clients and the bucket.
type faults struct {
	mu     sync.Mutex
	err    error                    // of all requests
	delays map[string]time.Duration // of the writes about a name
	stores []*store
}

// store passes on what does not go wrong.
type store struct {
	kvstore.KV
	faults *faults

	// The following fields are under the mutex of faults.
	cut          bool
	onConnection []func(kvstore.ConnState)
	watches      map[*watch]struct{}
}

// around puts the faults between a client and its store.
func (f *faults) around(kv kvstore.KV) *store {
	s := &store{KV: kv, faults: f, watches: make(map[*watch]struct{})}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stores = append(f.stores, s)
	return s
}

func (f *faults) delay(name string, d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.delays == nil {
		f.delays = make(map[string]time.Duration)
	}
	if delete(f.delays, name); d > 0 {
		f.delays[name] = d
	}
}

// fail begins or ends an outage of all clients.
func (f *faults) fail(err error) {
	f.mu.Lock()
	stores := slices.Clone(f.stores)
	f.mu.Unlock()
	f.change(stores, func() { f.err = err })
}

// change changes what goes wrong. As a connection does, it notifies the clients whose outage begins or ends, which
// have missed the notifications of their watches.
func (f *faults) change(stores []*store, change func()) {
	f.mu.Lock()
	var was []error
	for _, s := range stores {
		was = append(was, s.failure())
	}
	change()
	var notify []func()
	for i, s := range stores {
		is := s.failure()
		if (was[i] == nil) == (is == nil) {
			continue
		}
		state := kvstore.Connected
		if is != nil {
			state = kvstore.Disconnected
		}
		for _, fn := range s.onConnection {
			notify = append(notify, func() { fn(state) })
		}
		if is == nil {
			for w := range s.watches {
				notify = append(notify, func() { w.deliver(kvstore.Event{Kind: kvstore.Recheck}) })
			}
		}
	}
	f.mu.Unlock()
	for _, fn := range notify {
		fn()
	}
}

func (f *faults) clear() {
	f.fail(nil)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.delays = nil
}

// now is what goes wrong with the requests of a client.
func (s *store) now() error {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	return s.failure()
}

func (s *store) failure() error {
	if s.cut {
		return errCut
	}
	return s.faults.err
}

// errCut is what a client meets that [Locker.Disconnect] has cut off.
var errCut = fmt.Errorf("%w: the client is disconnected", natslock.ErrUnavailable)

// Send applies the write, later if there is a delay.
func (s *store) Send(w kvstore.Write, done func(kvstore.Answer)) (forget func(), err error) {
	f := s.faults
	key, _ := record.ParseKey(w.Key)
	f.mu.Lock()
	d, failure := f.delays[key.Name], s.failure()
	f.mu.Unlock()
	if failure != nil {
		return nil, failure
	}
	if d == 0 || w.Delete {
		return s.KV.Send(w, done)
	}
	w.Value = bytes.Clone(w.Value)
	forgotten := make(chan struct{})
	time.AfterFunc(d, func() {
		if s.now() != nil {
			return // lost on its way
		}
		// An error says that the store is closed, and nobody waits for the answer.
		_, _ = s.KV.Send(w, func(a kvstore.Answer) {
			select {
			case <-forgotten:
			default:
				done(a)
			}
		})
	})
	return sync.OnceFunc(func() { close(forgotten) }), nil
}

// Denied returns the failure if it is that of a user without the permission.
func (s *store) Denied(string) error {
	if err := s.now(); errors.Is(err, natslock.ErrPermission) {
		return err
	}
	return nil
}

// Get reads, or fails.
func (s *store) Get(ctx context.Context, key string, min uint64) (kvstore.Record, error) {
	if err := s.now(); err != nil {
		return kvstore.Record{}, err
	}
	return s.KV.Get(ctx, key, min)
}

// List reads, or fails.
func (s *store) List(ctx context.Context, pattern string, min uint64, opts ...kvstore.ListOption) (kvstore.Listing, error) {
	if err := s.now(); err != nil {
		return kvstore.Listing{}, err
	}
	return s.KV.List(ctx, pattern, min, opts...)
}

// State reads, or fails.
func (s *store) State(ctx context.Context, pattern string) (kvstore.State, error) {
	if err := s.now(); err != nil {
		return kvstore.State{}, err
	}
	return s.KV.State(ctx, pattern)
}

// Verify returns the failure, or nil.
func (s *store) Verify(context.Context) error { return s.now() }

// Healthy returns the failure, or nil.
func (s *store) Healthy() error { return s.now() }

// OnConnection registers fn for the outages.
func (s *store) OnConnection(fn func(kvstore.ConnState)) (stop func()) {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	s.onConnection = append(s.onConnection, fn)
	return func() {} // no client stops before it is closed
}

// watch loses the notifications of an outage.
type watch struct {
	kvstore.Watch
	s       *store
	deliver func(kvstore.Event)
}

// Watch watches, but for the outages.
func (s *store) Watch(pattern string, deliver func(kvstore.Event)) (kvstore.Watch, error) {
	w := &watch{s: s, deliver: deliver}
	inner, err := s.KV.Watch(pattern, func(e kvstore.Event) {
		if e.Kind == kvstore.Expired || s.now() == nil {
			deliver(e)
		}
	})
	if err != nil {
		return nil, err
	}
	w.Watch = inner
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	s.watches[w] = struct{}{}
	return w, nil
}

// Stop ends the watch.
func (w *watch) Stop() {
	w.s.faults.mu.Lock()
	delete(w.s.watches, w)
	w.s.faults.mu.Unlock()
	w.Watch.Stop()
}
