package keeper

import (
	"context"
	"fmt"
	"time"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/plain"
	"github.com/natslock/locks/internal/record"
)

// removal ends a record on the server, either one that the client has kept alive or one left over from a claim. It
// repeats its writes until the server has confirmed the end or time runs out.
type removal struct {
	*core.Removal
	key    string
	k      *Record      // nil if the client did not keep the record alive
	body   *record.Body // for the tombstone of a record that was not kept alive; nil if the claim was never granted
	status record.Status
}

// write returns the removal's next write.
func (r *Keeper) write(m *removal) (w kvstore.Write, err error) {
	if m.k != nil {
		return m.k.closing(m.status, m.Revision, m.Broken != nil)
	}
	body := record.Body{ID: m.ID}
	if m.body != nil {
		body = *m.body
	}
	w = kvstore.Write{Key: m.key, Expect: m.Revision, Delete: true}
	w.Value, err = r.b.Tombstone(record.StatusGone, body)
	return w, err
}

// remove tries to end a record until limit has passed since begun. first is a write that was posted at begun, or nil if
// there was none. If the error is nil, the step is the last one.
func (r *Keeper) remove(ctx context.Context, m *removal, begun time.Time, limit time.Duration, first *Write) (core.RemovalStep, error) {
	b, end := r.b, begun.Add(limit)
	for try := 0; ; try++ {
		// The first write is nearly always the last, and the wait for its answer is bounded anyway, so it gets no
		// deadline.
		if try == 1 || try == 0 && time.Until(end) < bucket.AnswerTimeout {
			var cancel context.CancelFunc
			ctx, cancel = context.WithDeadlineCause(ctx, end, fmt.Errorf("%w: no answer within %v", bucket.ErrUnavailable, limit))
			defer cancel()
		}
		up := b.Online()
		if first == nil {
			w, err := r.write(m)
			if err != nil {
				return core.WriteLater, err
			}
			first = r.Post(w)
		}
		w, answer := first.Write, first.wait(ctx, time.Until(end))
		first = nil
		err, refusal := answer.Err, bucket.AnswerOf(answer)
		next := m.WriteAnswered(refusal, b.Alone())
		if next == core.ReadRecord {
			var entry record.Entry
			// Read a state that contains the last known write. The refusal may come from a deposed leader, which may
			// have removed a record that has been renewed since.
			entry, err = b.Read(ctx, m.key, max(refusal.Last, m.Revision)) //safety:release-read
			if next = m.RecordRead(entry, err != nil, refusal.Last, b.Alone(), time.Since(begun)); err == nil {
				err = errBehind
			}
		}
		switch next {
		case core.Removed, core.LostBefore:
			if answer.Err == nil && m.k != nil {
				m.k.deleted(w, answer.Revision)
			}
			return next, nil
		case core.WriteAgain:
			continue
		}
		if ctx.Err() != nil && bucket.IsAny(err, context.DeadlineExceeded, context.Canceled, bucket.ErrNoAnswer) {
			err = context.Cause(ctx)
		}
		if ctx.Err() != nil || bucket.IsAny(err, bucket.ErrPermission, kvstore.ErrClosed, kvstore.ErrConnectionClosed, kvstore.ErrDraining) {
			return next, bucket.Unavailable(err)
		}
		pause := clock.OutageBackoff(try)
		if next == core.WriteSoon {
			if pause = clock.InFlightBackoff(try); try >= soonTries {
				pause = clock.OutageBackoff(try - soonTries)
			}
		}
		if b.Sleep(ctx, pause, up) != nil {
			return next, bucket.Unavailable(err)
		}
	}
}

// soonTries limits how often a removal may collide with another write to its key before it treats the collisions as an
// outage.
const soonTries = 20

// errBehind means that a server returned an older record than the one that was acknowledged.
var errBehind = fmt.Errorf("%w: the responding server lags behind", bucket.ErrUnavailable)

// Remove tries to write a tombstone over a claim's record until the server confirms it, ctx ends, or [orphanLife] has
// passed.
func (r *Keeper) Remove(ctx context.Context, key string, what *core.Removal) error {
	_, err := r.remove(ctx, &removal{Removal: what, key: key}, time.Now(), orphanLife, nil)
	return err
}

// RemoveGranted is like [Keeper.Remove], but for a claim that was granted, whose record has a body. It stops after
// limit. If the error is nil, the step is the last one.
func (r *Keeper) RemoveGranted(ctx context.Context, key string, body *record.Body, what *core.Removal, limit time.Duration) (core.RemovalStep, error) {
	return r.remove(ctx, &removal{Removal: what, key: key, body: body}, time.Now(), limit, nil)
}

// Discard deletes, at exactly this revision, a record that this client wrote for a claim but does not want. That is a
// courtesy to other clients, which would otherwise have to wait for the record's TTL. The channel is closed when the
// deletion is over.
func (r *Keeper) Discard(key, id string, revision uint64) <-chan struct{} {
	over := make(chan struct{})
	r.Work.Go(func(ctx context.Context) { // callers run on goroutines of the store
		defer close(over)
		_ = r.Remove(ctx, key, &core.Removal{ID: id, Revision: revision, Exact: true})
	})
	return over
}

// closing returns the write that ends the record at revision expect. broken is true if an operator has broken the
// record.
func (k *Record) closing(status record.Status, expect uint64, broken bool) (w kvstore.Write, err error) {
	k.keeper.mu.Lock()
	body, deletes := k.Closing(k.owner.Cooldown(k.keeper.b.Instant()), broken)
	k.keeper.mu.Unlock()
	w = kvstore.Write{Key: k.Key, Expect: expect, Delete: deletes}
	if deletes {
		w.Value, err = k.keeper.b.Tombstone(status, body)
	} else {
		w.TTL = time.Duration(body.TTL) * time.Second
		w.Value, err = body.EncodeKept(expect)
	}
	return w, err
}

// deleted remembers an acknowledged tombstone for the next claim of the key.
func (k *Record) deleted(w kvstore.Write, revision uint64) {
	if w.Delete && !k.Once {
		k.keeper.b.Recent.Left(k.keeper.b.Instant(), k.Key, !k.IsLock(), revision)
	}
}

// Deletion is the result of ending a record on the server.
type Deletion struct {
	Err    error         // why the record may still be there; nil if it has ended
	Broken *record.Entry // the record if an operator had broken it, otherwise nil
	Gone   bool          // the record had already ended, and another client may have the lock
}

// Delete ends a record on the server after it has ended here. It tries until limit has passed since begun. first is the
// first write if it was already posted at begun, otherwise nil.
func (k *Record) Delete(ctx context.Context, status record.Status, begun time.Time, limit time.Duration, first *Write) Deletion {
	m := core.Removal{ID: k.Body.ID, HandsOff: k.Cause == core.EndHandedOff, Final: k.Final(), Revision: k.Last}
	step, err := k.keeper.remove(ctx, &removal{Removal: &m, key: k.Key, k: k, status: status}, begun, limit, first)
	if err != nil {
		return Deletion{Err: err}
	}
	return Deletion{Broken: m.Broken, Gone: step == core.LostBefore}
}

// DeleteLater deletes the record in the background. It tries for as long as the record's TTL.
func (k *Record) DeleteLater() {
	if !k.keeper.b.Gone() { // otherwise nothing reaches the server
		k.keeper.Work.Go(func(ctx context.Context) {
			k.Delete(ctx, record.StatusGone, time.Now(), k.Terms.TTL, nil)
		})
	}
}

// DeleteWithin deletes the record and waits until the deletion is confirmed, d has passed, or ctx ends. An unconfirmed
// deletion continues in the background. DeleteWithin ends the work that its caller began in the worker group. Most
// deletions succeed with the first write and need no goroutine.
func (k *Record) DeleteWithin(ctx context.Context, d time.Duration) Deletion {
	r := k.keeper
	w, err := k.closing(record.StatusGone, k.Last, false)
	if err != nil {
		r.Work.Done()
		return Deletion{Err: err}
	}
	begun := time.Now()
	first := r.Post(w)
	if a, answered := first.soon(ctx, min(bucket.DeniedAfter, d)); answered {
		if a.Err == nil {
			k.deleted(w, a.Revision)
			r.Work.Done()
			return Deletion{}
		}
		first.answers <- a
	}
	done := make(chan Deletion, 1)
	go func() {
		defer r.Work.Done()
		deletion := k.Delete(r.Work.Context(), record.StatusGone, begun, d, first)
		done <- deletion
		if deletion.Err != nil {
			k.DeleteLater() //safety:release-goes-on
		}
	}()
	stuck := time.NewTimer(d + d/10 - time.Since(begun))
	defer stuck.Stop()
	select {
	case deletion := <-done:
		return deletion
	case <-ctx.Done():
		return Deletion{Err: fmt.Errorf("%w: not confirmed; retrying in the background: %w", bucket.ErrUnavailable, plain.EndOf(ctx))}
	case <-stuck.C:
		return Deletion{Err: fmt.Errorf("%w: the network is not accepting writes", bucket.ErrUnavailable)}
	}
}

// BeginEnd begins to end the record on behalf of its holder. over is closed once that is complete; if first is true,
// the caller must close it. The mutex must be held.
func (k *Record) BeginEnd() (over chan struct{}, first bool) {
	if first = k.over == nil; first {
		k.over = make(chan struct{})
	}
	return k.over, first
}

// Leave ends a place in a queue, or a lock without a holder, without waiting for the answer. The tombstone's body tells
// the successor in the queue, and nobody else, whether it is now first. The channel is closed once the record is
// deleted or nothing more will be done about it.
func (k *Record) Leave(status record.Status) (gone <-chan struct{}) {
	r := k.keeper
	r.mu.Lock()
	over, first := k.BeginEnd()
	if !first {
		r.mu.Unlock()
		return over
	}
	// Register the work before the record ends. Close must wait until the record is deleted, because a pending renewal
	// may make the server refuse the first write, and then a second one follows.
	working := false
	if r.Work.Begin() { //safety:leave-awaited
		working = true
	}
	k.EndBy(core.EndReleased)
	r.Unlock()
	begun := time.Now()
	var write *Write
	if w, err := k.closing(status, k.Last, false); err == nil {
		write = r.Post(w) // ahead of anything the caller sends next
	}
	if !working {
		close(over)
		return over
	}
	go func() {
		defer r.Work.Done()
		defer close(over)
		k.Delete(r.Work.Context(), status, begun, k.Terms.TTL, write)
	}()
	return over
}
