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

// Read returns the record under key from a state that contains revision, or the zero Entry if there is no record.
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

// ReadNow returns the record under key from a state that contains revision and everything that the leader had stored
// when it was asked for its state. st is that state, and asked is when it was requested.
func (b *Bucket) ReadNow(ctx context.Context, key string, revision uint64) (e record.Entry, st kvstore.State, asked clock.Instant, err error) {
	asked = b.Instant()
	if st, err = b.Leader(ctx, AnswerTimeout); err != nil {
		return e, st, asked, err
	}
	e, err = b.Read(ctx, key, max(revision, st.LastRevision)) //safety:read-now
	if IsAny(err, kvstore.ErrWithheld) {                      // this user may still be allowed to write
		var last uint64
		if last, err = b.Probe(ctx, key); err == nil && last > 0 {
			e, err = b.Read(ctx, key, max(revision, last))
		}
	}
	return e, st, asked, err
}

// ReadBeside rereads the key of entry and reads another key along with it. For a user who is allowed to read many keys,
// this takes a single request.
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

// ListSoon is List with the usual limit on the wait for a reply.
func (b *Bucket) ListSoon(parent context.Context, pattern string, revision uint64, opts ...kvstore.ListOption) (kvstore.Listing, error) {
	return b.ListWithin(parent, 2*AnswerTimeout, pattern, revision, opts...)
}

// ListWithin is List with a limit on the wait for a reply.
func (b *Bucket) ListWithin(parent context.Context, within time.Duration, pattern string, revision uint64, opts ...kvstore.ListOption) (kvstore.Listing, error) {
	ctx, cancel := answerWithin(parent, within)
	defer cancel()
	l, err := b.List(ctx, pattern, revision, opts...)
	return l, bounded(parent, ctx, err)
}

// Leader asks the stream leader for its state, which includes a revision that the bucket has reached and the server's
// time. It waits for up to within, even if there is no leader.
func (b *Bucket) Leader(parent context.Context, within time.Duration) (kvstore.State, error) {
	return b.leader(parent, within, 0)
}

// Led reports whether the stream has a leader. It returns false if the leader does not reply within [AnswerTimeout].
func (b *Bucket) Led(ctx context.Context) bool {
	ctx, cancel := answerWithin(ctx, AnswerTimeout)
	defer cancel()
	st, err := b.State(ctx, "")
	return err == nil && st.Complete
}

// Reached waits up to [AnswerTimeout] for the leader to apply a revision that a read has returned. A follower can apply
// a write before the leader does, and until it catches up, the leader refuses acquires because of a record that the
// read shows as deleted.
func (b *Bucket) Reached(parent context.Context, revision uint64) error {
	_, err := b.leader(parent, AnswerTimeout, revision)
	return err
}

// leader returns the state of a leader that has applied revision. It repeats the request until then, because every
// replica replies while there is no leader, even one that is far behind.
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
					of = fmt.Sprintf("the stream with revision %d", revision)
				}
				return kvstore.State{}, fmt.Errorf("%w: no leader of %s has answered for %v", ErrUnavailable, of, within)
			}
		}
		if err != nil {
			return kvstore.State{}, bounded(parent, ctx, err)
		}
	}
}

// A server deletes a record when its TTL ends, but it may be late under load, and after some restarts it forgets the
// TTLs of the records it has stored. Clients therefore do not rely on the server alone. A record is overdue when a
// server's clock has passed the record's own time plus its TTL plus some slack. An overdue record has no holder,
// because its validity ended a margin before its TTL did and any renewal since then would have created a new revision.
// A client deletes such a record and carries on as if it had expired.
//
// Three rules keep this safe:
//
//   - The record must have been read. A notification can be forged, so its times prove nothing.
//   - The time must come from a server. The local clock only determines when to ask for it.
//   - The tombstone that replaces the record must expect exactly the revision that was judged. If the record has been
//     renewed or claimed in the meantime, the server refuses the tombstone.

// Overdue reports whether entry, which must have been read, is overdue according to a server's clock. It requests the
// server's time only if entry is overdue according to the local estimate.
func (b *Bucket) Overdue(ctx context.Context, entry record.Entry) (bool, error) {
	if !entry.OverdueAt(b.Now()) {
		return false, nil
	}
	st, err := b.Leader(ctx, AnswerTimeout)
	return err == nil && entry.OverdueAt(st.Time), err
}

// Bury deletes those entries that are overdue, each at exactly its revision. The entries must come from reads. Bury
// returns what is under their keys afterwards: tombstones, whatever it read after a refusal, and the other entries
// unchanged. Like [Bucket.Overdue], it requests the server's time only if necessary, and only once. After an error, the
// remaining entries are unchanged.
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

// Clear deletes the overdue places in queue and returns the others. It also returns a place whose deletion was refused
// or went unanswered, unless a read shows that another client has deleted it.
func (b *Bucket) Clear(ctx context.Context, queue []record.Entry) (rest []record.Entry, err error) {
	now, err := b.Bury(ctx, queue...)
	for i, e := range now {
		if e.Live() {
			rest = append(rest, queue[i])
		}
	}
	return rest, err
}

// DeleteOverdue replaces an overdue record with a tombstone that names the record's claim.
func (b *Bucket) DeleteOverdue(ctx context.Context, entry record.Entry) error {
	return b.Delete(ctx, entry.Key, entry.Revision, entry.ID)
}

// History opens the bucket's history. The error matches [kvstore.ErrNoHistory] if there is none, or if the store does
// not support histories.
func (b *Bucket) History(ctx context.Context) (*kvstore.History, error) {
	h, ok := b.KV.(kvstore.Historian)
	if !ok {
		return nil, kvstore.ErrNoHistory
	}
	return h.History(ctx)
}
