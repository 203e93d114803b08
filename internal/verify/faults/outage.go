package faults

import (
	"errors"
	"maps"
	"slices"

	"github.com/natslock/locks/internal/kvstore"
)

// Fail starts an outage, or ends it if err is nil. During an outage, all requests fail with err,
// or with the error of a later call. No notification arrives, and a delayed write whose delay ends
// during the outage is lost. Like a connection, the Store reports the start and the end of the
// outage to the functions registered with OnConnection. It reports the end to the watches as
// well, because they may have missed events.
func (f *Store) Fail(err error) {
	f.mu.Lock()
	was := f.outage
	f.outage = err
	listeners := slices.Collect(maps.Keys(f.listeners))
	watches := slices.Collect(maps.Keys(f.watches))
	f.mu.Unlock()
	state := kvstore.Disconnected
	switch {
	case (was == nil) == (err == nil):
		return
	case err == nil:
		state = kvstore.Connected
	}
	f.call(func() {
		for _, fn := range listeners {
			(*fn)(state)
		}
		for _, w := range watches {
			if err == nil {
				w.deliver(kvstore.Event{Kind: kvstore.Recheck})
			}
		}
	})
}

// failure returns the outage's error, or nil.
func (f *Store) failure() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.outage
}

// Denied returns the outage's error if it reports a missing permission, and otherwise asks the
// wrapped store.
func (f *Store) Denied(key string) error {
	if err := f.failure(); errors.Is(err, kvstore.ErrPermission) {
		return err
	}
	return f.wrapped.Denied(key)
}

// Healthy returns the outage's error. Without an outage, it asks the wrapped store.
func (f *Store) Healthy() error {
	if err := f.failure(); err != nil {
		return err
	}
	return f.wrapped.Healthy()
}

// OnConnection registers fn for outages and for the wrapped store's connection changes.
func (f *Store) OnConnection(fn func(kvstore.ConnState)) (stop func()) {
	stopInner := f.wrapped.OnConnection(fn)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.listeners[&fn] = struct{}{}
	return func() {
		stopInner()
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.listeners, &fn)
	}
}
