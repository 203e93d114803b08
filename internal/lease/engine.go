package lease

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/natslock/locks/kvstore"
)

const (
	// DefaultTTL suits three replicas, where a leader that dies stops writes
	// for 4 to 9 s.
	DefaultTTL = 15 * time.Second
	// DefaultRenewFraction leaves room for two more tries.
	DefaultRenewFraction = 1.0 / 3
	// DefaultReleaseTimeout bounds a release.
	DefaultReleaseTimeout = 5 * time.Second
	// DefaultWatchAfter spares short critical sections a subscription.
	DefaultWatchAfter = time.Second

	// verifyEvery is how often the bucket is looked at again while leases are
	// held: others can change its configuration.
	verifyEvery = 5 * time.Minute
)

// Config is what an engine works with. Zero means the default, but for
// WatchAfter, where it means at once.
type Config struct {
	KV             kvstore.KV
	TTL            time.Duration
	Owner          string
	RenewFraction  float64
	Margin         float64
	ReleaseTimeout time.Duration
	WatchAfter     time.Duration // negative: never
	Logger         *slog.Logger
	Observe        func(context.Context, Event) // nil: nobody
	Clock          func() Instant               // nil: Now
}

// Engine is one client's locks: it claims, keeps and releases leases. Its
// goroutines start with the first lease and end with [Engine.Close].
type Engine struct {
	cfg    Config
	kv     kvstore.KV
	now    func() Instant
	log    *slog.Logger
	client string
	host   string
	pid    int
	start  int64

	keeper *keeper
	ghosts *ghosts
	sender *worker // all I/O of the keeper
	leaver *worker // releases
	teller *worker // observers
	timers sync.Pool

	highest atomic.Uint64 // highest revision acknowledged to this client
	recent  recent
	shares  shares
	kinds   kinds
	lists   lists

	life context.Context // of waiting; its cause says why nobody can wait any more
	quit context.CancelCauseFunc
	ctx  context.Context // of clean-up work; ends when Close gives up on it
	end  context.CancelFunc

	mu        sync.Mutex
	hooked    bool
	closed    bool
	acquiring int
	idle      chan struct{} // closed when closed and acquiring is 0
	working   int           // clean-up work under way
	rested    chan struct{} // closed when working falls to 0; nil: nobody asks
	up        chan struct{} // closed when the connection comes back
	badBucket error

	away atomic.Bool // the connection, as was told last: asking it takes its mutex, which a stuck write holds

	hurry     chan struct{} // closed when a second Close has no more time
	hurryOnce sync.Once
	shut      chan struct{} // closed when Close is through
	leftHeld  []string      // what it returned

	stats counters
}

// New returns an engine. It starts nothing.
func New(cfg Config) *Engine {
	if cfg.Clock == nil {
		cfg.Clock = Now
	}
	cfg.TTL = cmp.Or(cfg.TTL, DefaultTTL)
	cfg.RenewFraction = cmp.Or(cfg.RenewFraction, DefaultRenewFraction)
	cfg.Margin = cmp.Or(cfg.Margin, DefaultMargin)
	cfg.ReleaseTimeout = cmp.Or(cfg.ReleaseTimeout, DefaultReleaseTimeout)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	host, _ := os.Hostname()
	e := &Engine{
		cfg: cfg, kv: cfg.KV, now: cfg.Clock, log: cfg.Logger,
		client: rand.Text(), host: host, pid: os.Getpid(), start: processStart,
		idle: make(chan struct{}), up: make(chan struct{}), hurry: make(chan struct{}), shut: make(chan struct{}),
	}
	e.life, e.quit = context.WithCancelCause(context.Background())
	e.ctx, e.end = context.WithCancel(context.Background())
	e.keeper = newKeeper(e)
	e.ghosts = newGhosts(e)
	e.sender, e.leaver, e.teller = newWorker(), newWorker(), newWorker()
	return e
}

// processStart tells two processes with one pid apart.
var processStart = time.Now().UnixMilli()

// KV returns the store the engine works on.
func (e *Engine) KV() kvstore.KV { return e.kv }

// enter registers an acquire, so that Close can end it and wait for it.
func (e *Engine) enter() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return ErrClosed
	}
	e.hook()
	e.acquiring++
	return nil
}

// hook asks to be told of the connection, once. Under mu.
func (e *Engine) hook() {
	if !e.hooked {
		e.hooked = true
		e.kv.OnConnection(e.connChanged)
	}
}

func (e *Engine) leave() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.acquiring--
	if e.closed && e.acquiring == 0 {
		close(e.idle)
	}
}

// background runs clean-up work that outlives its caller. fn's context ends
// when Close gives up on it.
func (e *Engine) background(fn func(ctx context.Context)) {
	if e.beginWork() {
		go func() { defer e.endWork(); fn(e.ctx) }()
	}
}

// connChanged runs on a goroutine of the store and must not block.
func (e *Engine) connChanged(s kvstore.ConnState) {
	switch s {
	case kvstore.Disconnected:
		e.away.Store(true)
	case kvstore.Connected:
		e.away.Store(false)
		e.mu.Lock()
		close(e.up)
		e.up = make(chan struct{})
		e.mu.Unlock()
		e.keeper.renewAll()
		e.background(e.verify)
	case kvstore.Closed:
		e.away.Store(true)
		e.quit(fmt.Errorf("%w: the connection was closed", ErrUnavailable))
		e.keeper.connectionClosed()
	}
}

// online is closed when the connection comes back the next time. Taken before
// something is tried: the connection may come back between a failure and the pause
// after it.
func (e *Engine) online() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.up
}

// verify looks at the bucket again. When it is not the one the leases are in,
// they are all lost.
func (e *Engine) verify(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, e.cfg.TTL)
	defer cancel()
	err := e.kv.Verify(ctx)
	switch {
	case err == nil:
	case isAny(err, kvstore.ErrRemade, kvstore.ErrNotFound):
		e.keeper.loseAll(err.Error())
		if errors.Is(err, kvstore.ErrRemade) {
			err = nil // the new one was verified
		}
	case isAny(err, kvstore.ErrBucketConfig):
		e.log.Error("lock bucket was changed", "bucket", e.kv.Bucket(), "error", err)
	default:
		return // not reached: says nothing about the bucket
	}
	e.mu.Lock()
	e.badBucket = err
	e.mu.Unlock()
}

// Life is the context of waiting: it ends when the engine or the connection is
// closed, with the reason as its cause.
func (e *Engine) Life() context.Context { return e.life }

// Held returns how many locks are held and how many acquires are queued.
func (e *Engine) Held() (locks, waiting int) { return e.keeper.count() }

// Healthy returns nil, or all that endangers the locks: the connection, a stream
// that accepts no writes, the bucket, renewals that are overdue.
func (e *Engine) Healthy() error {
	e.mu.Lock()
	closed, bad := e.closed, e.badBucket
	e.mu.Unlock()
	if closed {
		return ErrClosed
	}
	return errors.Join(e.kv.Healthy(), bad, e.keeper.atRisk())
}

// seen notes a revision the server has acknowledged.
func (e *Engine) seen(rev uint64) {
	for {
		h := e.highest.Load()
		if rev <= h || e.highest.CompareAndSwap(h, rev) {
			return
		}
	}
}

// waitFor waits for wg until ctx ends and says whether it came to an end.
func waitFor(ctx context.Context, wg *sync.WaitGroup) bool {
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}

// Close takes no new locks, ends the waiters, waits for the holders' own
// releases until ctx ends, and then ends what is left with cause [ErrClosed].
// The records of those are left to their TTL: their holders' work may still be
// stopping. It returns the names still held. Clean-up under way may take a
// release timeout longer.
//
// Another Close waits for the first one, and cuts its waiting short when its own
// ctx ends.
func (e *Engine) Close(ctx context.Context) []string {
	e.mu.Lock()
	first := !e.closed
	if first {
		e.closed = true
		e.quit(ErrClosed)
		if e.acquiring == 0 {
			close(e.idle)
		}
	}
	e.mu.Unlock()
	if !first {
		select {
		case <-e.shut:
		case <-ctx.Done():
			e.hurryOnce.Do(func() { close(e.hurry) })
			<-e.shut
		}
		return e.leftHeld
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // ends with ctx, at the end of this function
		select {
		case <-e.hurry:
			cancel()
		case <-ctx.Done():
		}
	}()
	defer close(e.shut)
	e.leftHeld = e.close(ctx)
	return e.leftHeld
}

func (e *Engine) close(ctx context.Context) (left []string) {
	// Waiters leave without waiting for the server, unless the network holds
	// up a write of theirs.
	select {
	case <-e.idle:
	case <-ctx.Done():
		t := time.NewTimer(e.cfg.ReleaseTimeout)
		defer t.Stop()
		select {
		case <-e.idle:
		case <-t.C:
		}
	}
	left = e.keeper.close(ctx)

	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.cfg.ReleaseTimeout)
	defer cancel()
	tail := make(chan struct{})
	go func() { // on its own, because a stuck network can hold it up for a minute
		defer close(tail)
		if e.kv.Healthy() != nil {
			cancel()
		}
		e.sender.stop(grace)
		e.rest(grace)
		e.leaver.stop(grace)
		e.mu.Lock()
		e.end()
		e.mu.Unlock()
		e.rest(context.Background())
		e.ghosts.close()
		e.teller.stop(grace)
		e.kv.Close()
	}()
	t := time.NewTimer(2 * e.cfg.ReleaseTimeout)
	defer t.Stop()
	select {
	case <-tail:
	case <-t.C:
	}
	return left
}
