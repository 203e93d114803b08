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

// Client takes locks in one bucket. One per connection is enough. [New] makes it:
// the methods of a zero Client that return errors return one matching
// [ErrInvalid], the others zero values.
type Client struct {
	session *session.Session
	locks   *cohort.Client
	admin   *admin.Admin
	bucket  *bucket.Bucket
}

var errNoClient = fmt.Errorf("%w: a natslock.Client made without New", ErrInvalid)

// ready refuses a client that New has not made.
func (c *Client) ready() error {
	if c == nil || c.session == nil {
		return errNoClient
	}
	return nil
}

var errNoContext = fmt.Errorf("%w: the context is nil", ErrInvalid)

// readyFor refuses a client that New has not made, and a nil context.
func (c *Client) readyFor(ctx context.Context) error {
	if err := c.ready(); err != nil {
		return err
	}
	if ctx == nil {
		return errNoContext
	}
	return nil
}

// New opens the bucket and verifies that its settings are safe for locks. It creates a
// missing bucket, unless [WithCreate] forbids it. Without a deadline in ctx it waits for
// the server for at most 10 s, also for a connection that is not there yet (see
// nats.RetryOnFailedConnect) or is away.
//
// The error matches [ErrInvalid], [ErrPermission], or
// kvstore.ErrInvalidKey when no bucket can have the name. It matches [ErrUnavailable]
// when JetStream is off or does not answer, when the bucket has no leader, or when there is
// no connection. It matches
// kvstore.ErrNotFound when the bucket is missing and may not be created. It matches
// kvstore.ErrBucketConfig when the bucket exists and is not safe for locks: the error
// then names each setting and its repair.
//
// The connection stays the caller's, and New does not change its options. Make it with
// nats.MaxReconnects(-1) and nats.IgnoreAuthErrorAbort(): by default nats.go closes a connection
// for good after an outage of two minutes, or when its login was refused twice, and all calls
// fail from then on.
//
// The first New on a connection starts the reply subscription of nats.go, and a New that creates the
// bucket also starts the client's. All other goroutines and subscriptions start with
// the first lock.
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

// maxName is the length of the longest name of a connection that the owner has.
const maxName = 128

// process names this process among all machines.
func process() string {
	host, _ := os.Hostname()
	return fmt.Sprintf("%s:%d", host, os.Getpid())
}

// client returns a client of the bucket of a store.
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

// Lock takes the mutex. It waits in the queue until ctx ends or [MaxWait]
// passes. Without either it waits without a limit, over outages of the server too. It gives up,
// with an error that matches [ErrUnavailable], when the servers are there and the stream of the
// bucket has no leader for 15 s, as on a cluster without a majority.
//
// ctx is also the parent of the lock's context: a deadline on ctx ends the work under
// the lock too. Bound the waiting with [MaxWait], or see [Detached].
//
// Lock returns the held lock, or an error and no lock. When the waiting ended, the
// error is a *[TimeoutError], which matches [ErrTimeout], and ctx's error if ctx ended
// the wait. It also matches [ErrUnavailable], and has the server's text, unless the server
// has said last that the lock is held or the caller queued. Its place in the queue is gone
// by then, and no TryLock meets it any more. If the server is slow to confirm that, Lock
// returns 100 ms after the end of the wait, and in an outage at once. Then the place goes
// with the server's next answer, or with its TTL of at most 15 s. When the bucket is gone or the
// connection is closed, the error matches [ErrUnavailable]. While the client knows that the
// settings of the bucket are not safe any more, it grants nothing, and the error matches
// kvstore.ErrBucketConfig; see [Client.Healthy]. Otherwise it matches [ErrInvalid], [ErrPermission] or [ErrClosed].
//
// Lock can outlive ctx in one case. While the network accepts no bytes and has not
// failed yet, nats.go blocks every write, for a minute at most. The contexts of held
// locks end in time even then.
func (c *Client) Lock(ctx context.Context, name string, opts ...LockOption) (*Lock, error) {
	return c.acquire(ctx, record.Mutex, record.Exclusive, true, name, opts)
}

// TryLock takes the mutex if it is free and has no queue. It never queues. It waits
// only for the server's answers, for at most 5 s, or one TTL if that is shorter. A lock that
// has been free for a second in spite of its queue counts as free: its first waiter is
// stopped. The next waiter takes such a lock too.
//
// TryLock takes a lock that its client keeps idle: see [Linger]. A lock that another client keeps
// idle is held, and [LockedError] says that it is idle: [Client.Lock] gets it at once.
//
// TryLock returns the held lock, or an error and no lock. When the lock is held or has
// a queue, the error is a *[LockedError], which matches [ErrLocked] and names the
// holder. When the server does not answer, the error matches [ErrUnavailable]. When ctx
// ended, it matches [ErrTimeout] and ctx's error, and also [ErrUnavailable] if ctx
// ended before the answer. The other errors are those of [Client.Lock]. A deadline on
// ctx ends the work under the lock too: see [Client.Lock].
func (c *Client) TryLock(ctx context.Context, name string, opts ...LockOption) (*Lock, error) {
	return c.acquire(ctx, record.Mutex, record.Exclusive, false, name, opts)
}

// acquire is behind [Client.Lock], [Client.TryLock] and the methods of package
// rwlock. A mutex knows no mode but exclusive.
func (c *Client) acquire(ctx context.Context, kind record.Kind, mode record.Mode, wait bool, name string, opts []LockOption) (*Lock, error) {
	if err := c.readyFor(ctx); err != nil {
		return nil, fmt.Errorf("lock %q: %w", name, err)
	}
	cfg, err := lockConfigOf(opts)
	if err != nil {
		return nil, fmt.Errorf("lock %q: %w", name, err)
	}
	if cfg.req.MinHold > 0 && mode == record.Shared {
		return nil, fmt.Errorf("lock %q: %w", name, invalid("MinHold", "does not go with a lock that is read"))
	}
	cfg.req.Kind, cfg.req.Mode, cfg.req.Name, cfg.req.Once = kind, mode, name, !wait
	return c.take(ctx, cfg)
}

// take takes the lock that cfg says.
func (c *Client) take(ctx context.Context, cfg lockConfig) (*Lock, error) {
	if cfg.req.Once {
		cfg.req.MaxWait = 0
	}
	return cfg.handle(func(req call.Request) (cohort.Holding, error) { return c.locks.Acquire(ctx, req) })
}

// handle returns the handle of a lock that get has got.
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
	// A handle that is dropped can never unlock: its lease runs out instead of
	// being renewed forever.
	l.cleanup = runtime.AddCleanup(l, cohort.Holding.Abandon, inner)
	if warns != nil { // last: a warning that is due already uses the handle at once
		warns.handle = weak.Make(l)
		close(warns.ready)
	}
	return l, nil
}

// warning calls back with a handle that it does not keep from being dropped.
type warning struct {
	fn     func(*Lock)
	ready  chan struct{} // closed when handle is set
	handle weak.Pointer[Lock]
	given  atomic.Bool // and fn has not returned yet
}

// give runs on a goroutine of its own: nothing but the end of the lock keeps a warning back.
func (w *warning) give() {
	<-w.ready
	l := w.handle.Value()
	if l == nil || w.given.Swap(true) {
		return
	}
	defer w.given.Store(false)
	if l.Remaining() > 0 { // a holder that has left needs no warning
		w.fn(l)
	}
}

// Do runs fn under the mutex. It waits for the lock like [Client.Lock], calls fn with
// the lock's context and the lock, and unlocks when fn returns or panics. A deadline on
// ctx ends fn's context too; [MaxWait] bounds the waiting alone.
//
// Do returns nil if fn ran, returned nil and held the lock to its end. If fn did not
// run, Do returns the error of the acquire. Otherwise it returns fn's error joined with
// the error of [Lock.Unlock]. If the result matches [ErrLost], fn may not have been
// alone. If it matches [ErrEnded], fn went on after the planned end of an [Until] lock,
// without protection. Do refuses a nil fn with [ErrInvalid].
func (c *Client) Do(ctx context.Context, name string, fn func(ctx context.Context, l *Lock) error, opts ...LockOption) error {
	return under(ctx, c.Lock, name, fn, opts)
}

// TryDo is [Client.Do] with [Client.TryLock]. If the lock was held or had a queue, fn has not
// run, and the error is a *[LockedError] with the name of this lock, which matches
// [ErrLocked]. The error also matches if fn ran and returned such an error itself, of another
// lock or of this one. Have fn note that it ran, or wrap its errors, where that matters.
func (c *Client) TryDo(ctx context.Context, name string, fn func(ctx context.Context, l *Lock) error, opts ...LockOption) error {
	return under(ctx, c.TryLock, name, fn, opts)
}

// under runs fn under the lock that take takes.
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

// Stats counts what a client has and has had.
type Stats struct {
	Held    int // locks held now
	Waiting int // acquires queued now
	Idle    int // locks kept idle now, which are not in Held: see [Linger]

	Granted  uint64 // acquires that got the lock
	Renewed  uint64 // renewals that the server confirmed in time
	Released uint64 // locks unlocked inside their validity
	Lost     uint64 // locks that ended without an Unlock, breaks and planned ends left out
	Ended    uint64 // [Until] locks held to their planned end
	Broken   uint64 // locks that an operator ended
	GaveUp   uint64 // acquires that their context, MaxWait or Until ended

	// RenewalLag is by how much the latest renewal of a held or idle lock is late. It counts from when
	// the renewal was due, a third of the TTL after the last write that the server has confirmed,
	// and is 0 when all are in time. A renewal on its way is late by its round trip.
	RenewalLag time.Duration
}

// Stats returns the counts since New, without I/O. Each reader counts, also of a lease that
// several share. A renewal of such a lease counts once. A lock that lingers counts in Granted
// and Released each time that a goroutine takes and unlocks it. The end of an idle lock
// counts nowhere. The time of a call grows with the number of locks.
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

// Healthy returns nil when the client can take and keep locks, and otherwise says what
// is wrong with the connection, the bucket or the renewals. It does no I/O: it knows the
// answers to the client's last requests. It is for probes of readiness, not of liveness: a
// restart repairs nothing of that, and loses the locks that are held.
//
// The error matches [ErrUnavailable] without a connection, and when the renewal of a
// held lock is overdue or was refused: the error says why. It also does when a write has
// gone unanswered, or was refused by more than a conflict, for 5 s and the server has
// acknowledged none since: the bucket's stream may have no leader, have stopped or be full. The next acknowledgement ends that state. A minute without writes ends it
// too, because an idle client knows nothing. A write that the server forbids this user
// does not count. The error matches kvstore.ErrBucketConfig or kvstore.ErrNotFound when
// another user has changed or deleted the bucket, kvstore.ErrFull while it is so full that
// the client takes no new lock, and [ErrClosed] after Close.
//
// The client looks at the settings after each reconnect, every 2 minutes while it takes
// locks, and every 5 minutes while it holds one or waits. While they are not safe it grants
// no lock, warns its holders ([EarlyWarning]), and looks every 5 s.
func (c *Client) Healthy() error {
	if err := c.ready(); err != nil {
		return err
	}
	return c.session.Healthy()
}

// Close takes no new locks, ends the waiters with [ErrClosed], and waits until the
// holders have unlocked or ctx ends. Then it ends the contexts of the locks that are
// left, with the cause [ErrClosed]. It leaves their records to the TTL, because their
// work may still be stopping. If ctx never ends, Close waits as long as a lock is held. If it
// has ended, as that of a signal has, Close waits for no holder.
//
// Call Close before the connection is closed or drained. Otherwise others wait for the TTL of
// each lock that is held or lingers.
//
// Close waits for the calls of an observer that are due, for a release
// timeout at most. A Close that an observer or an [EarlyWarning] calls does not wait for
// them, nor does another one that is under way then.
//
// It returns nil when no lock was left. Otherwise the error matches ctx's and names up
// to ten of the locks. Further calls name the same. The connection stays open. A nil ctx is
// refused with [ErrInvalid], and closes nothing.
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
	if ctx.Err() != nil { // and not that of another Close
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

// Join makes a lock's name of parts that may hold any bytes. Different parts make
// different names. Each part stays a token that wildcards match: Join("tenant", "a.b")
// is one token below "tenant".
func Join(parts ...string) string { return record.JoinName(parts) }
