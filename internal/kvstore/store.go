package kvstore

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Store is a bucket reached over a connection. It implements [KV]. Its parts read, write and
// watch the stream's records. Each has its own state and knows nothing of the others.
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

// Close ends the store's watches, subscriptions and goroutines and waits for the goroutines,
// so it must not be called from one of its callbacks. The connection belongs to the caller
// and stays open. Answers that arrive later are dropped, and calls still waiting for one
// return [ErrClosed].
func (s *Store) Close() {
	s.closing.Do(func() { // another Close meanwhile would stop the sender before it has the ends of the subscriptions
		s.line.close()
		s.watcher.close()
	})
	s.awaitGoroutines()
}

// Verify reads the bucket's settings again, because other users can change them or delete
// the bucket. It logs settings that have become worse, and moves the watches if the
// notifications now have other subjects. It returns nil, or an error matching
// [ErrBucketConfig], [ErrNotFound] (the bucket was deleted), [ErrRemade] or [ErrFull]. If
// the bucket was re-created unfit, the error matches both ErrRemade and ErrBucketConfig.
// Other errors match [ErrUnavailable], [ErrPermission], [ErrClosed] or ctx's error.
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
			s.cfg.Logger.Warn("lock bucket was changed: its notifications have other subjects (republish). Those sent since then are lost: watches follow, and waiters check",
				"bucket", s.cfg.Bucket, "subjects", now.notify+">")
		}
		s.recheck(time.Time{}) // events were missed, and after a deletion nothing watched exists any more
	}
	// A deleted bucket ends its locks, whatever the new one holds and however it is set:
	// someone may repair it before it is verified again.
	if remade { //safety:re-created
		err := fmt.Errorf("bucket %q: %w", s.cfg.Bucket, ErrRemade)
		if unfit != nil {
			err = fmt.Errorf("%w, and is not safe: %w", err, unfit)
		}
		return err
	}
	if unfit == nil {
		return now.room
	}
	return unfit
}
