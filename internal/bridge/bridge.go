// Package bridge shows the packages of this module what they need of package natslock, and users do not.
// It stands below package natslock, so the types from there are parameters: an importer names them once,
// with the variable that it keeps the result of [Natslock] or [Admin] in.
package bridge

import (
	"context"
	"iter"
	"log/slog"
	"time"

	"github.com/natslock/locks/internal/admin"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
)

// Inside is what package natslock can do for the packages of this module.
type Inside[Client, Lock, Option, LockOption, Holder any] interface {
	// Acquire takes a lock of any kind in any mode, for packages rwlock and semaphore.
	Acquire(ctx context.Context, c Client, kind record.Kind, mode record.Mode, wait bool, name string, opts []LockOption) (Lock, error)
	// Under runs fn under the lock that take takes, for packages rwlock and semaphore.
	Under(ctx context.Context, take func(context.Context, string, ...LockOption) (Lock, error), name string,
		fn func(context.Context, Lock) error, opts []LockOption) error
	// Patient has an acquire pass no other client, neither in a turn nor after its own
	// release, and shows its metadata in the record of the holder only. It is for package
	// election.
	Patient() LockOption
	// Purpose says in the records of a lock what it is for, for packages election, partition and script.
	Purpose(p string) LockOption
	// Permits says how many permits a semaphore has, for package semaphore.
	Permits(n int) LockOption
	// Slot returns the number of the permit that a lock is, for package semaphore.
	Slot(l Lock) (n int, ok bool)

	// Logger is that of a client, for package election.
	Logger(c Client) *slog.Logger
	// Process has the records of a client name another process than the client's, for package
	// script.
	Process(pid int) Option
	// Leave ends a lock that the client does not renew, and leaves its record in the bucket until
	// its TTL ends. It returns the key of the record. It is for package script.
	Leave(l Lock) (key string, err error)

	// Admin is a client's view of the locks of all clients, for packages natslock/admin and script. The error is that
	// of a client that was closed, or of a nil context.
	Admin(ctx context.Context, c Client) (*admin.Admin, error)
	// Public turns an error of the machinery into one that users know, for package natslock/admin.
	Public(err error) error
	// HolderOf returns the holder that a record shows, for package natslock/admin.
	HolderOf(e record.Entry) Holder
	// Observe has a client call fn for what its locks do, for package natslock/admin.
	Observe(fn func(context.Context, session.Event)) Option

	// Open returns a client of the bucket of a store, for package locktest.
	Open(kv kvstore.KV, opts []Option) (Client, error)
	// Judge returns for each of a client's leases under a name how to end it by what change
	// makes of its record, for package locktest.
	Judge(c Client, name string) []func(change func(key string) kvstore.Record)
	// Waiting returns how many goroutines of a client wait for a lock, for package locktest.
	Waiting(c Client, keys record.Keys) int

	// WrapStore puts something between a client and its store, for fault injectors.
	WrapStore(wrap func(kvstore.KV) kvstore.KV) Option
	// Left returns how long the validity of a lock lasts, negative after its end, for tests.
	Left(l Lock) time.Duration
	// Drop does what happens to a lock whose handle is dropped, for tests in fake time.
	Drop(l Lock)
}

// InsideAdmin is what package natslock/admin can do for packages election and mirror.
type InsideAdmin[Client, Holder, Info, Event any] interface {
	// Holder reads the holder of a mutex as the stream's leader has it, without its queue.
	// It is nil if the mutex is free. No change up to the revision is newer.
	Holder(ctx context.Context, c Client, name string) (h Holder, revision uint64, err error)
	// WatchHolder is Admin.Watch for the holder of one mutex, without its queue.
	WatchHolder(ctx context.Context, c Client, name string) iter.Seq2[Event, error]
	// Follow is Admin.Watch with the event on each key.
	Follow(ctx context.Context, c Client, pattern string) iter.Seq2[admin.Step, error]
	// InfoOf returns what records show of a lock.
	InfoOf(v admin.View) Info
	// EventOf returns the event of a change.
	EventOf(c admin.Change) Event
}

var natslock, natslockAdmin any

// SetNatslock is called by package natslock when it is initialized.
func SetNatslock[Client, Lock, Option, LockOption, Holder any](in Inside[Client, Lock, Option, LockOption, Holder]) {
	natslock = in
}

// Natslock returns what package natslock has set.
func Natslock[Client, Lock, Option, LockOption, Holder any]() Inside[Client, Lock, Option, LockOption, Holder] {
	return natslock.(Inside[Client, Lock, Option, LockOption, Holder])
}

// SetAdmin is called by package natslock/admin when it is initialized.
func SetAdmin[Client, Holder, Info, Event any](in InsideAdmin[Client, Holder, Info, Event]) {
	natslockAdmin = in
}

// Admin returns what package natslock/admin has set.
func Admin[Client, Holder, Info, Event any]() InsideAdmin[Client, Holder, Info, Event] {
	return natslockAdmin.(InsideAdmin[Client, Holder, Info, Event])
}
