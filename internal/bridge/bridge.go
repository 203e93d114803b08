// Package bridge hands functions of package natslock to the packages of this module
// that need more than users do. Package natslock sets the variables when it is
// initialized; an importer asserts their types, which this package cannot name.
package bridge

var (
	// Acquire takes a lock of any kind in any mode, for package rwlock:
	//
	//	func(ctx context.Context, c *natslock.Client, kind natslock.Kind, mode natslock.Mode, wait bool, name string, opts []natslock.LockOption) (*natslock.Lock, error)
	Acquire any
	// WrapStore puts something between a client and its store, for package testutil:
	//
	//	func(wrap func(kvstore.KV) kvstore.KV) natslock.Option
	WrapStore any
	// Drop does what happens to a lock whose handle is dropped, for tests in fake time:
	//
	//	func(l *natslock.Lock)
	Drop any
	// Open returns a client of the bucket of a store, for package locktest:
	//
	//	func(kv kvstore.KV, opts []natslock.Option) (*natslock.Client, error)
	Open any
	// Judge ends a client's leases of a lock by what change makes of their records, for
	// package locktest:
	//
	//	func(c *natslock.Client, name string, change func(key string) kvstore.Record)
	Judge any
	// Waiting returns how many goroutines of a client wait for a lock, for package locktest:
	//
	//	func(c *natslock.Client, keys record.Keys) int
	Waiting any
)
