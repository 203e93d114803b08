// Package kvstore keeps records under keys in a NATS JetStream key-value bucket. It is the
// store that the locks are built on. Every record has a revision and a time to live, and
// every write is conditional. Watches report changes, including the expiry of records.
// Users of locks import package natslock, and need only the errors and perhaps [Config]
// from this package.
//
// [Open] finds or creates a bucket, verifies its settings, and returns a [Store]:
//
//	store, err := kvstore.Open(ctx, js, kvstore.Config{Replicas: 3})
//	...
//	revision, err := store.Create(ctx, "job.42", value, 15*time.Second)
//	...
//	revision, err = store.Update(ctx, "job.42", value, 15*time.Second, revision)
//
// A write succeeds, fails with [ErrConflict], or has an unknown outcome when no answer
// arrives: the server may apply it at once, half a minute later, or never.
//
// # Why not the key-value API of nats.go
//
// Its updates drop the TTL of a record. Each of its watches needs a consumer, and the
// first snapshot of a watch can miss keys. It sends no event when a record expires. Its
// configuration cannot express the bucket that such records need.
package kvstore

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/internal/kvstore"
)

// Config describes a bucket: how to find it, and how to create it when it is missing. The zero
// value is a file-based bucket named "natslock", created when missing. Its fields:
//
//   - Bucket is the name: letters, digits, '-' and '_'.
//   - Replicas is the number of servers that store the bucket: 1, 3 or 5. 0 means 3 on a cluster
//     and 1 elsewhere.
//   - Storage is jetstream.FileStorage or jetstream.MemoryStorage. Without replicas, records
//     in memory end with their server.
//   - MaxBytes limits the size. 0 means no limit. A full bucket refuses new records.
//   - Placement says where a missing bucket is created.
//   - NoCreate makes a missing bucket an error.
//   - Logger receives warnings about settings that work but should be changed.
//
// Replicas, Storage, MaxBytes and Placement apply when the bucket is created. The method
// StreamConfig returns the configuration of the bucket's stream, for declarative tools.
type Config = kvstore.Config

// Record is a stored record: Key, Value, Revision, the Time at which the server stored it,
// its TTL, and Deleted for a tombstone. Its method Remaining estimates the time it has
// left.
type Record = kvstore.Record

// Event is a hint that something changed: its Kind, the Record, and the record Before. Any
// user that may publish to the notification subject can forge one.
type Event = kvstore.Event

// The kinds of an [Event].
const (
	// Put: a record was written.
	Put = kvstore.Put
	// Deleted: a tombstone was written.
	Deleted = kvstore.Deleted
	// Expired: the TTL of the last record seen has ended by this client's clock, so the
	// server removes the record about now.
	Expired = kvstore.Expired
	// Recheck: events may have been missed. The event names no key.
	Recheck = kvstore.Recheck
)

// Store is a bucket accessed over a connection. It is safe for concurrent use. The first
// write or watch starts its goroutines and subscriptions.
type Store struct{ store *kvstore.Store }

// Open finds the bucket that cfg describes, and verifies its settings. It creates a missing
// bucket unless cfg forbids that. It uses the JetStream domain or API prefix of js.
//
// The error matches [ErrInvalidKey] for a name that no bucket can have, and [ErrInvalid] for
// any other invalid field. It matches [ErrBucketConfig] for a bucket that is unsafe or whose
// server is too old, [ErrNotFound] for a missing bucket that Open may not create,
// [ErrPermission] if this user may not look up or create the bucket, and [ErrUnavailable] if
// JetStream does not answer or the stream has no leader. If ctx has no deadline, Open waits
// for at most 10 s.
func Open(ctx context.Context, js jetstream.JetStream, cfg Config) (*Store, error) {
	if ctx == nil || js == nil {
		return nil, fmt.Errorf("open a bucket: %w: the context or the JetStream is nil", ErrInvalid)
	}
	s, err := kvstore.Open(ctx, js, cfg)
	if err != nil {
		return nil, err
	}
	return &Store{s}, nil
}

// ready refuses a store that was not made by Open, and a nil context.
func (s *Store) ready(ctx context.Context) error {
	switch {
	case s == nil || s.store == nil:
		return fmt.Errorf("%w: a kvstore.Store made without Open", ErrInvalid)
	case ctx == nil:
		return fmt.Errorf("%w: the context is nil", ErrInvalid)
	}
	return nil
}

// Create writes a record under a key that must have none, not even a tombstone. The server
// removes the record after ttl, rounded up to whole seconds. ttl must be more than 0 and at
// most 366 days, and the value at most 16 KiB long.
//
// Create returns the record's revision, or an error. Nothing was written if the error
// matches [ErrExists] (a *[ConflictError]: the key has a record), [ErrInFlight],
// [ErrNoStream], [ErrInvalidKey], [ErrInvalidTTL] or [ErrTooLarge]. After any other error
// the outcome may be unknown. The error matches [ErrUnavailable] if ctx ended or no answer
// came within 5 s, [ErrClosed] if the store is closed, and [ErrPermission] if the server
// refuses this user the write or its answer.
func (s *Store) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (revision uint64, err error) {
	if err := s.ready(ctx); err != nil {
		return 0, err
	}
	return s.store.Create(ctx, key, value, ttl)
}

// Update replaces the record at revision and returns the new revision. The TTL starts again.
// Errors are those of [Store.Create], with [ErrConflict] when the key has another revision.
func (s *Store) Update(ctx context.Context, key string, value []byte, ttl time.Duration, revision uint64) (uint64, error) {
	if err := s.ready(ctx); err != nil {
		return 0, err
	}
	return s.store.Update(ctx, key, value, ttl, revision)
}

// Delete replaces the record at revision with a tombstone that expires after a second, and
// returns the tombstone's revision. Errors are those of [Store.Update].
func (s *Store) Delete(ctx context.Context, key string, revision uint64) (uint64, error) {
	if err := s.ready(ctx); err != nil {
		return 0, err
	}
	return s.store.Delete(ctx, key, revision)
}

// Get returns the record or tombstone under key. With min = 0 any replica may answer, from a
// state that may lag. If min is a revision, of this key or another, the answer is from a
// state that contains it.
//
// The error matches [ErrNotFound] when the key has no record, and otherwise [ErrInvalidKey],
// [ErrUnavailable], [ErrPermission], [ErrClosed] or ctx's error.
func (s *Store) Get(ctx context.Context, key string, min uint64) (Record, error) {
	if err := s.ready(ctx); err != nil {
		return Record{}, err
	}
	return s.store.Get(ctx, key, min)
}

// List returns the live records whose keys match a pattern (NATS wildcards), in the order of
// their revisions. It misses no key that is live in a state that contains revision min. If
// one request cannot read all records, some may be from a later state than the others.
// Errors are those of [Store.Get].
func (s *Store) List(ctx context.Context, pattern string, min uint64) ([]Record, error) {
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	l, err := s.store.List(ctx, pattern, min)
	return l.Records, err
}

// Watch calls deliver for every change to a key that matches pattern, and when a record that
// it has seen change expires, until the caller calls stop. It delivers no initial state.
// deliver runs on the store's goroutines, possibly concurrently, and must not block.
//
// The error matches [ErrNoWatch] for a bucket that does not publish its changes, and
// otherwise [ErrInvalidKey], [ErrUnavailable] or [ErrClosed].
func (s *Store) Watch(pattern string, deliver func(Event)) (stop func(), err error) {
	if err := s.ready(context.Background()); err != nil {
		return nil, err
	}
	if deliver == nil {
		return nil, fmt.Errorf("watch %.64q: %w: the function to call is nil", pattern, ErrInvalid)
	}
	w, err := s.store.Watch(pattern, deliver)
	if err != nil {
		return nil, err
	}
	w.Track(Record{})
	return w.Stop, nil
}

// Close ends the store's watches, subscriptions and goroutines, and waits for the
// goroutines, so deliver of [Store.Watch] must not call it. The connection stays open. Calls
// that still wait for an answer return [ErrClosed].
func (s *Store) Close() {
	if s != nil && s.store != nil {
		s.store.Close()
	}
}
