// Package kvstore keeps records under keys in a NATS JetStream key-value bucket: the store
// that the locks are made of. Every record has a revision and a time to live, and every
// write is conditional. Watches report changes, and the ends of records too. Users of locks
// import package natslock, and need of this package the errors and perhaps [Config].
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
// first snapshot of a watch can miss keys. It sends no event when a record ends. Its
// configuration cannot express the bucket that such records need.
package kvstore

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/internal/kvstore"
)

// Config describes a bucket: how to find it, and how to create it when it is missing. The
// zero value is a bucket in files named "natslock", created when missing. Its fields:
//
//   - Bucket is the name: letters, digits, '-' and '_'.
//   - Replicas is the number of servers that store the bucket: 1, 3 or 5. 0 means 3 on a cluster
//     and 1 elsewhere.
//   - Storage is jetstream.FileStorage or jetstream.MemoryStorage. Without replicas, records
//     in memory end with their server.
//   - MaxBytes limits the size. 0 means no limit. A full bucket refuses new records.
//   - Placement says where a missing bucket is created.
//   - NoCreate makes a missing bucket an error.
//   - Logger receives warnings about settings that work but should be others.
//
// Replicas, Storage, MaxBytes and Placement count when the bucket is created. The method
// StreamConfig returns the stream of the bucket, for declarative tools.
type Config = kvstore.Config

// Record is a stored record: Key, Value, Revision, the Time at which the server
// stored it, its TTL, and Deleted for a tombstone. Its method Remaining estimates how long
// it has left.
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
	// Expired: the TTL of the last record seen has ended by this client's clock. The server
	// removes the record about now.
	Expired = kvstore.Expired
	// Recheck: events may have been missed. The event names no key.
	Recheck = kvstore.Recheck
)

// Store is a bucket reached over a connection. It is safe for concurrent use. It starts its
// goroutines and subscriptions with the first write or watch.
type Store struct{ store *kvstore.Store }

// Open finds the bucket of cfg and verifies its settings. It creates a missing bucket,
// unless cfg forbids it. It uses the JetStream domain or API prefix of js.
//
// The error matches [ErrInvalidKey] for a name that no bucket can have, and [ErrInvalid] for
// another wrong field. It matches [ErrBucketConfig] for a bucket that is not safe or whose
// server is too old, [ErrNotFound] for a missing bucket that Open may not create,
// [ErrPermission] when the server forbids this user to ask or to create, and
// [ErrUnavailable] when JetStream does not answer or the stream has no leader. Without a
// deadline in ctx Open waits for at most 10 s.
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

// ready refuses a store that Open has not made, and a nil context.
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
// removes the record after ttl, which is rounded up to whole seconds. ttl has to be more
// than 0 and at most 366 days, and the value at most 16 KiB long.
//
// Create returns the record's revision, or an error. It has written nothing if the error
// matches [ErrExists] (a *[ConflictError]: the key has a record), [ErrInFlight],
// [ErrNoStream], [ErrInvalidKey], [ErrInvalidTTL] or [ErrTooLarge]. After every other error
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

// Delete replaces the record at revision by a tombstone that ends by itself after a second,
// and returns the tombstone's revision. Errors are those of [Store.Update].
func (s *Store) Delete(ctx context.Context, key string, revision uint64) (uint64, error) {
	if err := s.ready(ctx); err != nil {
		return 0, err
	}
	return s.store.Delete(ctx, key, revision)
}

// Get returns the record under key, or the tombstone there. With min = 0 any replica may
// answer, with a state that may lag. With a revision of this key or another as min, the
// answer is from a state that contains it.
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
// one request cannot read all records, one of them may be of a later state than the others.
// Errors are those of [Store.Get].
func (s *Store) List(ctx context.Context, pattern string, min uint64) ([]Record, error) {
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	l, err := s.store.List(ctx, pattern, min)
	return l.Records, err
}

// Watch calls deliver for every change of a key that matches pattern, and for the ends of the
// records that it has seen change, until the caller calls stop. It delivers no initial
// state. deliver runs on goroutines of the store, several calls at a time perhaps, and must
// not block.
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

// Close ends the store's watches, subscriptions and goroutines and waits for the goroutines,
// so it must not be called from deliver of [Store.Watch]. The connection stays open. Calls
// that still wait for an answer return [ErrClosed].
func (s *Store) Close() {
	if s != nil && s.store != nil {
		s.store.Close()
	}
}
