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

	"github.com/natslock/locks/internal/acquire"
	"github.com/natslock/locks/internal/admin"
	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
	"github.com/natslock/locks/kvstore"
)

// Client takes locks in one bucket. One per connection is enough. [New] makes it:
// the methods of a zero Client that return errors return one matching
// [ErrInvalidOption], the others zero values.
type Client struct {
	session *session.Session
	locks   *acquire.Client
	admin   *admin.Admin
	life    context.Context // ends when the client or the connection is closed
}

var errNoClient = fmt.Errorf("%w: a natslock.Client made without New", ErrInvalidOption)

// ready says whether the client was made by New.
func (c *Client) ready() error {
	if c == nil || c.session == nil {
		return errNoClient
	}
	return nil
}

// New opens the bucket, or creates it if it is missing and [WithCreate] allows that,
// and verifies that it is safe for locks. Without a deadline in ctx it waits for the
// server for at most 10 s. The first New on a connection starts nats.go's own reply
// subscription, and one that creates the bucket the client's; all other goroutines and
// subscriptions come with the first lock. The connection stays the caller's; New does
// not touch its options.
//
// It returns the client, or an error that matches [ErrInvalidOption],
// [ErrInvalidTTL], kvstore.ErrInvalidKey (no bucket can have the name),
// [ErrUnavailable] (no JetStream, no leader, no answer), [ErrPermission],
// kvstore.ErrBucketConfig (the bucket exists and is not safe for locks; the error
// names each setting and how to repair it) or kvstore.ErrNotFound (the bucket is
// missing and may not be created).
func New(ctx context.Context, nc *nats.Conn, opts ...Option) (*Client, error) {
	cfg := config{create: true, session: session.Config{WatchAfter: session.DefaultWatchAfter}}
	for _, opt := range opts {
		if opt == nil {
			return nil, fmt.Errorf("natslock: %w", errNilOption)
		}
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
	cfg.store.Logger = cmp.Or(cfg.store.Logger, cfg.session.Logger)
	store, err := kvstore.Open(ctx, cfg.js, cfg.store)
	if err != nil {
		return nil, fmt.Errorf("natslock: %w", err)
	}
	kv := kvstore.KV(store)
	if cfg.wrap != nil {
		kv = cfg.wrap(store)
	}
	if cfg.owner == "" {
		host, _ := os.Hostname()
		cfg.owner = fmt.Sprintf("%s:%d", host, os.Getpid())
	}
	if observe := cfg.observe; observe != nil {
		cfg.session.Observe = func(ctx context.Context, ev session.Event) { observe(ctx, observed(ev)) }
	}
	b := bucket.New(kv, cfg.owner, nil)
	held := session.New(b, cfg.session)
	return &Client{session: held, locks: acquire.New(b, held), admin: admin.New(b, held), life: b.Life()}, nil
}

// Lock takes the mutex, waiting for it in the order of arrival until ctx ends
// or [MaxWait] is over; without either it waits as long as it takes, over outages of
// the server too.
//
// The lock's context is a child of ctx: a deadline on ctx ends the work under the lock,
// not only the wait. Use [MaxWait] to bound the wait alone, or [Detached].
//
// It returns the held lock, or an error and no lock. The error matches [ErrTimeout]
// when the wait was given up (it is a *[TimeoutError], and matches ctx's error when that
// ended the wait), [ErrInvalidName] (also for a name that this client uses as a
// reader-writer lock), [ErrInvalidTTL], [ErrInvalidOption], [ErrPermission],
// [ErrClosed], or [ErrUnavailable] when the bucket is gone or the connection was closed.
//
// While the network takes no more bytes but has not failed yet, nats.go blocks
// every goroutine that writes, for up to a minute: only then can Lock outlive its
// context. Contexts of held locks end in time nevertheless.
func (c *Client) Lock(ctx context.Context, name string, opts ...LockOption) (*Lock, error) {
	return c.acquire(ctx, KindMutex, Exclusive, true, name, opts)
}

// TryLock takes the mutex if it is free and nobody is queued for it. It never
// queues. It waits for nothing but the server's answers: for at most 5 s, or one TTL
// if that is shorter.
//
// It returns the held lock, or an error and no lock. The error matches [ErrLocked]
// when others hold the lock or wait for it (it is a *[LockedError] that names the
// holder), [ErrUnavailable] when the server does not answer, [ErrTimeout] and ctx's
// error when ctx has ended, with [ErrUnavailable] if that was before an answer came,
// or else what that of [Client.Lock] matches. A deadline on ctx ends the work under
// the lock too: see [Client.Lock].
func (c *Client) TryLock(ctx context.Context, name string, opts ...LockOption) (*Lock, error) {
	return c.acquire(ctx, KindMutex, Exclusive, false, name, opts)
}

// acquire is behind [Client.Lock], [Client.TryLock] and the methods of package
// rwlock. A mutex knows no mode but [Exclusive].
func (c *Client) acquire(ctx context.Context, kind Kind, mode Mode, wait bool, name string, opts []LockOption) (*Lock, error) {
	if err := c.ready(); err != nil {
		return nil, fmt.Errorf("lock %q: %w", name, err)
	}
	cfg, err := lockConfigOf(opts)
	if err != nil {
		return nil, fmt.Errorf("lock %q: %w", name, err)
	}
	cfg.req.Kind, cfg.req.Mode, cfg.req.Name, cfg.req.Once = record.Kind(kind), record.Mode(mode), name, !wait
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
	l.cleanup = runtime.AddCleanup(l, acquire.Holding.Abandon, inner)
	return l, nil
}

// warning calls back with a handle that it does not keep from being dropped.
type warning struct {
	fn     func(*Lock)
	ready  chan struct{} // closed when handle is set
	handle weak.Pointer[Lock]
}

func (w *warning) give() {
	<-w.ready
	if l := w.handle.Value(); l != nil {
		w.fn(l)
	}
}

func (c *Client) hold(ctx context.Context, req acquire.Request) (acquire.Holding, error) {
	if req.Kind == record.RW && req.Mode == record.Shared {
		return c.locks.AcquireShared(ctx, req)
	}
	l, err := c.locks.Acquire(ctx, req)
	if err != nil {
		return nil, err // not a nil lease in a non-nil interface
	}
	return l, nil
}

// Do runs fn under the mutex. It waits for the lock as [Client.Lock] does, passes
// the lock's context and the lock to fn, and unlocks when fn returns or panics.
//
// A deadline on ctx ends fn's context too, however long the wait was. Use [MaxWait] to
// bound the wait alone.
//
// It returns nil when fn ran, returned nil and held the lock to its end. Otherwise it
// returns the error of the acquire, when fn did not run, or fn's error joined with that
// of [Lock.Unlock]: an error that matches [ErrLost] means that fn, whatever it
// returned, may not have been alone. With [Until] one that matches [ErrEnded] means
// that fn went on after the planned end, when it was not protected. A nil fn is refused
// with [ErrInvalidOption].
func (c *Client) Do(ctx context.Context, name string, fn func(ctx context.Context, l *Lock) error, opts ...LockOption) error {
	if fn == nil {
		return fmt.Errorf("lock %q: %w", name, errNoFunc)
	}
	l, err := c.Lock(ctx, name, opts...)
	if err != nil {
		return err
	}
	return l.Do(fn)
}

// TryDo is [Client.Do] with [Client.TryLock]: an error matching [ErrLocked]
// means that fn did not run, because others hold the lock or wait for it.
func (c *Client) TryDo(ctx context.Context, name string, fn func(ctx context.Context, l *Lock) error, opts ...LockOption) error {
	if fn == nil {
		return fmt.Errorf("lock %q: %w", name, errNoFunc)
	}
	l, err := c.TryLock(ctx, name, opts...)
	if err != nil {
		return err
	}
	return l.Do(fn)
}

// BreakRequest says which claim [Client.Break] ends, and why.
type BreakRequest struct {
	// Kind and Name are those of the lock.
	Kind Kind
	Name string
	// ID is that of the claim: the [Holder.ID] of a holder, or of one reader, as
	// [Client.Inspect] and [Client.List] return it.
	ID string
	// Reason is shown to the holder, and to everybody who inspects the lock. It has
	// at most 1024 bytes.
	Reason string
	// Immediately lets the next client in at once, while the broken holder may still
	// be working. This is an exception to mutual exclusion: two clients can work at
	// the same time, and only resources that check fencing tokens stay safe.
	Immediately bool
}

// Break ends one claim to a lock: the holder's, or one reader's. It breaks the claim
// that req names and never another one. The holder is notified and cannot renew its
// lease any more. Nobody gets in before the holder has unlocked or its lease would
// have ended anyway, so mutual exclusion holds; with Immediately it does not.
//
// It returns nil when the claim is broken, also when it was before. The error
// matches [ErrReleased] when the claim is gone, whether or not somebody else holds the
// lock now. It matches [ErrInvalidName], or [ErrInvalidOption] for a request without
// an ID or with a Reason that is too long; nothing was sent then. It matches
// [ErrUnavailable], [ErrPermission] or ctx's error when the claim is not known to be
// broken: it may be.
func (c *Client) Break(ctx context.Context, req BreakRequest) error {
	if err := c.ready(); err != nil {
		return fmt.Errorf("break lock %q: %w", req.Name, err)
	}
	return public(c.admin.Break(ctx, admin.BreakRequest{
		Kind: record.Kind(req.Kind), Name: req.Name, ID: req.ID, Reason: req.Reason, Immediately: req.Immediately,
	}))
}

// Stats counts what a client has and has had.
type Stats struct {
	Held    int // locks held now
	Waiting int // acquires queued now

	Granted  uint64 // acquires that got the lock
	Renewed  uint64 // renewals that the server confirmed in time
	Released uint64 // locks unlocked inside their validity
	Lost     uint64 // locks that ended without an Unlock, breaks and planned ends left out
	Ended    uint64 // [Until] locks held to their planned end
	Broken   uint64 // locks that an operator ended
	GaveUp   uint64 // acquires that their context, MaxWait or Until ended
}

// Stats returns the counts since New, without I/O. Readers that share a lease count
// as one.
func (c *Client) Stats() Stats {
	if c.ready() != nil {
		return Stats{}
	}
	e := c.session
	s := Stats{
		Granted: e.Count(session.EventGranted), Renewed: e.Count(session.EventRenewed), Released: e.Count(session.EventReleased),
		Lost: e.Count(session.EventLost), Ended: e.Count(session.EventEnded), Broken: e.Count(session.EventBroken), GaveUp: e.Count(session.EventGaveUp),
	}
	s.Held, s.Waiting = e.Held()
	return s
}

// Healthy returns nil when locks can be taken and kept, for probes; otherwise
// what is wrong with the connection, the bucket, or the renewals. It does no
// I/O: it knows the answers to the client's last requests.
//
// The error matches [ErrUnavailable] without a connection, when the renewal of a held
// lock is overdue, and once a write has gone unanswered for 5 s while no other was
// acknowledged: the bucket's stream may have no leader, or have stopped. The next
// acknowledgement ends that, or a minute without writes, after which an idle client
// knows nothing. A write that the server forbids this user does not count. The error
// matches kvstore.ErrBucketConfig or kvstore.ErrNotFound when somebody has changed or
// deleted the bucket, and [ErrClosed] after Close.
func (c *Client) Healthy() error {
	if err := c.ready(); err != nil {
		return err
	}
	return c.session.Healthy()
}

// Close takes no new locks and ends the waiters with [ErrClosed]. It waits for
// the holders to unlock until ctx ends. Then it ends the contexts of the other locks
// with the cause [ErrClosed], and leaves their records to their TTL, because their work
// may still be stopping. Without an end in ctx it waits as long as locks are held.
//
// It returns nil when nothing was held any more, otherwise an error that
// matches ctx's and names up to ten of the locks. Further calls name the same. The
// connection stays open.
func (c *Client) Close(ctx context.Context) error {
	if err := c.ready(); err != nil {
		return err
	}
	left := c.locks.Close(ctx)
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

// Join makes a lock's name of parts that may hold any bytes. Different parts
// make different names, and the parts stay tokens that wildcards match:
// Join("tenant", "a.b") is one token below "tenant".
func Join(parts ...string) string { return record.JoinName(parts) }
