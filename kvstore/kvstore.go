// Package kvstore stores expiring records in a NATS JetStream key-value bucket. It is the store
// that the locks are built on. Every record has a revision and a time to live, every write is
// conditional, and watches report changes, including the expiry of records. Programs that use
// locks should import package natslock; they need only the errors and perhaps [Config] from this
// package.
//
// [Open] finds or creates a bucket, verifies its settings, and returns a [Store]:
//
//	store, err := kvstore.Open(ctx, js, kvstore.Config{Replicas: 3})
//	...
//	revision, err := store.Create(ctx, "job.42", value, 15*time.Second)
//	...
//	revision, err = store.Update(ctx, "job.42", value, 15*time.Second, revision)
//
// A write succeeds, fails with [ErrConflict], or has an unknown outcome if no reply arrives: the
// server may apply it immediately, half a minute later, or never.
//
// # Why not the key-value API of nats.go
//
// With that API, an update drops a record's TTL, every watch needs a consumer, a watch's initial
// snapshot can miss keys, and no event reports that a record has expired. Nor can that API's
// configuration express the settings that these records need.
package kvstore

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/internal/kvstore"
)

// Config describes a bucket: how to find it, and how to create it if it is missing. The zero
// value describes a file-backed bucket named "natslock", to be created if it is missing. Its
// fields:
//
//   - Bucket is the name. It may contain letters, digits, '-' and '_'.
//   - Replicas is the number of servers that store the bucket: 1, 3 or 5. 0 means 3 on a cluster
//     and 1 elsewhere.
//   - Storage is jetstream.FileStorage or jetstream.MemoryStorage. Without replicas, records in
//     memory are lost when their server stops.
//   - MaxBytes limits the size. 0 means no limit. A full bucket refuses new records.
//   - Placement determines where a missing bucket is created.
//   - NoCreate makes Open fail if the bucket is missing.
//   - Logger receives warnings about settings that work but should be changed.
//
// Replicas, Storage, MaxBytes and Placement apply when the bucket is created. The StreamConfig
// method returns the configuration of the bucket's stream, for use with declarative tools.
type Config = kvstore.Config

// Record is a stored record. It has a Key, a Value, a Revision, the Time at which the server
// stored it, a TTL, and Deleted, which marks a tombstone. The Remaining method estimates how
// long the record has left to live.
type Record = kvstore.Record

// Event is a hint that something changed: its Kind, the Record concerned, and the record Before
// it. Any user who is allowed to publish on the notification subject can forge one.
type Event = kvstore.Event

// The kinds of [Event].
const (
	// Put means that a record was written.
	Put = kvstore.Put
	// Deleted means that a tombstone was written.
	Deleted = kvstore.Deleted
	// Expired means that the TTL of the last record seen has ended according to this client's
	// clock. The server deletes the record at about the same time.
	Expired = kvstore.Expired
	// Recheck means that events may have been missed. The event names no key.
	Recheck = kvstore.Recheck
)

// Store is a bucket accessed over a connection. It is safe for concurrent use. It starts its
// goroutines and subscriptions on the first write or watch.
type Store struct{ store *kvstore.Store }

// Open finds the bucket that cfg describes and verifies its settings. It creates the bucket if
// it is missing, unless cfg forbids that. It uses js's JetStream domain or API prefix.
//
// The error matches [ErrInvalidKey] if no bucket can have the given name, and [ErrInvalid] if
// any other field is invalid. It matches [ErrBucketConfig] if the bucket is unsafe or its server
// is too old, [ErrNotFound] if the bucket is missing and cfg forbids creating it,
// [ErrPermission] if this user is not allowed to look up or create the bucket, and
// [ErrUnavailable] if JetStream does not respond or the stream has no leader. If ctx has no
// deadline, Open waits at most 10 s.
func Open(ctx context.Context, js jetstream.JetStream, cfg Config) (*Store, error) {
	if ctx == nil || js == nil {
		return nil, fmt.Errorf("open bucket: %w: the context or the JetStream is nil", ErrInvalid)
	}
	s, err := kvstore.Open(ctx, js, cfg)
	if err != nil {
		return nil, err
	}
	return &Store{s}, nil
}

// ready rejects a store that was not created by Open, and a nil context.
func (s *Store) ready(ctx context.Context) error {
	switch {
	case s == nil || s.store == nil:
		return fmt.Errorf("%w: the kvstore.Store was not created by Open", ErrInvalid)
	case ctx == nil:
		return fmt.Errorf("%w: the context is nil", ErrInvalid)
	}
	return nil
}

// Create writes a record under a key that has neither a record nor a tombstone. The server
// deletes the record after ttl, which is rounded up to whole seconds. ttl must be positive and
// at most 366 days, and the value at most 16 KiB long.
//
// Create returns the record's revision, or an error. Nothing was written if the error matches
// [ErrExists] (a *[ConflictError], because the key has a record), [ErrInFlight], [ErrNoStream],
// [ErrInvalidKey], [ErrInvalidTTL] or [ErrTooLarge]. After any other error the outcome may be
// unknown. Such an error matches [ErrUnavailable] if ctx ended or no reply arrived within 5 s,
// [ErrClosed] if the store is closed, and [ErrPermission] if the server denies this user the
// write or its reply.
func (s *Store) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (revision uint64, err error) {
	if err := s.ready(ctx); err != nil {
		return 0, err
	}
	return s.store.Create(ctx, key, value, ttl)
}

// Update replaces the record at revision and returns the new revision. The TTL starts over.
// Errors are those of [Store.Create], with [ErrConflict] in place of [ErrExists] if the key has
// a different revision.
func (s *Store) Update(ctx context.Context, key string, value []byte, ttl time.Duration, revision uint64) (uint64, error) {
	if err := s.ready(ctx); err != nil {
		return 0, err
	}
	return s.store.Update(ctx, key, value, ttl, revision)
}

// Delete replaces the record at revision with a tombstone, which expires after a second, and
// returns the tombstone's revision. Errors are those of [Store.Update].
func (s *Store) Delete(ctx context.Context, key string, revision uint64) (uint64, error) {
	if err := s.ready(ctx); err != nil {
		return 0, err
	}
	return s.store.Delete(ctx, key, revision)
}

// Get returns the record or tombstone under key. If min is 0, any replica may serve the read,
// even one that lags. Otherwise min is a revision of this key or any other, and the result comes
// from a state that contains it.
//
// The error matches [ErrNotFound] if the key has no record, and otherwise [ErrInvalidKey],
// [ErrUnavailable], [ErrPermission], [ErrClosed] or ctx's error.
func (s *Store) Get(ctx context.Context, key string, min uint64) (Record, error) {
	if err := s.ready(ctx); err != nil {
		return Record{}, err
	}
	return s.store.Get(ctx, key, min)
}

// List returns the live records whose keys match pattern, which may contain NATS wildcards, in
// revision order. It misses no key that is live in a state that contains revision min. If a
// single request cannot read all the records, some may come from a later state than others.
// Errors are those of [Store.Get].
func (s *Store) List(ctx context.Context, pattern string, min uint64) ([]Record, error) {
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	l, err := s.store.List(ctx, pattern, min)
	return l.Records, err
}

// Watch calls deliver for every change to a key that matches pattern, and for the expiry of
// every record it has seen change, until stop is called. It does not deliver the initial state.
// deliver runs on the store's goroutines, possibly concurrently, and must not block.
//
// The error matches [ErrNoWatch] if the bucket does not publish its changes, and otherwise
// [ErrInvalidKey], [ErrUnavailable] or [ErrClosed].
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

// Close ends the store's watches, subscriptions and goroutines. It waits for the goroutines, so
// the deliver function of [Store.Watch] must not call it. The connection stays open. Calls that
// are still waiting for a reply return [ErrClosed].
func (s *Store) Close() {
	if s != nil && s.store != nil {
		s.store.Close()
	}
}
