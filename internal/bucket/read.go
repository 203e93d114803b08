package bucket

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
)

// Read returns the record under key as of a state that contains revision, or the zero entry if there is no record.
func (b *Bucket) Read(parent context.Context, key string, revision uint64) (record.Entry, error) {
	ctx, cancel := answerWithin(parent, AnswerTimeout)
	defer cancel()
	r, err := b.Get(ctx, key, revision)
	switch {
	case errors.Is(err, kvstore.ErrNotFound):
		return record.Entry{}, nil
	case err != nil:
		return record.Entry{}, bounded(parent, ctx, err)
	}
	return record.Of(r), nil
}

// ReadNow returns the record under key as of what the leader has stored during the call, and of revision. asked is when
// the leader was asked for its state st.
func (b *Bucket) ReadNow(ctx context.Context, key string, revision uint64) (e record.Entry, st kvstore.State, asked clock.Instant, err error) {
	asked = b.Instant()
	if st, err = b.Leader(ctx, AnswerTimeout); err != nil {
		return e, st, asked, err
	}
	e, err = b.Read(ctx, key, max(revision, st.LastRevision)) //safety:read-now
	if IsAny(err, kvstore.ErrWithheld) {                      // the user may still send the leader a write
		var last uint64
		if last, err = b.Probe(ctx, key); err == nil && last > 0 {
			e, err = b.Read(ctx, key, max(revision, last))
		}
	}
	return e, st, asked, err
}

// ReadBeside returns the record that is now under the key of entry, which was read before, and the record under another
// key. It needs only one request for a user that may read many keys.
func (b *Bucket) ReadBeside(ctx context.Context, entry record.Entry, key string) (now, beside record.Entry, err error) {
	ctx, cancel := answerWithin(ctx, AnswerTimeout)
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

// ListSoon is List with the usual limit on the wait for the answer.
func (b *Bucket) ListSoon(parent context.Context, pattern string, revision uint64, opts ...kvstore.ListOption) (kvstore.Listing, error) {
	return b.ListWithin(parent, 2*AnswerTimeout, pattern, revision, opts...)
}

// ListWithin is List with within as the limit for the answer.
func (b *Bucket) ListWithin(parent context.Context, within time.Duration, pattern string, revision uint64, opts ...kvstore.ListOption) (kvstore.Listing, error) {
	ctx, cancel := answerWithin(parent, within)
	defer cancel()
	l, err := b.List(ctx, pattern, revision, opts...)
	return l, bounded(parent, ctx, err)
}

// Leader asks the stream's leader for its state, which names a revision that the bucket has reached, and the server's
// time. It waits for at most within, even if there is no leader.
func (b *Bucket) Leader(parent context.Context, within time.Duration) (kvstore.State, error) {
	return b.leader(parent, within, 0)
}

// Led reports whether the stream has a leader. It returns false if the leader does not answer within [AnswerTimeout].
func (b *Bucket) Led(ctx context.Context) bool {
	ctx, cancel := answerWithin(ctx, AnswerTimeout)
	defer cancel()
	st, err := b.State(ctx, "")
	return err == nil && st.Complete
}

// Reached waits, for at most [AnswerTimeout], until the leader has applied a revision that a read has returned. A
// follower can apply a write before the leader does. Until then the leader refuses acquires because of a record that
// the read shows as gone.
func (b *Bucket) Reached(parent context.Context, revision uint64) error {
	_, err := b.leader(parent, AnswerTimeout, revision)
	return err
}

// leader asks for the state of a leader that has applied revision. While there is no leader, every replica answers,
// even one that is far behind.
func (b *Bucket) leader(parent context.Context, within time.Duration, revision uint64) (kvstore.State, error) {
	ctx, cancel := answerWithin(parent, within)
	defer cancel()
	for try := 0; ; try++ {
		up := b.Online()
		st, err := b.State(ctx, "")
		if err == nil {
			if st.Complete && st.LastRevision >= revision { //safety:leader-complete
				return st, nil
			}
			if err = b.Sleep(ctx, clock.ShortBackoff(try), up); err != nil && parent.Err() == nil {
				of := "the stream"
				if revision > 0 {
					of = fmt.Sprintf("the stream that has revision %d", revision)
				}
				return kvstore.State{}, fmt.Errorf("%w: no leader of %s has answered for %v", ErrUnavailable, of, within)
			}
		}
		if err != nil {
			return kvstore.State{}, bounded(parent, ctx, err)
		}
	}
}

// A server removes a record when its TTL is over, but it may be late under load, and after some restarts it forgets the
// TTLs of what it has stored. So no client waits for the removal alone. A record is overdue when a server's clock has
// passed the record's own time plus its TTL plus a slack. An overdue record has no holder: its validity ended a margin
// before its TTL, and a renewal since then would have made a new revision. A client deletes the record, and continues
// as if it had ended.
//
// Three lines keep that safe:
//
//   - The record was read. A notification can be forged, so its times prove nothing.
//   - The time is a server's. The local clock only tells when to ask for it.
//   - The tombstone that replaces the record expects exactly the revision that was judged. If the record was renewed or
//     claimed meanwhile, the server refuses it.

// Overdue reports whether entry, as read, is overdue by a server's clock. It asks for the server's time only if the
// entry is overdue by the local estimate.
func (b *Bucket) Overdue(ctx context.Context, entry record.Entry) (bool, error) {
	if !entry.OverdueAt(b.Now()) {
		return false, nil
	}
	st, err := b.Leader(ctx, AnswerTimeout)
	return err == nil && entry.OverdueAt(st.Time), err
}

// Bury deletes the overdue ones among entries, as read, each at exactly its revision. It returns what is under the keys
// afterwards: the tombstones, what it has read after a refusal, and the other entries unchanged. It asks for the time
// as [Bucket.Overdue] does, but once. After an error the remaining entries are unchanged.
func (b *Bucket) Bury(ctx context.Context, entries ...record.Entry) ([]record.Entry, error) {
	estimate := b.Now()
	if !slices.ContainsFunc(entries, func(e record.Entry) bool { return e.OverdueAt(estimate) }) {
		return entries, nil
	}
	st, err := b.Leader(ctx, AnswerTimeout)
	if err != nil {
		return entries, err
	}
	entries = slices.Clone(entries)
	for i, e := range entries {
		if e.OverdueAt(st.Time) { //safety:overdue-asked
			if entries[i], err = b.bury(ctx, e); err != nil { // the others would fare no better
				break
			}
		}
	}
	return entries, err
}

func (b *Bucket) bury(ctx context.Context, e record.Entry) (record.Entry, error) {
	revision, err := b.delete(ctx, e.Key, e.Revision, e.ID)
	conflict, refused := errors.AsType[*kvstore.ConflictError](err)
	switch {
	case err == nil: //safety:clear-refused
		return record.Entry{Record: kvstore.Record{Key: e.Key, Revision: revision, Deleted: true}}, nil
	case !refused:
		return e, err
	}
	if now, err := b.Read(ctx, e.Key, max(conflict.Last, e.Revision)); err == nil {
		return now, nil
	}
	return e, nil
}

// Clear deletes the overdue places in queue, and returns the others. These include a place whose deletion was refused
// or not answered, unless a read shows that another client has deleted it.
func (b *Bucket) Clear(ctx context.Context, queue []record.Entry) (rest []record.Entry, err error) {
	now, err := b.Bury(ctx, queue...)
	for i, e := range now {
		if e.Live() {
			rest = append(rest, queue[i])
		}
	}
	return rest, err
}

// DeleteOverdue replaces an overdue record with a tombstone that names its claim.
func (b *Bucket) DeleteOverdue(ctx context.Context, entry record.Entry) error {
	return b.Delete(ctx, entry.Key, entry.Revision, entry.ID)
}

// History opens the history of the bucket. The error matches [kvstore.ErrNoHistory] even for a store that can have
// none.
func (b *Bucket) History(ctx context.Context) (*kvstore.History, error) {
	h, ok := b.KV.(kvstore.Historian)
	if !ok {
		return nil, kvstore.ErrNoHistory
	}
	return h.History(ctx)
}
