package kvstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/natslock/locks/internal/worker"
)

// nats.go holds a connection's mutex while it writes to the network, for up to a minute
// (its FlusherTimeout), and while it tries to connect. A context cannot interrupt a
// goroutine that is waiting for the mutex. Therefore, a single goroutine, the sender, makes
// every call that locks it. Other goroutines queue their calls and wait only as long as
// they choose to. Queued calls run in order, so a subscription always precedes the writes
// sent after it.

const (
	// stuckAfter is how long a call into the connection can take before the store considers
	// the connection stuck and stops queueing messages.
	stuckAfter = time.Second
	// subscribeWithin is how long Watch waits to learn whether the connection is closed or
	// draining. A subscription that takes longer completes in the background.
	subscribeWithin = 100 * time.Millisecond
	// permissionPoll is the initial interval between checks for a permission error, which
	// the server reports on the connection rather than in a reply.
	permissionPoll = 25 * time.Millisecond
	// lookEvery is how long the store caches the connection's last error. Many callers may
	// be waiting for replies, and reading that error occupies the sender each time.
	lookEvery = permissionPoll / 5
)

// sender makes the calls that lock the connection's mutex.
type sender struct {
	calls   *worker.Worker // runs the calls
	nc      *nats.Conn
	made    time.Time
	upSince atomic.Int64 // when the connection last came back, relative to made

	mu       sync.Mutex // guards the fields below; never held across I/O
	denial   error      // the connection's last error as last read, if it is a permission violation
	deniedAt time.Time  // when denial was first read
	lookedAt time.Time  // when the last read began
}

// now returns the time since the store was created.
func (s *sender) now() time.Duration { return time.Since(s.made) }

// stuck reports whether the sender has been waiting for the connection for more than
// stuckAfter. A reconnect resets the clock.
func (s *sender) stuck() bool {
	return s.calls.Busy() > stuckAfter && s.now()-time.Duration(s.upSince.Load()) > stuckAfter
}

// fromConn runs fn, which calls into the connection, on the sender and returns its result.
// It gives up, with ok false, after d or when ctx ends.
func fromConn[T any](ctx context.Context, s *sender, d time.Duration, fn func() T) (v T, ok bool) {
	answer := make(chan T, 1)
	if s.stuck() || !s.calls.Add(func() { answer <- fn() }) {
		return v, false
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case v = <-answer:
		return v, true
	case <-ctx.Done():
	case <-t.C:
	}
	return v, false
}

// lastDenial returns the last error that the server reported on the connection, if it is a
// permission violation, and the time at which it was first read.
func (s *sender) lastDenial(ctx context.Context) (at time.Time, err error) {
	s.mu.Lock()
	at, err = s.deniedAt, s.denial
	now := time.Now()
	if now.Sub(s.lookedAt) < lookEvery {
		s.mu.Unlock()
		return at, err
	}
	s.lookedAt = now
	s.mu.Unlock()
	err, ok := fromConn(ctx, s, permissionPoll, s.nc.LastError)
	if !ok {
		return at, nil
	}
	if !errors.Is(err, nats.ErrPermissionViolation) {
		err = nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != s.denial {
		s.denial, s.deniedAt = err, time.Now()
	}
	return s.deniedAt, err
}

// unsent is the error of a message that is known not to have been sent.
type unsent struct{ error }

func (u unsent) Unwrap() error { return u.error }

// NotSent reports whether err means that the connection has not accepted a write and will
// never send it. The outcome of any other unanswered write is unknown.
func NotSent(err error) bool {
	_, ok := errors.AsType[unsent](err)
	return ok
}

var (
	errAway  = fmt.Errorf("%w: not sent: connection is reconnecting", ErrUnavailable)
	errStuck = fmt.Errorf("%w: not sent: connection has accepted no message for %v because its network is stuck or it is reconnecting", ErrUnavailable, stuckAfter)
)

// connError makes a client-side publish or subscribe error match [ErrUnavailable].
func connError(err error) error {
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}
