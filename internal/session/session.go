package session

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/keeper"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/plain"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/worker"
)

const (
	// DefaultTTL suits a bucket with three replicas, where a leader's death stops writes for 4 to 9 s.
	DefaultTTL = 15 * time.Second
	// DefaultReleaseTimeout limits how long a release takes.
	DefaultReleaseTimeout = 5 * time.Second
	// DefaultWatchAfter is long enough that short critical sections need no subscription.
	DefaultWatchAfter = time.Second
)

// Config configures how a client holds its leases. A zero field means the default, except for WatchAfter, where it
// means immediately.
type Config struct {
	TTL            time.Duration
	ReleaseTimeout time.Duration
	WatchAfter     time.Duration // negative means never
	Logger         *slog.Logger
	Observe        func(context.Context, Event) // nil if there is no observer
}

// Session manages what a client holds: its leases, its places in queues, and the cleanup after both. Its goroutines
// start with the first record and end with [Session.Close].
type Session struct {
	Config
	*keeper.Keeper

	b        *bucket.Bucket
	notifier notifier

	verified atomic.Int64 // when the bucket was last verified
	doubted  atomic.Bool  // a verification by doubtBucket is in progress

	verdict   sync.Mutex // guards the following fields
	badBucket error      // the last verdict on the bucket; nil if it is good
	again     bool       // whether verifyAgain is running
}

const (
	// verifyEvery is the interval between verifications while a client has leases or waits, because others can change
	// the bucket's settings without any notification.
	verifyEvery = 5 * time.Minute
	// verifyTaking is the interval while the client is taking locks, because it must not take any in an unfit bucket.
	verifyTaking = 2 * time.Minute
	// verifyBad is the interval while the bucket is bad.
	verifyBad = 5 * time.Second
)

// New returns a session for a bucket. It starts nothing unless the bucket is nearly full.
func New(b *bucket.Bucket, cfg Config) *Session {
	cfg.TTL = cmp.Or(cfg.TTL, DefaultTTL)
	cfg.ReleaseTimeout = cmp.Or(cfg.ReleaseTimeout, DefaultReleaseTimeout)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Session{Config: cfg, b: b, notifier: notifier{observe: cfg.Observe, worker: worker.New()}}
	s.Keeper = keeper.New(b, keeper.Config{
		Doubted: s.doubtBucket, Warn: s.warn,
		Holding: func() { s.verifyAfter(verifyEvery) },
	})
	s.verified.Store(int64(b.Instant())) // opening the bucket counts as a verification
	b.Notify(s.connectionChanged)
	if full := b.Room(); full != nil {
		s.judged(full)
	}
	return s
}

// Notify passes an event to the observer. ctx is the acquire's context.
func (s *Session) Notify(ctx context.Context, ev Event) { s.notifier.notify(ctx, ev) }

// warn logs a warning: see [Session.log].
func (s *Session) warn(msg string, args ...any) { s.log(slog.LevelWarn, msg, args...) }

// log logs on the observers' goroutine, so that a blocking handler delays no lock. The entry is stamped with the time
// of the call.
func (s *Session) log(level slog.Level, msg string, args ...any) {
	r := slog.NewRecord(time.Now(), level, msg, 0)
	r.Add(args...)
	s.notifier.worker.Add(func() {
		if h := s.Logger.Handler(); h.Enabled(context.Background(), r.Level) {
			_ = h.Handle(context.Background(), r) // there is nowhere to report the error
		}
	})
}

// Count returns the number of transitions of type t.
func (s *Session) Count(t EventType) uint64 { return s.notifier.counts[t].Load() }

// connectionChanged runs on a goroutine of the store and must not block.
func (s *Session) connectionChanged(state kvstore.ConnState) {
	switch state {
	case kvstore.Connected:
		s.RenewAll()
		s.Work.Go(s.Verify)
	case kvstore.Closed:
		// Nothing will be renewed anymore, but each context lasts until its lease's validity ends.
		s.WarnAll(fmt.Errorf("%w: connection closed", bucket.ErrUnavailable))
	case kvstore.Doubtful:
		s.doubtBucket()
	}
}

// VerifyIfDue verifies the bucket if a verification is due. Every acquire calls it, because the renewer verifies the
// bucket only while the client holds something.
func (s *Session) VerifyIfDue() {
	s.verifyAfter(verifyTaking) //safety:taking-verified
}

// verifyAfter verifies the bucket in the background if the last verification was at least d ago.
func (s *Session) verifyAfter(d time.Duration) {
	now, last := s.b.Instant(), s.verified.Load()
	if now.Sub(clock.Instant(last)) >= d && s.verified.CompareAndSwap(last, int64(now)) {
		s.Work.Go(s.Verify)
	}
}

// Verify checks the bucket again. If another bucket has replaced it, the leases in the old one are lost. No lock is
// granted while the bucket is unfit or nearly full.
func (s *Session) Verify(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, s.TTL)
	defer cancel()
	s.verified.Store(int64(s.b.Instant()))
	err := s.b.Verify(ctx)
	remade := bucket.IsAny(err, kvstore.ErrRemade)
	switch {
	case bucket.IsAny(err, kvstore.ErrBucketConfig, kvstore.ErrFull):
		s.judged(err)
	case err == nil || remade: // the new bucket was verified
		s.judged(nil)
	case bucket.IsAny(err, kvstore.ErrNotFound):
		s.judged(err)
		s.LoseAll(core.EndLost, err.Error())
	}
	if remade { // whether the new bucket is fit or not
		s.LoseAbsent(func(key string, revision uint64) (record.Entry, error) { return s.b.Read(ctx, key, revision) }, kvstore.ErrRemade.Error()) //safety:bucket-gone
	}
}

// judged handles the verdict on the bucket, which is an error if the bucket is unfit, gone or nearly full. When a
// bucket becomes unfit, the holders of its locks are warned.
func (s *Session) judged(bad error) {
	full := bucket.IsAny(bad, kvstore.ErrFull)
	s.verdict.Lock()
	was := s.badBucket
	s.badBucket = bad
	unfit, wasUnfit := bucket.IsAny(bad, kvstore.ErrBucketConfig), bucket.IsAny(was, kvstore.ErrBucketConfig)
	switch {
	case unfit:
		s.b.Refuse(bad) //safety:unfit-refused
	case wasUnfit:
		s.b.Grant()
	}
	begins := bad != nil && !s.again
	if begins {
		s.again = true
	}
	s.verdict.Unlock()
	switch {
	case unfit && (!wasUnfit || bad.Error() != was.Error()):
		s.Logger.Error("lock bucket is unfit: this client grants no locks until it is repaired",
			"bucket", s.b.KV.Bucket(), "held", s.Held(), "error", bad)
		s.WarnAll(bad)
	case full && !bucket.IsAny(was, kvstore.ErrFull):
		s.Logger.Warn("lock bucket is full: this client takes no new locks until there is room",
			"bucket", s.b.KV.Bucket(), "held", s.Held(), "error", bad)
	case wasUnfit && bad == nil:
		s.Logger.Warn("lock bucket is fit again", "bucket", s.b.KV.Bucket())
	}
	if begins {
		s.Work.Go(s.verifyAgain)
	}
}

// verifyAgain keeps verifying a bad bucket until it is good again or the client ends.
func (s *Session) verifyAgain(ctx context.Context) {
	for {
		_ = s.b.Sleep(s.b.Life(), verifyBad, nil)
		s.verdict.Lock()
		if s.badBucket == nil || s.b.Life().Err() != nil {
			s.again = false
			s.verdict.Unlock()
			return
		}
		s.verdict.Unlock()
		s.Verify(ctx)
	}
}

// doubtBucket verifies the bucket in the background, because a missing record is the first sign of a deleted bucket.
func (s *Session) doubtBucket() {
	if s.doubted.Swap(true) {
		return
	}
	s.Work.Go(func(ctx context.Context) {
		s.Verify(ctx)
		s.doubted.Store(false)
	})
}

// Healthy returns nil, or an error that lists everything that endangers the locks: the connection, a stream that
// accepts no writes, the bucket, or unanswered renewals.
func (s *Session) Healthy() error {
	if s.b.Closed() {
		return bucket.ErrClosed
	}
	s.verdict.Lock()
	bad := s.badBucket
	s.verdict.Unlock()
	return plain.Join(s.b.Healthy(), bad, s.b.Backwards(), s.AtRisk())
}

// ClosedWithin notes that an observer is closing the client, so that Close does not wait for the observer.
func (s *Session) ClosedWithin() { s.notifier.worker.StopWithin() }

// Close waits until ctx ends for the holders to release their leases, and then ends the remaining ones with cause
// [bucket.ErrClosed]. It leaves their records to expire with their TTLs, because the holders' work may still be
// stopping. It returns the names of the locks still held. Pending cleanup may take another release timeout.
func (s *Session) Close(ctx context.Context) (left []string) {
	left = s.Keeper.Close(ctx)
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.ReleaseTimeout)
	defer cancel()
	tail := make(chan struct{})
	go func() { // separately, because a stuck network can block this for a minute
		defer close(tail)
		if s.b.Healthy() != nil {
			cancel()
		}
		s.Finish(grace)
		s.notifier.worker.Stop(grace)
		s.b.KV.Close()
	}()
	t := time.NewTimer(2 * s.ReleaseTimeout)
	defer t.Stop()
	select {
	case <-tail:
	case <-t.C:
	}
	return left
}
