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
)
