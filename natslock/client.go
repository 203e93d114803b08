package natslock

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"weak"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/internal/admin"
	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/call"
	"github.com/natslock/locks/internal/cohort"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/plain"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
)

// Client acquires locks in one bucket. Create it with [New]; one per connection is enough.
// Methods of a zero Client return an error that matches [ErrInvalid], or zero values.
type Client struct {
	session *session.Session
	locks   *cohort.Client
	admin   *admin.Admin
	bucket  *bucket.Bucket
}

var errNoClient = fmt.Errorf("%w: the natslock.Client was not created by New", ErrInvalid)

// ready refuses a client that New did not create.
func (c *Client) ready() error {
	if c == nil || c.session == nil {
		return errNoClient
	}
	return nil
}

var errNoContext = fmt.Errorf("%w: the context is nil", ErrInvalid)

// readyFor refuses a client that New did not create, and a nil context.
func (c *Client) readyFor(ctx context.Context) error {
	if err := c.ready(); err != nil {
		return err
	}
	if ctx == nil {
		return errNoContext
	}
	return nil
}

// New opens the bucket and verifies that its settings are safe for locks. It creates a missing
// bucket unless [WithCreate] forbids that. If ctx has no deadline, New waits up to 10 s for the
// connection and the server.
//
// The error matches [ErrInvalid], [ErrPermission], or [ErrUnavailable] if there is no connection
// or JetStream, or the bucket has no leader. It matches kvstore.ErrNotFound if the bucket is
// missing and New is not allowed to create it, and kvstore.ErrBucketConfig if the bucket is
// unsafe for locks, in which case the text says how to repair it.
//
// The caller still owns the connection. Open it with nats.MaxReconnects(-1) and
// nats.IgnoreAuthErrorAbort(), otherwise nats.go closes it for good after an outage of two
// minutes or a second refused login: see docs/guide/shutdown.md.
func New(ctx context.Context, nc *nats.Conn, opts ...Option) (*Client, error) {
	cfg, err := configOf(opts)
	if err != nil {
		return nil, err
	}
	if ctx == nil {
		return nil, fmt.Errorf("natslock: %w", errNoContext)
	}
	if cfg.js == nil {
		if nc == nil {
			return nil, fmt.Errorf("natslock: %w: no connection", ErrInvalid)
		}
		js, err := jetstream.New(nc)
		if err != nil {
			return nil, fmt.Errorf("natslock: %w: %w", ErrUnavailable, err)
		}
		cfg.js = js
	}
	cfg.store.Bucket = cmp.Or(cfg.bucket, cfg.store.Bucket)
	cfg.store.Replicas = cmp.Or(cfg.replicas, cfg.store.Replicas)
	cfg.store.NoCreate = cfg.store.NoCreate || !cfg.create
	cfg.store.Logger = cmp.Or(cfg.store.Logger, cfg.session.Logger)
	if name := cfg.js.Conn().Opts.Name; cfg.owner == "" && name != "" && len(name) <= maxName {
		cfg.owner = name + "@" + process()
	}
	store, err := kvstore.Open(ctx, cfg.js, cfg.store)
	if err != nil {
		return nil, fmt.Errorf("natslock: %w", err)
	}
	return cfg.client(store), nil
}

// maxName is the longest connection name, in bytes, that the default owner includes.
const maxName = 128

// process identifies this process across machines.
func process() string {
	host, _ := os.Hostname()
	return fmt.Sprintf("%s:%d", host, os.Getpid())
}

// client returns a Client that stores its locks in kv.
func (cfg config) client(kv kvstore.KV) *Client {
	if cfg.wrap != nil {
		kv = cfg.wrap(kv)
	}
	b := bucket.New(kv, cmp.Or(cfg.owner, process()), nil)
	if cfg.pid != 0 {
		b.StandFor(cfg.pid)
	}
	held := session.New(b, cfg.session)
	return &Client{session: held, locks: cohort.New(b, held, cfg.turn, cfg.lingering), admin: admin.New(b, held), bucket: b}
}

// Lock acquires the mutex called name. It waits in the queue, even through outages, until ctx
// ends or [MaxWait] passes. ctx is also the parent of the lock's context: see [Detached].
//
// Lock returns the held lock, or an error and no lock. If the wait ended, the error is a
// *[TimeoutError]. The error matches [ErrUnavailable] if the bucket no longer exists, the
// connection is closed, or the servers answer but the stream has had no leader for 15 s. It
// matches kvstore.ErrBucketConfig if the bucket's settings are no longer safe, and otherwise
// [ErrInvalid], [ErrPermission] or [ErrClosed].
//
// When the wait ends, Lock takes up to 100 ms to leave the queue, or up to a minute if the
// network accepts no bytes but has not failed.
func (c *Client) Lock(ctx context.Context, name string, opts ...LockOption) (*Lock, error) {
	return c.acquire(ctx, record.Mutex, record.Exclusive, true, name, opts)
}

// TryLock acquires the mutex called name if it is free and has no queue, or has been free for a
// second despite its queue. It never queues, and waits only for the server's answers: up to 5 s,
// or one TTL if that is shorter. Another client's idle lock is not free: see [Linger].
//
// If the lock is held or has a queue, the error is a *[LockedError]. If the server does not
// answer, the error matches [ErrUnavailable]. If ctx ended, it matches [ErrTimeout] and ctx's
// error, and also ErrUnavailable if ctx ended before the answer. Other errors are those of
// [Client.Lock].
func (c *Client) TryLock(ctx context.Context, name string, opts ...LockOption) (*Lock, error) {
	return c.acquire(ctx, record.Mutex, record.Exclusive, false, name, opts)
}

// acquire implements [Client.Lock], [Client.TryLock] and their counterparts in packages rwlock
// and semaphore. A mutex is always exclusive.
func (c *Client) acquire(ctx context.Context, kind record.Kind, mode record.Mode, wait bool, name string, opts []LockOption) (*Lock, error) {
	if err := c.readyFor(ctx); err != nil {
		return nil, fmt.Errorf("lock %q: %w", name, err)
	}
	cfg, err := lockConfigOf(opts)
	if err != nil {
		return nil, fmt.Errorf("lock %q: %w", name, err)
	}
	if cfg.req.MinHold > 0 && mode == record.Shared {
		return nil, fmt.Errorf("lock %q: %w", name, invalid("MinHold", "cannot be used for a read lock"))
	}
	cfg.req.Kind, cfg.req.Mode, cfg.req.Name, cfg.req.Once = kind, mode, name, !wait
	return c.take(ctx, cfg)
}

func (c *Client) take(ctx context.Context, cfg lockConfig) (*Lock, error) {
	if cfg.req.Once {
		cfg.req.MaxWait = 0
	}
	return cfg.handle(func(req call.Request) (cohort.Holding, error) { return c.locks.Acquire(ctx, req) })
}

// handle acquires a lease by calling get, and wraps it in a Lock with its cleanup and its early
// warning.
func (c *lockConfig) handle(get func(call.Request) (cohort.Holding, error)) (*Lock, error) {
	var warns *warning
	if c.warn != nil {
		warns = &warning{fn: c.warn, ready: make(chan struct{})}
		c.req.OnWarn = warns.give
	}
	inner, err := get(c.req)
	if err != nil {
		return nil, public(err)
	}
	l := &Lock{lease: inner}
	l.self = l
	// Nobody can unlock a dropped handle, so let its lease run out instead of renewing it
	// forever.
	l.cleanup = runtime.AddCleanup(l, cohort.Holding.Abandon, inner)
	if warns != nil { // last, because a warning that is already due uses the handle immediately
		warns.handle = weak.Make(l)
		close(warns.ready)
	}
	return l, nil
}

// warning calls fn with a lock's handle. The reference is weak, so that a dropped handle is
// still collected.
type warning struct {
	fn     func(*Lock)
	ready  chan struct{} // closed once handle is set
	handle weak.Pointer[Lock]
	given  atomic.Bool // fn is running
}

// give calls fn unless the handle was dropped, an earlier call is still running, or the lock has
// ended. It runs on its own goroutine.
func (w *warning) give() {
	<-w.ready
	l := w.handle.Value()
	if l == nil || w.given.Swap(true) {
		return
	}
	defer w.given.Store(false)
	if l.Remaining() > 0 { // an ended lock needs no warning
		w.fn(l)
	}
}

// Do acquires the mutex like [Client.Lock], calls fn with the lock's context and the lock, and
// unlocks when fn returns or panics.
//
// Do returns nil if fn returned nil and the lock was held until then. If the acquire fails, fn
// does not run, and Do returns the acquire's error. Otherwise Do returns fn's error joined with
// that of [Lock.Unlock], which says whether fn may have overlapped another holder.
func (c *Client) Do(ctx context.Context, name string, fn func(ctx context.Context, l *Lock) error, opts ...LockOption) error {
	return under(ctx, c.Lock, name, fn, opts)
}

// TryDo is [Client.Do] with [Client.TryLock]. If the lock is held or has a queue, fn does not
// run, and the error is a *[LockedError]. If fn itself can return a *[LockedError], have fn
// record that it ran.
func (c *Client) TryDo(ctx context.Context, name string, fn func(ctx context.Context, l *Lock) error, opts ...LockOption) error {
	return under(ctx, c.TryLock, name, fn, opts)
}

// under acquires a lock with take and runs fn under it.
func under(ctx context.Context, take func(context.Context, string, ...LockOption) (*Lock, error), name string,
	fn func(context.Context, *Lock) error, opts []LockOption,
) error {
	if fn == nil {
		return fmt.Errorf("lock %q: %w", name, errNoFunc)
	}
	l, err := take(ctx, name, opts...)
	if err != nil {
		return err
	}
	return l.Do(fn)
}

// Stats holds a client's counters.
type Stats struct {
	Held    int // locks held now
	Waiting int // acquires queued now
	Idle    int // locks kept idle now, not included in Held (see [Linger])

	Granted  uint64 // successful acquires
	Renewed  uint64 // renewals that the server confirmed in time
	Released uint64 // locks unlocked within their validity
	Lost     uint64 // locks that ended without an Unlock, excluding breaks and planned ends
	Ended    uint64 // [Until] locks held to their planned end
	Broken   uint64 // locks broken by an operator
	GaveUp   uint64 // acquires ended by their context, MaxWait or Until

	// RenewalLag is how overdue the latest renewal of any held or idle lock is, or 0 if none is
	// overdue. A renewal is due a third of the TTL after the last confirmed write.
	RenewalLag time.Duration
}

// Stats returns the counts since New. Each reader counts, but the renewal of a shared lease
// counts once. Each use of a lingering lock counts as granted and released.
func (c *Client) Stats() Stats {
	if c.ready() != nil {
		return Stats{}
	}
	e := c.session
	s := Stats{
		Granted: e.Count(session.EventGranted), Renewed: e.Count(session.EventRenewed), Released: e.Count(session.EventReleased),
		Lost: e.Count(session.EventLost), Ended: e.Count(session.EventEnded), Broken: e.Count(session.EventBroken), GaveUp: e.Count(session.EventGaveUp),
	}
	s.Held, s.Waiting, s.Idle = c.locks.Held()
	s.RenewalLag = e.RenewalLag()
	return s
}

// Healthy returns nil if the client can acquire and keep locks, and otherwise an error that says
// what is wrong. It does no I/O. Use it for readiness probes, not for liveness probes: a restart
// repairs nothing and loses the held locks.
//
// The error matches [ErrUnavailable] if there is no connection, if a held lock cannot be renewed
// in time, or if writes have gone unacknowledged for 5 s. It matches kvstore.ErrBucketConfig or
// kvstore.ErrNotFound if the bucket was changed or deleted, kvstore.ErrFull if it has no room
// for new locks, and [ErrClosed] after Close.
//
// While the bucket's settings are unsafe, the client grants no lock and warns its holders
// ([EarlyWarning]). It can take up to 5 minutes to notice: see docs/operate/bucket-changes.md.
func (c *Client) Healthy() error {
	if err := c.ready(); err != nil {
		return err
	}
	return c.session.Healthy()
}

// Close stops granting locks, fails the waiters with [ErrClosed], and waits until the holders
// have unlocked or ctx ends. It then ends the contexts of the remaining locks with the cause
// [ErrClosed], but leaves their records to expire with their TTLs, because their work may still
// be stopping. If ctx has already ended, as after a signal, Close does not wait for any holder.
//
// Close returns nil if no lock was left. Otherwise the error matches ctx's error and names up to
// ten of the locks. Further calls wait for the first one and name the same locks.
//
// Call Close before closing or draining the connection. Otherwise, other clients have to wait
// out the TTL of each held or idle lock: see docs/guide/shutdown.md. Unless an observer or an
// [EarlyWarning] calls it, Close also waits for pending observer calls, up to the release
// timeout.
func (c *Client) Close(ctx context.Context) error {
	if err := c.readyFor(ctx); err != nil {
		return err
	}
	left := c.locks.Close(ctx)
	if len(left) == 0 {
		return nil
	}
	slices.Sort(left)
	err := fmt.Errorf("closed with locks still held: %s", shortList(left, 10))
	if ctx.Err() != nil { // nil if another Close's context ended the wait
		err = fmt.Errorf("%w: %w", err, plain.EndOf(ctx))
	}
	return err
}

func shortList(names []string, most int) string {
	var b strings.Builder
	for i, n := range names {
		if i == most {
			fmt.Fprintf(&b, " and %d more", len(names)-most)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%q", n)
	}
	return b.String()
}

// Join builds a lock's name from parts that may contain any bytes. Different parts give
// different names, and each part is a single token to wildcards: Join("tenant", "a.b") is one
// token below "tenant".
func Join(parts ...string) string { return record.JoinName(parts) }
