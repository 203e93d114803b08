package bucket

import (
	"context"
	"errors"
	"time"

	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/kvstore"
)

// Read returns the record under key as of a state that contains a revision; the zero
// entry when there is none.
func (b *Bucket) Read(parent context.Context, key string, revision uint64) (record.Entry, error) {
	ctx, cancel := AnswerWithin(parent, AnswerTimeout)
	defer cancel()
	r, err := b.Get(ctx, key, revision)
	switch {
	case errors.Is(err, kvstore.ErrNotFound):
		return record.Entry{}, nil
	case err != nil:
		return record.Entry{}, Bounded(parent, ctx, err)
	}
	return record.Of(r), nil
}

// ReadBeside returns the record that is now under the key of entry, which was read
// before, and the record under another key, by one request where the user may read
// many keys.
func (b *Bucket) ReadBeside(ctx context.Context, entry record.Entry, key string) (now, beside record.Entry, err error) {
	ctx, cancel := AnswerWithin(ctx, AnswerTimeout)
	defer cancel()
	l, err := b.List(ctx, entry.Key, entry.Revision, kvstore.Beside(key))
	if err != nil {
		return now, beside, err
	}
	if len(l.Records) > 0 {
		now = record.Of(l.Records[0])
	}
	if l.Beside.Revision != 0 {
		beside = record.Of(l.Beside)
	}
	return now, beside, nil
}

// ListSoon is List with a bounded wait for the answer.
func (b *Bucket) ListSoon(parent context.Context, pattern string, revision uint64, opts ...kvstore.ListOption) (kvstore.Listing, error) {
	ctx, cancel := AnswerWithin(parent, 2*AnswerTimeout)
	defer cancel()
	l, err := b.List(ctx, pattern, revision, opts...)
	return l, Bounded(parent, ctx, err)
}

// Leader asks the stream's leader for its state, which names a revision that the
// bucket has reached and the server's time. It waits at most for within.
func (b *Bucket) Leader(parent context.Context, within time.Duration) (kvstore.State, error) {
	ctx, cancel := AnswerWithin(parent, within)
	defer cancel()
	st, err := b.State(ctx, "")
	return st, Bounded(parent, ctx, err)
}
