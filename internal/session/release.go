package session

import (
	"context"
	"fmt"
	"time"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
)

// removal is a record that is ended at the server: one that the client has kept alive, or one that it
// has written and that does not count. Its writes are repeated until the server has confirmed the
// end, or their time is over.
type removal struct {
	*core.Removal
	key    string
	k      *kept        // nil: it was not kept
	body   *record.Body // of a record that was not kept, for its tombstone; nil: it was never granted
	status record.Status
}

// write is the next write.
func (s *Session) write(r *removal) (w kvstore.Write, err error) {
	if r.k != nil {
		return r.k.closing(r.status, r.Revision, r.Broken != nil)
	}
	body := record.Body{ID: r.ID}
	if r.body != nil {
		body = *r.body
	}
	w = kvstore.Write{Key: r.key, Expect: r.Revision, Delete: true}
	w.Value, err = s.b.Tombstone(record.StatusGone, body)
	return w, err
}

// remove ends a record until limit has passed since begun. first is a write that was posted at
// begun; nil: there was none. The error is nil if the step is the last one.
func (s *Session) remove(ctx context.Context, r *removal, begun time.Time, limit time.Duration, first *final) (core.RemovalStep, error) {
	b, end := s.b, begun.Add(limit)
	for try := 0; ; try++ {
		// The first write is nearly always the last one, and the wait for its answer is bounded anyway.
		if try == 1 || try == 0 && time.Until(end) < bucket.AnswerTimeout {
			var cancel context.CancelFunc
			ctx, cancel = context.WithDeadlineCause(ctx, end, fmt.Errorf("%w: no answer within %v", bucket.ErrUnavailable, limit))
			defer cancel()
		}
		up := b.Online()
		if first == nil {
			w, err := s.write(r)
			if err != nil {
				return core.WriteLater, err
			}
			first = s.renewer.post(w)
		}
		w, answer := first.w, first.wait(ctx, time.Until(end))
		first = nil
		err, refusal := answer.Err, bucket.AnswerOf(answer)
		next := r.Wrote(refusal, b.Alone())
		if next == core.ReadRecord {
			var entry record.Entry
			// As of a state that contains the last write known: a leader that was
			// deposed refuses as well, and may have removed what was renewed since.
			entry, err = b.Read(ctx, r.key, max(refusal.Last, r.Revision)) //safety:release-read
			if next = r.Found(entry, err != nil, refusal.Last, b.Alone(), time.Since(begun)); err == nil {
				err = errBehind
			}
		}
		switch next {
		case core.Removed, core.LostBefore:
			if answer.Err == nil && r.k != nil {
				r.k.deleted(w, answer.Revision)
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

// soonTries is how often a removal meets another write of its key before it takes that for an outage.
const soonTries = 20

// errBehind: a server has returned an older record than the one it acknowledged.
var errBehind = fmt.Errorf("%w: the server that answered lags behind", bucket.ErrUnavailable)

// Remove deletes a record of a claim by tombstones, until the server has confirmed that or ctx ends.
func (s *Session) Remove(ctx context.Context, key string, r *core.Removal) error {
	_, err := s.remove(ctx, &removal{Removal: r, key: key}, time.Now(), orphanLife, nil)
	return err
}

// End is [Session.Remove] for a claim that was granted, whose record has a body, and not for longer than limit. The
// step is the last one if the error is nil.
func (s *Session) End(ctx context.Context, key string, body *record.Body, r *core.Removal, limit time.Duration) (core.RemovalStep, error) {
	return s.remove(ctx, &removal{Removal: r, key: key, body: body}, time.Now(), limit, nil)
}

// Discard deletes a record that this client has written and that does not count (any more), of a claim,
// or a renewal, at exactly a revision: a courtesy, so that nobody waits for its TTL.
// The channel is closed when that is over.
func (s *Session) Discard(key, id string, revision uint64) <-chan struct{} {
	over := make(chan struct{})
	s.Background(func(ctx context.Context) { // callers are goroutines of the store
		defer close(over)
		_ = s.Remove(ctx, key, &core.Removal{ID: id, Revision: revision, Exact: true})
	})
	return over
}

// closing is the write that ends the record at a revision, broken or not.
func (k *kept) closing(status record.Status, expect uint64, broken bool) (w kvstore.Write, err error) {
	k.s.mu.Lock()
	body, deletes := k.Closing(k.of.cooldown(k.s.b.Instant()), broken)
	k.s.mu.Unlock()
	w = kvstore.Write{Key: k.Key, Expect: expect, Delete: deletes}
	if deletes {
		w.Value, err = k.s.b.Tombstone(status, body)
	} else {
		w.TTL = time.Duration(body.TTL) * time.Second
		w.Value, err = body.EncodeKept(expect)
	}
	return w, err
}

// deleted handles the acknowledgement of the write: it remembers a tombstone, for the next claim of the key.
func (k *kept) deleted(w kvstore.Write, revision uint64) {
	if w.Delete && !k.Once {
		k.s.b.Recent.Left(k.s.b.Instant(), k.Key, !k.IsLock(), revision)
	}
}

// deletion is what came of deleting a record.
type deletion struct {
	found *EndError // the record was not the claim's own any more; nil otherwise
	err   error     // it may be there still
}

// delete ends the record, which has ended here, at the server.
func (k *kept) delete(ctx context.Context, status record.Status, begun time.Time, limit time.Duration, first *final) (d deletion) {
	r := core.Removal{ID: k.Body.ID, HandsOff: k.Cause == core.EndHandedOff, Final: k.Final(), Revision: k.Last}
	step, err := k.s.remove(ctx, &removal{Removal: &r, key: k.Key, k: k, status: status}, begun, limit, first)
	switch {
	case err != nil:
		d.err = err
	case r.Broken != nil:
		d.found = &EndError{Name: k.Name, Token: k.Body.Token, Kind: ErrBroken, Why: r.Broken.BrokenBecause()}
	case step == core.LostBefore && r.HandsOff:
		d.found = &EndError{Name: k.Name, Token: k.Body.Token, Kind: ErrLost, Why: "its record was gone when it was to be handed over"}
	case step == core.LostBefore:
		d.found = &EndError{Name: k.Name, Token: k.Body.Token, Kind: ErrLost, Why: "its record was gone when it was to be released"}
	}
	return d
}

// deleteLater deletes the record in the background, for as long as it can last.
func (k *kept) deleteLater() {
	if !k.s.b.Gone() { // else nothing will reach the server
		k.s.Background(func(ctx context.Context) {
			k.delete(ctx, record.StatusGone, time.Now(), k.Terms.TTL, nil)
		})
	}
}

// deleteWithin deletes the record and waits for that at most for d, and until ctx ends; then
// the deletion goes on in the background. It ends the work that its caller has begun.
//
// Most releases are over with the first write, and need no goroutine.
func (k *kept) deleteWithin(ctx context.Context, d time.Duration) (found *EndError, err error) {
	s := k.s
	w, err := k.closing(record.StatusGone, k.Last, false)
	if err != nil {
		s.work.done()
		return nil, err
	}
	begun := time.Now()
	first := s.renewer.post(w)
	if a, answered := first.soon(ctx, min(bucket.DeniedAfter, d)); answered {
		if a.Err == nil {
			k.deleted(w, a.Revision)
			s.work.done()
			return nil, nil
		}
		first.answers <- a
	}
	done := make(chan deletion, 1)
	go func() {
		defer s.work.done()
		del := k.delete(s.work.ctx, record.StatusGone, begun, d, first)
		done <- del
		if del.err != nil {
			k.deleteLater() //safety:release-goes-on
		}
	}()
	stuck := time.NewTimer(d + d/10 - time.Since(begun))
	defer stuck.Stop()
	select {
	case r := <-done:
		return r.found, r.err
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: not confirmed, and going on: %w", bucket.ErrUnavailable, bucket.EndOf(ctx))
	case <-stuck.C:
		return nil, fmt.Errorf("%w: the network takes no writes", bucket.ErrUnavailable)
	}
}

// Leave ends a place in a queue, or a lock that was not handed out, without
// waiting for the answer. The tombstone's body says to a successor in the queue,
// and only to it, whether it is first now. The channel is closed when the record is gone, and
// may stay open if the client is closed before.
func (k *kept) Leave(status record.Status) (deleted <-chan struct{}) {
	s := k.s
	k.s.mu.Lock()
	if k.released != nil {
		k.s.mu.Unlock()
		return k.released
	}
	k.released = make(chan struct{})
	close(k.released)
	// A Close has to wait from before the record's end until the record is gone: a renewal on its way
	// may make the server refuse the first write, and then there is a second one.
	working := false
	if s.work.begin() { //safety:leave-awaited
		working = true
	}
	released := k.release(core.EndReleased)
	k.s.mu.Unlock()
	released.finish()
	begun := time.Now()
	gone := make(chan struct{})
	var first *final
	if w, err := k.closing(status, k.Last, false); err == nil {
		first = s.renewer.post(w) // now, before what the caller sends next
	}
	if !working {
		return gone
	}
	go func() {
		defer s.work.done()
		defer close(gone)
		k.delete(s.work.ctx, status, begun, k.Terms.TTL, first)
	}()
	return gone
}

// Release ends the lease and deletes its record. Further calls wait for the
// first and return its result. The context ends first: the work under it must
// not meet the next holder.
//
// It returns nil when it was called inside the validity and nothing says that the
// lock had been lost before. Otherwise it returns the cause of the end. When the
// server does not answer within the release timeout, the error matches
// [bucket.ErrUnavailable], the deletion goes on in the background, and at the latest
// the TTL frees the lock.
//
// A ctx that ends during the wait for the server ends the wait, and the deletion goes on in
// the background. One that had ended before, or ends with the lease, is ignored.
func (l *Lease) Release(ctx context.Context) error { return l.finish(ctx, true) }

// Retire is Release, but leaves the record, which keeps others out until its TTL ends. The
// lease must not be renewed any more. There is no exchange with the server.
func (l *Lease) Retire() error { return l.finish(context.Background(), false) }

// finish is Release, or Retire if the record is not to be deleted.
func (l *Lease) finish(ctx context.Context, deletes bool) error {
	// Begun before the lease ends: a Close waits for its end, and then for the work that is registered.
	working := l.s.work.begin()
	l.s.mu.Lock()
	if l.released != nil {
		done := l.released
		l.s.mu.Unlock()
		if working {
			l.s.work.done()
		}
		<-done
		if l.result == nil {
			return nil
		}
		return *l.result
	}
	l.released = make(chan struct{})
	defer close(l.released)
	lost := l.check(l.s.b.Instant()) //safety:release-judged
	was, end := l.State, l.Valid.End
	released := l.release(core.EndReleased)
	cause := l.cause
	for h := l.holders; h != nil; h = h.next {
		h.state = Released
	}
	l.s.mu.Unlock()
	lost.finish()
	released.finish() //safety:context-first

	var result error
	switch held := was == Held; {
	case !deletes || !working:
		if working {
			l.s.work.done()
		} else if held && deletes {
			result = fmt.Errorf("release lock %q: %w", l.kept.Name, bucket.ErrClosed)
		}
	case !held && (cause.Kind != ErrBroken || l.s.b.Away()):
		// The caller is not kept waiting for what is most likely gone. A broken
		// record is there, and keeps others out until it is deleted.
		l.deleteLater()
		l.s.work.done()
	default:
		if ctx.Err() != nil { // now that the lease's own context has ended
			ctx = context.Background()
		}
		switch found, err := l.deleteWithin(ctx, l.s.ReleaseTimeout); {
		case found != nil && (found.Kind == ErrBroken || l.s.b.Instant() < end):
			result = found
		case found != nil:
			// Refused after the validity end: it has simply expired since.
		case err != nil:
			result = fmt.Errorf("release lock %q (token %d): %w; it is free when its TTL of %v has passed at the latest", l.kept.Name, l.Body.Token, err, l.Terms.TTL)
		}
	}
	if was != Held {
		result = cause
	}
	return l.results(result)
}

// results keeps the result of the release, for those who wait for it.
func (l *Lease) results(err error) error {
	if err != nil {
		l.result = &err
	}
	return err
}

// Drop ends a lease without a holder, without waiting for anything. Its record is deleted
// in the background. The channel is closed when that is over.
func (l *Lease) Drop() (deleted <-chan struct{}) {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	if l.released != nil {
		return l.released
	}
	done := make(chan struct{})
	l.released = done
	working := l.s.work.begin() // before the lease ends: see Leave
	released := l.release(core.EndReleased)
	if working {
		go func() {
			defer l.s.work.done()
			defer close(done)
			released.finish()
			l.delete(l.s.work.ctx, record.StatusGone, time.Now(), l.Terms.TTL, nil)
		}()
	}
	return done
}
