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

// nats.go holds the mutex of a connection while it writes to the network, for up to a minute
// (its FlusherTimeout), and while it tries to connect. A context cannot interrupt the wait
// for that mutex. So one goroutine, the sender, makes all calls that take it. Other
// goroutines queue their calls and wait as long as they like. Queued calls are made in
// order: a subscription comes before a write that is sent later.

const (
	// stuckAfter is how long a call into the connection may take before the store considers
	// it stuck and queues no more messages.
	stuckAfter = time.Second
	// subscribeWithin is how long Watch waits to learn whether the connection is closed or
	// drains. A subscription that takes longer is still made.
	subscribeWithin = 100 * time.Millisecond
	// permissionPoll is the pause between two checks for a refusal: the server reports a
	// forbidden subject on the connection, not in an answer.
	permissionPoll = 25 * time.Millisecond
	// lookEvery is how long the store caches the last error of the connection: many callers
	// may wait for an answer, and each read of that error occupies the sender.
	lookEvery = permissionPoll / 5
)

// sender makes the calls into the connection that take its mutex.
type sender struct {
	calls   *worker.Worker // runs them
	nc      *nats.Conn
	made    time.Time
	upSince atomic.Int64 // when the connection last came back, since made

	mu       sync.Mutex // guards the fields below; never held across I/O
	denial   error      // the connection's last error when it was last read, if it denies a subject
	deniedAt time.Time  // when that was first read
	lookedAt time.Time  // when the last read began
}

// now returns the time since the store was created.
func (s *sender) now() time.Duration { return time.Since(s.made) }

// stuck reports whether the sender has been waiting for the connection for more than
// stuckAfter. When the connection comes back, that time starts again.
func (s *sender) stuck() bool {
	return s.calls.Busy() > stuckAfter && s.now()-time.Duration(s.upSince.Load()) > stuckAfter
}

// fromConn runs fn, which calls the connection, on the sender and returns its result. It
// waits for at most d, and not beyond the end of ctx.
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

// lastDenial returns the last error that the server reported on the connection, if it denies
// a subject, and when it was first read.
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

// unsent is the error of a message that was certainly not sent.
type unsent struct{ error }

func (u unsent) Unwrap() error { return u.error }

// NotSent reports whether err is the error of a write that the connection has not accepted
// and will never send. The outcome of any other write without an answer is unknown.
func NotSent(err error) bool {
	_, ok := errors.AsType[unsent](err)
	return ok
}

var (
	errAway  = fmt.Errorf("%w: not sent, connection is reconnecting", ErrUnavailable)
	errStuck = fmt.Errorf("%w: not sent, connection has taken no message for %v: its network is stuck, or it is reconnecting", ErrUnavailable, stuckAfter)
)

// connError makes a client-side failure to publish or subscribe match the package's
// sentinels.
func connError(err error) error {
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}
