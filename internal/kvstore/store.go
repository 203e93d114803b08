package kvstore

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Store is a bucket accessed over a connection. It implements [KV]. Its parts read, write
// and watch the stream's records; each has its own state and knows nothing about the
// others.
type Store struct {
	*stream
	*reader
	*writer
	*watcher
	closing sync.Once
}

var (
	_ KV        = (*Store)(nil)
	_ Historian = (*Store)(nil)
)

func newStore(js jetstream.JetStream, cfg Config) *Store {
	s := newStream(js, cfg)
	w := newWatcher(s)
	return &Store{stream: s, reader: &reader{stream: s}, writer: newWriter(s, w.unnotified), watcher: w}
}

// Close ends the store's watches, subscriptions and goroutines. It waits for the
// goroutines, so it must not be called from one of the store's callbacks. The connection
// belongs to the caller and stays open. Replies that arrive later are dropped, and calls
// that are still waiting for one return [ErrClosed].
func (s *Store) Close() {
	// The Once makes a concurrent Close wait here. Without it, that Close could stop the
	// sender before the unsubscribe calls are queued.
	s.closing.Do(func() {
		s.line.close()
		s.watcher.close()
	})
	s.awaitGoroutines()
}

// Verify rereads the bucket's settings, because other users can change them or delete the
// bucket. It logs settings that have become worse, and it moves the watches if
// notifications are now published on other subjects. It returns nil, or an error matching
// [ErrBucketConfig], [ErrNotFound] (the bucket was deleted), [ErrRemade] or [ErrFull]. If
// the bucket was re-created with unsafe settings, the error matches both ErrRemade and
// ErrBucketConfig. Other errors match [ErrUnavailable], [ErrPermission], [ErrClosed] or
// ctx's error.
func (s *Store) Verify(ctx context.Context) error {
	info, err := s.ask(ctx, infoRequest{}, own)
	if err != nil {
		return fmt.Errorf("verify bucket %q: %w", s.cfg.Bucket, err)
	}
	before := s.seen.Load()
	unfit := s.adopt(&info.Info)
	now := s.seen.Load()
	for _, w := range now.warnings {
		if !slices.Contains(before.warnings, w) {
			s.cfg.Logger.Warn("lock bucket was changed: "+w, "bucket", s.cfg.Bucket)
		}
	}
	remade := !before.created.Equal(info.Created)
	if moved := s.move(now.notify); moved || remade { //safety:watches-moved
		if moved && !remade {
			s.cfg.Logger.Warn("lock bucket was changed: its notifications moved to other subjects (republish); those sent since are lost, watches have moved, and waiters will recheck",
				"bucket", s.cfg.Bucket, "subjects", now.notify+">")
		}
		s.recheck(time.Time{}) // events were missed, and if the bucket was deleted, so was everything watched
	}
	// Deleting the bucket ended its locks, whatever the new bucket contains and however it
	// is configured. Report that even if the new bucket is unfit, because someone may
	// repair it before the next verification.
	if remade { //safety:re-created
		err := fmt.Errorf("bucket %q: %w", s.cfg.Bucket, ErrRemade)
		if unfit != nil {
			err = fmt.Errorf("%w, and the new one is not safe: %w", err, unfit)
		}
		return err
	}
	if unfit == nil {
		return now.room
	}
	return unfit
}
