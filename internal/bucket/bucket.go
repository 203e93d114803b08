package bucket

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
)

// These sentinel errors are documented in package natslock.
var (
	ErrUnavailable = kvstore.ErrUnavailable
	ErrPermission  = kvstore.ErrPermission
	ErrClosed      = errors.New("client closed")
	// ErrNoAnswer means that no reply to a write arrived, for an unknown reason, and that the outcome is unknown.
	ErrNoAnswer = fmt.Errorf("%w: no answer", ErrUnavailable)
)

const (
	// AnswerTimeout limits the wait for the reply to a single write. After that, the outcome is treated as unknown.
	AnswerTimeout = time.Second
	// DeniedAfter is how long a client waits for a reply before it checks whether the server has denied access to the
	// subject. It checks again at growing intervals.
	DeniedAfter = 50 * time.Millisecond
)

// Bucket gives a client access to its bucket. It embeds the store, whose Now estimates the servers' clock;
// [Bucket.Instant] reads the local clock.
type Bucket struct {
	kvstore.KV
	Client    string // client ID for records
	Recent    Recent // what the client has released recently
	author    record.Body
	clock     func() clock.Instant
	timers    sync.Pool
	highest   atomic.Uint64
	backwards atomic.Pointer[error] // error of a claim whose revision was not above highest; nil again once a later revision is above it
	conn      connection
	life      context.Context
	quit      context.CancelCauseFunc
	grants    atomic.Pointer[granting]
	refused   atomic.Pointer[error]
	postponed atomic.Pointer[error]
	closed    atomic.Bool
}

// processStart distinguishes processes that have the same PID.
var processStart = time.Now().UnixMilli()

// New returns the Bucket of a new client that uses kv. It starts nothing. owner is the owner's name to write into the
// client's records. If now is nil, [clock.Now] is used.
func New(kv kvstore.KV, owner string, now func() clock.Instant) *Bucket {
	if now == nil {
		now = clock.Now
	}
	b := &Bucket{KV: kv, Client: rand.Text(), clock: now, conn: connection{up: make(chan struct{}), gone: make(chan struct{})}}
	host, _ := os.Hostname()
	b.author = record.Body{Client: b.Client, Owner: owner, Host: host, PID: os.Getpid(), Started: processStart}
	b.life, b.quit = context.WithCancelCause(context.Background())
	b.Grant()
	return b
}

// StandFor makes the client's records name another process on this machine, on whose behalf the client takes locks.
func (b *Bucket) StandFor(pid int) { b.author.PID, b.author.Started = pid, 0 }

// Owner returns the owner's name that the client writes into its records.
func (b *Bucket) Owner() string { return b.author.Owner }

// Body returns the part of a record's body that all of this client's records share.
func (b *Bucket) Body(status record.Status, meta map[string]string) record.Body {
	body := b.author
	body.Status, body.Meta = status, meta
	return body
}

// Instant reads the local clock.
func (b *Bucket) Instant() clock.Instant { return b.clock() }

// Life returns the context that bounds every wait. It ends when the client or the connection is closed, and its cause
// says which.
func (b *Bucket) Life() context.Context { return b.life }

// granting is a period in which the client either grants locks or refuses to.
type granting struct {
	ctx context.Context
	end context.CancelCauseFunc
}

// Granting returns the context of all acquires. It ends with [Bucket.Life], or when the client learns that the bucket
// is unfit, and its cause says why.
func (b *Bucket) Granting() context.Context { return b.grants.Load().ctx }

// Refuse ends all acquires and rejects new ones until [Bucket.Grant] is called. In an unfit bucket, clients may fail to
// exclude one another or may lose their records.
func (b *Bucket) Refuse(why error) {
	b.refused.Store(&why)
	b.grantUntil(why)
}

// Grant allows acquires again.
func (b *Bucket) Grant() { b.grantUntil(nil) }

// grantUntil starts a new granting period. If ended is not nil, it is the reason that the client grants no locks in
// that period.
func (b *Bucket) grantUntil(ended error) {
	g := &granting{}
	g.ctx, g.end = context.WithCancelCause(b.life)
	if ended != nil {
		g.end(ended)
	}
	if before := b.grants.Swap(g); before != nil {
		before.end(ended)
	}
}

// Refused returns the reason passed to the last [Bucket.Refuse], or nil if there was none.
func (b *Bucket) Refused() error {
	if why := b.refused.Load(); why != nil {
		return *why
	}
	return nil
}

// Postpone stops new claims and places for the given reason, until it is called again with nil. It does not end waits
// that are already in progress.
func (b *Bucket) Postpone(why error) { b.postponed.Store(&why) }

// Admits returns nil if new claims and places can be written, and otherwise the reason that they cannot. The error
// matches [ErrUnavailable].
func (b *Bucket) Admits() error {
	if why := b.postponed.Load(); why != nil && *why != nil {
		return *why
	}
	return b.Room()
}

// Quit closes the client, which ends [Bucket.Life].
func (b *Bucket) Quit() {
	b.closed.Store(true)
	b.quit(ErrClosed)
}

// Closed reports whether the client is closed. The cause of [Bucket.Life] does not show this if the connection was
// closed first.
func (b *Bucket) Closed() bool { return b.closed.Load() }

// Highest returns the highest revision that the server has acknowledged to this client.
func (b *Bucket) Highest() uint64 { return b.highest.Load() }

// Acknowledged records a revision that the server has acknowledged.
func (b *Bucket) Acknowledged(revision uint64) {
	for {
		h := b.highest.Load()
		if revision <= h {
			return
		}
		if b.highest.CompareAndSwap(h, revision) {
			b.backwards.Store(nil)
			return
		}
	}
}

// WentBackwards records that the server has acknowledged a claim at a revision no higher than the highest known
// revision. The client gets no lock until the server acknowledges a higher revision.
func (b *Bucket) WentBackwards(why error) { b.backwards.Store(&why) }

// Backwards returns the error passed to [Bucket.WentBackwards], or nil if revisions are rising.
func (b *Bucket) Backwards() error {
	if why := b.backwards.Load(); why != nil {
		return *why
	}
	return nil
}

// Timer is like time.NewTimer but reuses timers, for waits that are nearly always short. Pass the timer to TimerDone
// when done. Each bucket has its own timers, because a timer from one synctest bubble cannot be used in another.
func (b *Bucket) Timer(d time.Duration) *time.Timer {
	if t, ok := b.timers.Get().(*time.Timer); ok {
		t.Reset(d)
		return t
	}
	return time.NewTimer(d)
}

// TimerDone stops a timer returned by [Bucket.Timer] and keeps it for reuse.
func (b *Bucket) TimerDone(t *time.Timer) {
	t.Stop()
	b.timers.Put(t)
}

// answerWithin limits the wait for a reply. After d, the context ends with a cause that matches [ErrUnavailable].
func answerWithin(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, d, fmt.Errorf("%w: no answer within %v", ErrUnavailable, d))
}

// bounded returns ctx's cause if ctx has ended and parent has not, and otherwise err. The caller must not see the error
// of a context that is not its own.
func bounded(parent, ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil && parent.Err() == nil {
		return context.Cause(ctx)
	}
	return err
}

// Unavailable makes err match [ErrUnavailable].
func Unavailable(err error) error {
	if errors.Is(err, ErrUnavailable) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

// IsAny reports whether err matches one of targets.
func IsAny(err error, targets ...error) bool {
	for _, t := range targets {
		if errors.Is(err, t) {
			return true
		}
	}
	return false
}
