package natslock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"weak"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/internal/lease"
	"github.com/natslock/locks/kvstore"
)

// Client takes locks in one bucket. One per connection is enough.
type Client struct {
	engine *lease.Engine
	owner  string
}

// New opens the bucket and verifies that its settings are safe for locks. It creates a
// missing bucket, unless [WithCreate] forbids it.
//
// The error matches [ErrInvalidOption], [ErrInvalidTTL], [ErrPermission], or
// [ErrUnavailable] when JetStream is off or does not answer. It matches
// kvstore.ErrNotFound when the bucket is missing and may not be created. It matches
// kvstore.ErrBucketConfig when the bucket exists and is not safe for locks: the error
// then names each setting and its repair.
//
// The connection stays the caller's, and New does not change its options. The first New
// on a connection starts the reply subscription of nats.go, and a New that creates the
// bucket also starts the client's. All other goroutines and subscriptions start with
// the first lock.
func New(ctx context.Context, nc *nats.Conn, opts ...Option) (*Client, error) {
	cfg := config{create: true, engine: lease.Config{WatchAfter: lease.DefaultWatchAfter}}
	for _, opt := range opts {
		if err := opt(&cfg); err != nil {
			return nil, fmt.Errorf("natslock: %w", err)
		}
	}
	if cfg.js == nil {
		if nc == nil {
			return nil, fmt.Errorf("natslock: %w: no connection", ErrInvalidOption)
		}
		js, err := jetstream.New(nc)
		if err != nil {
			return nil, fmt.Errorf("natslock: %w: %w", ErrUnavailable, err)
		}
		cfg.js = js
	}
	cfg.store.Bucket = cmp.Or(cfg.bucket, cfg.store.Bucket)
	cfg.store.NoCreate = cfg.store.NoCreate || !cfg.create
	cfg.store.Logger = cmp.Or(cfg.store.Logger, cfg.engine.Logger)
	store, err := kvstore.Open(ctx, cfg.js, cfg.store)
	if err != nil {
		return nil, fmt.Errorf("natslock: %w", err)
	}
	cfg.engine.KV = store
	if cfg.wrap != nil {
		cfg.engine.KV = cfg.wrap(store)
	}
	if cfg.engine.Owner == "" {
		host, _ := os.Hostname()
		cfg.engine.Owner = fmt.Sprintf("%s:%d", host, os.Getpid())
	}
	if observe := cfg.observe; observe != nil {
		cfg.engine.Observe = func(ctx context.Context, ev lease.Event) { observe(ctx, observed(ev)) }
	}
	return &Client{engine: lease.New(cfg.engine), owner: cfg.engine.Owner}, nil
}

// Lock takes the mutex. It waits in the order of arrival until ctx ends or [MaxWait]
// passes. ctx is also the parent of the lock's context: a deadline on ctx ends the work
// under the lock too. Bound the waiting with [MaxWait], or see [Detached].
//
// Lock returns the held lock, or an error and no lock. When the waiting ended, the
// error is a *[TimeoutError], which matches [ErrTimeout], and ctx's error if ctx ended
// the wait. Lock waits until an outage of the server is over, but when the bucket is
// gone or the connection is closed, the error matches [ErrUnavailable]. Otherwise it
// matches [ErrInvalidName], [ErrInvalidTTL], [ErrInvalidOption], [ErrPermission] or
// [ErrClosed].
//
// Lock can outlive ctx in one case. While the network accepts no bytes and has not
// failed yet, nats.go blocks every write, for a minute at most. The contexts of held
// locks end in time even then.
func (c *Client) Lock(ctx context.Context, name string, opts ...LockOption) (*Lock, error) {
	return c.Acquire(ctx, Mutex, Exclusive, true, name, opts...)
}

// TryLock takes the mutex if it is free and has no queue. It never queues. It waits
// only for the server's answers, for 5 s at most.
//
// TryLock returns the held lock, or an error and no lock. When the lock is held or has
// a queue, the error is a *[LockedError], which matches [ErrLocked] and names the
// holder. When the server does not answer, the error matches [ErrUnavailable]. When ctx
// ended, it matches [ErrTimeout] and ctx's error, and also [ErrUnavailable] if ctx
// ended before the answer. The other errors are those of [Client.Lock].
func (c *Client) TryLock(ctx context.Context, name string, opts ...LockOption) (*Lock, error) {
	return c.Acquire(ctx, Mutex, Exclusive, false, name, opts...)
}

// Acquire is what [Client.Lock], [Client.TryLock] and the methods of package
// rwlock are made of: it takes the lock of a kind in a mode, waiting for it or
// not. A mutex knows no mode but [Exclusive]. Using one name for both kinds in
// one client is refused with an error matching [ErrInvalidName]: they are
// different locks.
func (c *Client) Acquire(ctx context.Context, kind Kind, mode Mode, wait bool, name string, opts ...LockOption) (*Lock, error) {
	cfg, err := lockConfigOf(opts)
	if err != nil {
		return nil, fmt.Errorf("lock %q: %w", name, err)
	}
	cfg.req.Kind, cfg.req.Mode, cfg.req.Name, cfg.req.Once = lease.Kind(kind), lease.Mode(mode), name, !wait
	if !wait {
		cfg.req.MaxWait = 0
	}
	if !cfg.req.Until.IsZero() && (cfg.req.TTL != 0 || cfg.req.Fixed) {
		return nil, fmt.Errorf("lock %q: %w", name, invalid("Until", "goes with neither TTL nor NoRenew"))
	}
	var warns *warning
	if cfg.warn != nil {
		warns = &warning{fn: cfg.warn, ready: make(chan struct{})}
		cfg.req.OnWarn = warns.give
	}
	inner, err := c.hold(ctx, cfg.req)
	if err != nil {
		return nil, public(err)
	}
	l := &Lock{lease: inner}
	if warns != nil {
		warns.handle = weak.Make(l)
		close(warns.ready)
	}
	// A handle that is dropped can never unlock: its lease runs out instead of
	// being renewed for ever.
	l.cleanup = runtime.AddCleanup(l, lease.Holding.Abandon, inner)
	return l, nil
}

// warning calls back with a handle that it does not keep from being dropped.
type warning struct {
	fn     func(*Lock)
	ready  chan struct{} // closed when handle is set
	handle weak.Pointer[Lock]
}

func (w *warning) give(*lease.Lease) {
	<-w.ready
	if l := w.handle.Value(); l != nil {
		w.fn(l)
	}
}

func (c *Client) hold(ctx context.Context, req lease.Request) (lease.Holding, error) {
	if req.Kind == lease.RW && req.Mode == lease.Shared {
		return c.engine.AcquireShared(ctx, req)
	}
	l, err := c.engine.Acquire(ctx, req)
	if err != nil {
		return nil, err // not a nil lease in a non-nil interface
	}
	return l, nil
}

// Do runs fn under the mutex. It waits for the lock like [Client.Lock], calls fn with
// the lock's context, and unlocks when fn returns or panics. A deadline on ctx ends
// fn's context too; [MaxWait] bounds the waiting alone.
//
// Do returns the error of the acquire, and then fn has not run. Otherwise it returns
// fn's error joined with the error of the unlock. If the result matches [ErrLost], fn
// may not have been alone.
func (c *Client) Do(ctx context.Context, name string, fn func(ctx context.Context, l *Lock) error, opts ...LockOption) error {
	l, err := c.Lock(ctx, name, opts...)
	if err != nil {
		return err
	}
	return l.Do(fn)
}

// TryDo is [Client.Do] with [Client.TryLock]. If the error matches [ErrLocked], fn has
// not run because the lock was not free.
func (c *Client) TryDo(ctx context.Context, name string, fn func(ctx context.Context, l *Lock) error, opts ...LockOption) error {
	l, err := c.TryLock(ctx, name, opts...)
	if err != nil {
		return err
	}
	return l.Do(fn)
}

// Break ends the lock of the holder, or the reader, with the given token: the
// one that was shown, never a later one. The holder is told and cannot renew
// any more; nobody gets in before it has unlocked or its lease would have ended
// anyway, so mutual exclusion holds. With [Now] the next one gets in at once.
// reason is shown to the holder and to whoever inspects the lock.
//
// It returns nil when the record is broken, also when it was before. The error
// matches [ErrReleased] when that holder is gone already, and [ErrUnavailable],
// [ErrPermission] or ctx's error when it is not known to be broken. On a bucket with
// replicas, ErrUnavailable is also the answer to a token above the newest revision:
// the server that answers may lag behind it.
func (c *Client) Break(ctx context.Context, kind Kind, name string, token uint64, reason string, opts ...BreakOption) error {
	req := lease.BreakRequest{Kind: lease.Kind(kind), Name: name, Token: token, Reason: reason, By: c.owner}
	for _, opt := range opts {
		opt(&req)
	}
	return public(c.engine.Break(ctx, req))
}

// Stats counts what a client has and has had.
type Stats struct {
	Held    int // locks held now
	Waiting int // acquires queued now

	Granted  uint64
	Renewed  uint64
	Released uint64
	Lost     uint64 // ended without an Unlock, breaks left out
	Broken   uint64
	GaveUp   uint64
}

// Stats returns the counts, without I/O.
func (c *Client) Stats() Stats {
	e := c.engine
	s := Stats{
		Granted: e.Counts(lease.EventGranted), Renewed: e.Counts(lease.EventRenewed), Released: e.Counts(lease.EventReleased),
		Lost: e.Counts(lease.EventLost), Broken: e.Counts(lease.EventBroken), GaveUp: e.Counts(lease.EventGaveUp),
	}
	s.Held, s.Waiting = e.Held()
	return s
}

// Healthy returns nil when the client can take and keep locks, and otherwise says what
// is wrong with the connection, the bucket or the renewals. It is for probes and does
// no I/O: it knows the answers to the client's last requests.
//
// The error matches [ErrUnavailable] without a connection. It also does when a write
// has gone unanswered for 5 s and the server has acknowledged none since: the bucket's
// stream may have no leader, or have stopped. The next acknowledgement ends that state.
// A minute without writes ends it too, because an idle client knows nothing. A write
// that the server forbids this user does not count.
func (c *Client) Healthy() error { return c.engine.Healthy() }

// Close takes no new locks, ends the waiters with [ErrClosed], and waits until the
// holders have unlocked or ctx ends. Then it ends the contexts of the locks that are
// left, with the cause [ErrClosed]. It leaves their records to the TTL, because their
// work may still be stopping.
//
// It returns nil when no lock was left. Otherwise the error matches ctx's and names the
// locks. The connection stays open.
func (c *Client) Close(ctx context.Context) error {
	left := c.engine.Close(ctx)
	if len(left) == 0 {
		return nil
	}
	slices.Sort(left)
	err := fmt.Errorf("closed with %d locks still held: %s", len(left), shortList(left, 10))
	return errors.Join(err, ctx.Err())
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
func Join(parts ...string) string { return lease.JoinName(parts) }
