// Package bridge gives the packages of this module access to what they need from package natslock but
// users do not. It sits below package natslock, so the types of that package are type parameters here.
// An importer names them once, where it stores the result of [Natslock] or [Admin] in a variable.
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

// Inside is what package natslock provides to the packages of this module.
type Inside[Client, Lock, Option, LockOption, Holder any] interface {
	// Acquire acquires a lock of any kind in any mode, for packages rwlock and semaphore.
	Acquire(ctx context.Context, c Client, kind record.Kind, mode record.Mode, wait bool, name string, opts []LockOption) (Lock, error)
	// Under runs fn while holding the lock that take acquires, for packages rwlock and semaphore.
	Under(ctx context.Context, take func(context.Context, string, ...LockOption) (Lock, error), name string,
		fn func(context.Context, Lock) error, opts []LockOption) error
	// Patient returns an option for an acquire that never overtakes another client, whether during its
	// turn or after its own release, and that shows its metadata only in the holder's record. It is for
	// package election.
	Patient() LockOption
	// Purpose returns an option that states a lock's purpose in its records, for packages election,
	// partition and script.
	Purpose(p string) LockOption
	// Permits returns an option that sets the number of permits of a semaphore, for package semaphore.
	Permits(n int) LockOption
	// Slot returns the number of the permit that l represents, for package semaphore.
	Slot(l Lock) (n int, ok bool)

	// Logger returns a client's logger, for package election.
	Logger(c Client) *slog.Logger
	// Process returns an option that makes a client's records identify a process other than the client's
	// own, for package script.
	Process(pid int) Option
	// Leave ends a lock that the client does not renew, but leaves its record in the bucket until its
	// TTL ends. It returns the record's key. It is for package script.
	Leave(l Lock) (key string, err error)

	// Admin returns a client's view of the locks of all clients, for packages natslock/admin and script.
	// It fails if the client was closed or ctx is nil.
	Admin(ctx context.Context, c Client) (*admin.Admin, error)
	// Public turns an internal error into one that users know, for package natslock/admin.
	Public(err error) error
	// HolderOf returns the holder that a record shows, for package natslock/admin.
	HolderOf(e record.Entry) Holder
	// Observe returns an option that makes a client call fn for every event on its locks, for package
	// natslock/admin.
	Observe(fn func(context.Context, session.Event)) Option

	// Open returns a client of the bucket kv, for package locktest.
	Open(kv kvstore.KV, opts []Option) (Client, error)
	// Judge returns, for each of a client's leases with this name, a function that ends the lease
	// according to what change makes of its record. It is for package locktest.
	Judge(c Client, name string) []func(change func(key string) kvstore.Record)
	// Waiting returns how many of a client's goroutines are waiting for a lock, for package locktest.
	Waiting(c Client, keys record.Keys) int

	// WrapStore returns an option that wraps a client's store, for fault injectors.
	WrapStore(wrap func(kvstore.KV) kvstore.KV) Option
	// Left returns the remaining validity of a lock, which is negative after its end, for tests.
	Left(l Lock) time.Duration
	// Drop acts as if a lock's handle had been dropped, for tests in fake time.
	Drop(l Lock)
}

// InsideAdmin is what package natslock/admin provides to packages election and mirror.
type InsideAdmin[Client, Holder, Info, Event any] interface {
	// Holder reads the holder of a mutex as the stream's leader sees it, without its queue. h is nil if
	// the mutex is free. The result reflects every change up to revision.
	Holder(ctx context.Context, c Client, name string) (h Holder, revision uint64, err error)
	// WatchHolder is like Admin.Watch, for the holder of a single mutex, without its queue.
	WatchHolder(ctx context.Context, c Client, name string) iter.Seq2[Event, error]
	// Follow is like Admin.Watch, but also yields the event on each key.
	Follow(ctx context.Context, c Client, pattern string) iter.Seq2[admin.Step, error]
	// InfoOf returns the public form of a view.
	InfoOf(v admin.View) Info
	// EventOf returns the public form of a change.
	EventOf(c admin.Change) Event
}

var natslock, natslockAdmin any

// SetNatslock sets what [Natslock] returns. Package natslock calls it when it is initialized.
func SetNatslock[Client, Lock, Option, LockOption, Holder any](in Inside[Client, Lock, Option, LockOption, Holder]) {
	natslock = in
}

// Natslock returns what package natslock has registered with [SetNatslock].
func Natslock[Client, Lock, Option, LockOption, Holder any]() Inside[Client, Lock, Option, LockOption, Holder] {
	return natslock.(Inside[Client, Lock, Option, LockOption, Holder])
}

// SetAdmin sets what [Admin] returns. Package natslock/admin calls it when it is initialized.
func SetAdmin[Client, Holder, Info, Event any](in InsideAdmin[Client, Holder, Info, Event]) {
	natslockAdmin = in
}

// Admin returns what package natslock/admin has registered with [SetAdmin].
func Admin[Client, Holder, Info, Event any]() InsideAdmin[Client, Holder, Info, Event] {
	return natslockAdmin.(InsideAdmin[Client, Holder, Info, Event])
}
