// Package bridge hands functions of package natslock to the packages of this module
// that need more than users do. Package natslock sets the variables when it is
// initialized; an importer asserts their types, which this package cannot name.
package bridge

var (
	// Acquire takes a lock of any kind in any mode, for packages rwlock and semaphore:
	//
	//	func(ctx context.Context, c *natslock.Client, kind record.Kind, mode record.Mode, wait bool, name string, opts []natslock.LockOption) (*natslock.Lock, error)
	Acquire any
	// Patient has an acquire pass no other client, neither in a turn nor after its own
	// release, and shows its metadata in the record of the holder only. It is for package
	// election:
	//
	//	func() natslock.LockOption
	Patient any
	// Purpose says in the records of a lock what it is for, for packages election, partition and script:
	//
	//	func(p string) natslock.LockOption
	Purpose any
	// Holder reads the holder of a mutex as the stream's leader has it, without its queue.
	// It is nil if the mutex is free. No change up to the revision is newer. It is for
	// package election:
	//
	//	func(ctx context.Context, c *natslock.Client, name string) (h *admin.Holder, revision uint64, err error)
	Holder any
	// ConnectionClosed says whether an error means that the connection was closed for good,
	// for package election:
	//
	//	func(err error) bool
	ConnectionClosed any
	// Logger is that of a client, for package election:
	//
	//	func(c *natslock.Client) *slog.Logger
	Logger any
	// WatchHolder is Admin.Watch for the holder of one mutex, without its queue. It is for
	// package election:
	//
	//	func(ctx context.Context, c *natslock.Client, name string) iter.Seq2[admin.Event, error]
	WatchHolder any
	// Follow is Admin.Watch with the event on each key, for package mirror:
	//
	//	func(ctx context.Context, c *natslock.Client, pattern string) iter.Seq2[admin.Step, error]
	Follow any
	// InfoOf returns what records show of a lock, and EventOf the event of a change, for package mirror:
	//
	//	func(v admin.View) natslockadmin.Info
	//	func(c admin.Change) natslockadmin.Event
	InfoOf, EventOf any
	// Permits says how many permits a semaphore has, for package semaphore:
	//
	//	func(n int) natslock.LockOption
	Permits any
	// Slot returns the number of the permit that a lock is, for package semaphore:
	//
	//	func(l *natslock.Lock) (n int, ok bool)
	Slot any
	// Leave ends a lock that the client does not renew, and leaves its record in the bucket until
	// its TTL ends. It says under which key. It is for package script:
	//
	//	func(l *natslock.Lock) (key string, err error)
	Leave any
	// Admin is a client's view of the locks of all clients, for packages natslock/admin and script. The error is that
	// of a client that was closed, or of a nil context:
	//
	//	func(ctx context.Context, c *natslock.Client) (*admin.Admin, error)
	Admin any
	// Public turns an error of the machinery into one that users know, for package natslock/admin:
	//
	//	func(err error) error
	Public any
	// HolderOf returns the holder that a record shows, for package natslock/admin:
	//
	//	func(e record.Entry) *natslock.Holder
	HolderOf any
	// Observe has a client call fn for what its locks do, for package natslock/admin:
	//
	//	func(fn func(context.Context, session.Event)) natslock.Option
	Observe any
	// Process has the records of a client name another process than the client's, for package
	// script:
	//
	//	func(pid int) natslock.Option
	Process any
	// WrapStore puts something between a client and its store, for fault injectors:
	//
	//	func(wrap func(kvstore.KV) kvstore.KV) natslock.Option
	WrapStore any
	// Left returns how long the validity of a lock lasts, negative after its end, for tests:
	//
	//	func(l *natslock.Lock) time.Duration
	Left any
	// Drop does what happens to a lock whose handle is dropped, for tests in fake time:
	//
	//	func(l *natslock.Lock)
	Drop any
	// Open returns a client of the bucket of a store, for package locktest:
	//
	//	func(kv kvstore.KV, opts []natslock.Option) (*natslock.Client, error)
	Open any
	// Judge returns for each of a client's leases under a name how to end it by what change
	// makes of its record, for package locktest:
	//
	//	func(c *natslock.Client, name string) []func(change func(key string) kvstore.Record)
	Judge any
	// Waiting returns how many goroutines of a client wait for a lock, for package locktest:
	//
	//	func(c *natslock.Client, keys record.Keys) int
	Waiting any
)
