package session

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/clock"
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
)

// Config is how a client holds its leases. Zero means the default, but for
// WatchAfter, where it means at once.
type Config struct {
	TTL            time.Duration
	RenewFraction  float64
	Margin         float64
	ReleaseTimeout time.Duration
	WatchAfter     time.Duration // negative: never
	Logger         *slog.Logger
	Observe        func(context.Context, Event) // nil: nobody
}

// Session is what one client holds: its leases, its places in queues, and the
// clean-up after both. Its goroutines start with the first record and end with
// [Session.Close].
type Session struct {
	Config

	b        *bucket.Bucket
	renewer  *renewer
	orphans  orphans
	sender   *bucket.Worker // I/O of the renewer, and the ends of watches
	notifier notifier
	work     work

	mu        sync.Mutex
	badBucket error // the result of Verify

	doubted atomic.Bool // a verification of the bucket is under way
}

// New returns a session on a bucket. It starts nothing.
func New(b *bucket.Bucket, cfg Config) *Session {
	cfg.TTL = cmp.Or(cfg.TTL, DefaultTTL)
	cfg.RenewFraction = cmp.Or(cfg.RenewFraction, DefaultRenewFraction)
	cfg.Margin = cmp.Or(cfg.Margin, clock.DefaultMargin)
	cfg.ReleaseTimeout = cmp.Or(cfg.ReleaseTimeout, DefaultReleaseTimeout)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Session{
		Config: cfg, b: b, sender: bucket.NewWorker(),
		notifier: notifier{observe: cfg.Observe, worker: bucket.NewWorker()},
	}
	s.work.ctx, s.work.end = context.WithCancel(context.Background())
	s.renewer = newRenewer(s)
	b.Notify(s.connectionChanged)
	return s
}

// Background runs clean-up work that outlives its caller. Its context ends when Close
// gives up on it.
func (s *Session) Background(fn func(ctx context.Context)) { s.work.background(fn) }

// Working is the context of the clean-up work.
func (s *Session) Working() context.Context { return s.work.ctx }

// Send runs fn, which does I/O, on the goroutine of the renewals.
func (s *Session) Send(fn func()) { s.sender.Add(fn) }

// Notify hands an event to the observer. ctx is the acquire's.
func (s *Session) Notify(ctx context.Context, ev Event) { s.notifier.notify(ctx, ev) }

// warn logs on the goroutine of the observers: a handler that blocks delays no lock. The entry
// has the time of the call.
func (s *Session) warn(msg string, args ...any) {
	r := slog.NewRecord(time.Now(), slog.LevelWarn, msg, 0)
	r.Add(args...)
	s.notifier.worker.Add(func() {
		if h := s.Logger.Handler(); h.Enabled(context.Background(), r.Level) {
			_ = h.Handle(context.Background(), r) // there is nowhere to report it
		}
	})
}

// Count returns how often a transition has happened.
func (s *Session) Count(t EventType) uint64 { return s.notifier.counts[t].Load() }

// Held returns how many locks are held.
func (s *Session) Held() int { return s.renewer.count() }

// connectionChanged runs on a goroutine of the store and must not block.
func (s *Session) connectionChanged(state kvstore.ConnState) {
	switch state {
	case kvstore.Connected:
		s.renewer.renewAll()
		s.Background(s.Verify)
	case kvstore.Closed:
		s.renewer.connectionClosed()
	}
}

// Verify checks the bucket again. If another bucket has replaced it, the leases of the old
// one are lost.
func (s *Session) Verify(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, s.TTL)
	defer cancel()
	err := s.b.Verify(ctx)
	switch {
	case err == nil:
	case bucket.IsAny(err, kvstore.ErrNotFound):
		s.renewer.loseAll(err.Error())
	case bucket.IsAny(err, kvstore.ErrRemade):
		s.loseAbsent(ctx, err.Error()) //safety:bucket-gone
		err = nil                      // the new one was verified
	case bucket.IsAny(err, kvstore.ErrBucketConfig):
		s.Logger.Error("lock bucket was changed", "bucket", s.b.KV.Bucket(), "error", err)
	default:
		return // no answer says nothing about the bucket
	}
	s.mu.Lock()
	s.badBucket = err
	s.mu.Unlock()
}

// doubtBucket verifies the bucket in the background: that a record has gone is how a client
// notices first that the bucket was deleted.
func (s *Session) doubtBucket() {
	if s.doubted.Swap(true) {
		return
	}
	s.Background(func(ctx context.Context) {
		s.Verify(ctx)
		s.doubted.Store(false)
	})
}

// loseAbsent ends the records that a read does not show in the bucket, and those without an
// answer. The client may have been granted others in the new bucket already. A comparison of
// revisions proves nothing: those of the new bucket begin below old ones where the clock that
// they come from is behind.
func (s *Session) loseAbsent(ctx context.Context, why string) {
	var rest []*kept
	s.renewer.held(func(k *kept) { rest = append(rest, k) })
	for _, k := range rest {
		_, revision := k.Confirmation()
		entry, err := s.b.Read(ctx, k.Key, revision)
		if err == nil && entry.Live() && entry.From(k.Body.ID) { //safety:bucket-new
			continue
		}
		k.mu.Lock()
		lost := k.lose(ErrLost, why)
		k.mu.Unlock()
		lost.finish()
	}
}

// Healthy returns nil, or all that endangers the locks: the connection, a stream
// that accepts no writes, the bucket, renewals without an answer.
func (s *Session) Healthy() error {
	if s.b.Closed() {
		return bucket.ErrClosed
	}
	s.mu.Lock()
	bad := s.badBucket
	s.mu.Unlock()
	return errors.Join(s.b.Healthy(), bad, s.renewer.atRisk())
}

// Discard deletes a record of a claim that is over, at exactly a revision: a courtesy,
// so that nobody waits for its TTL.
func (s *Session) Discard(key, id string, revision uint64) {
	s.Background(func(ctx context.Context) { // callers are goroutines of the store
		ctx, cancel := context.WithTimeout(ctx, orphanLife)
		defer cancel()
		for try := 0; ; try++ {
			up := s.b.Online()
			err := s.b.Delete(ctx, key, revision, id)
			if err == nil || bucket.IsAny(err, kvstore.ErrConflict, bucket.ErrPermission, kvstore.ErrClosed, kvstore.ErrConnectionClosed) || s.b.Sleep(ctx, clock.OutageBackoff(try), up) != nil {
				return
			}
		}
	})
}

// ClosedWithin says that an observer closes the client: Close does not wait for it.
func (s *Session) ClosedWithin() { s.notifier.worker.StopWithin() }

// Close waits for the holders' own releases until ctx ends, and then ends what is left
// with cause [bucket.ErrClosed]. The records of those are left to their TTL: their
// holders' work may still be stopping. It returns the names still held. Clean-up
// under way may take a release timeout longer.
func (s *Session) Close(ctx context.Context) (left []string) {
	left = s.renewer.close(ctx)
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.ReleaseTimeout)
	defer cancel()
	tail := make(chan struct{})
	go func() { // on its own, because a stuck network can hold it up for a minute
		defer close(tail)
		if s.b.Healthy() != nil {
			cancel()
		}
		s.sender.Stop(grace)
		s.work.rest(grace)
		s.b.StopPosting(grace)
		s.work.cancel()
		s.work.rest(context.Background())
		s.orphans.close()
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
