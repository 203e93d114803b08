package session

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/kvstore"
)

// deletion is what came of deleting a record.
type deletion struct {
	found *EndError // the record was not the claim's own any more; nil otherwise
	err   error     // it may be there still
}

// deleteWithin deletes the record and waits for that at most for d, and until ctx ends; then
// the deletion goes on in the background. It ends the work that its caller has begun.
//
// Most releases are over with the first write, and need no goroutine.
func (k *kept) deleteWithin(ctx context.Context, d time.Duration) (found *EndError, err error) {
	s := k.s
	w, err := k.closing(record.StatusGone, k.last, false)
	if err != nil {
		s.work.done()
		return nil, err
	}
	begun := time.Now()
	first := s.renewer.post(w)
	a, answered := first.soon(ctx, min(bucket.DeniedAfter, d))
	if answered && a.Err == nil {
		k.closed(w, a.Revision)
		s.work.done()
		return nil, nil
	}
	done := make(chan deletion, 1)
	go func() {
		defer s.work.done()
		if !answered {
			a = first.wait(s.work.ctx, d-time.Since(begun))
		}
		r := k.delete(s.work.ctx, record.StatusGone, begun, d, &sent{w, a})
		done <- r
		if r.err != nil {
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

// sent is a write of a release, with its answer.
type sent struct {
	write  kvstore.Write
	answer kvstore.Answer
}

// closing is the write that ends the record at a revision. It is a tombstone, or the record
// of a lock that is handed over or rests for its minimum hold. A broken record is deleted:
// the operator has decided.
func (k *kept) closing(status record.Status, expect uint64, broken bool) (w kvstore.Write, err error) {
	k.mu.Lock()
	rest := k.of.rest(k.s.b.Instant())
	broken = broken || k.cause != nil && errors.Is(k.cause.Kind, ErrBroken)
	left := record.StatusResting
	if k.handing() {
		left, rest = record.StatusHanded, k.Granted.Terms.TTL
	}
	body := k.Body // goroutines may still join the run of a place that is left
	body.Renewal = k.renewals.n + 1
	k.mu.Unlock()
	w = kvstore.Write{Key: k.Key, Expect: expect}
	if rest <= 0 || broken { //safety:rest-kept
		w.Delete = true
		w.Value, err = k.s.b.Tombstone(status, body)
		return w, err
	}
	w.TTL = clock.CeilSecond(rest)
	body.Status, body.Fixed, body.Lingers, body.InUse, body.TTL = left, true, false, 0, int64(w.TTL/time.Second)
	w.Value, err = body.EncodeKept(expect)
	return w, err
}

// handing says whether the holder hands the lock over. Under mu, or after the end.
func (k *kept) handing() bool { return k.cause != nil && k.cause.Kind == ErrHandedOff }

// closed follows the acknowledgement of w.
func (k *kept) closed(w kvstore.Write, revision uint64) {
	if w.Delete {
		k.deleted(revision)
	}
}

// deleted remembers the tombstone, for the next claim of the key.
func (k *kept) deleted(revision uint64) {
	if !k.Once {
		k.s.b.Recent.Left(k.s.b.Instant(), k.Key, !k.isLock(), revision)
	}
}

// deleteLater deletes the record in the background, for as long as it can last.
func (k *kept) deleteLater() { k.deleteAs(record.StatusGone, func() {}) }

// deleteAs is deleteLater with a status for the tombstone. It calls done when that is over.
func (k *kept) deleteAs(status record.Status, done func()) {
	if k.s.b.Gone() { // nothing will reach the server
		done()
		return
	}
	k.s.Background(func(ctx context.Context) {
		defer done()
		k.delete(ctx, status, time.Now(), k.terms.TTL, nil)
	})
}

// Leave ends a place in a queue, or a lock that was not handed out, without
// waiting for the answer. The tombstone's body says to a successor in the queue,
// and only to it, whether it is first now. The channel is closed when the record is gone, and
// may stay open if the client is closed before.
func (k *kept) Leave(status record.Status) (deleted <-chan struct{}) {
	s := k.s
	k.mu.Lock()
	if k.released != nil {
		k.mu.Unlock()
		return k.released
	}
	k.released = make(chan struct{})
	close(k.released)
	// Before the record ends, and until the answer has come, for a while: the write may be
	// refused because a renewal was on its way. A Close must not come before the second try.
	answered := func() {}
	if s.work.begin() { //safety:leave-awaited
		answered = sync.OnceFunc(s.work.done)
	}
	released := k.release(ErrReleased)
	k.mu.Unlock()
	released.finish()
	body, err := k.tombstone(status)
	if err != nil {
		answered()
		return k.released
	}
	gone := make(chan struct{})
	over := sync.OnceFunc(func() { close(gone) })
	n, now, room := s.renewer.take(nil)
	if !room {
		k.deleteAs(status, over)
		answered()
		return gone
	}
	late := time.AfterFunc(bucket.AnswerTimeout, func() { k.deleteAs(status, over); answered() }) // a lost write would keep others out for a TTL
	o := &Orphan{}
	forget, err := s.b.Send(kvstore.Write{Key: k.Key, Value: body, Expect: k.last, Delete: true}, func(a kvstore.Answer) {
		s.Settle(o)
		s.renewer.hear(n, now, s.b.Instant(), kvstore.NotSent(a.Err))
		late.Stop()
		if a.Err == nil {
			k.deleted(a.Revision)
			over()
		} else {
			k.deleteAs(status, over)
		}
		answered()
	})
	if err != nil {
		s.renewer.hear(n, now, now, true)
		late.Stop()
		k.deleteAs(status, over)
		answered()
		return gone
	}
	s.Await(o, forget)
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
	// Before the lease ends: a Close that waits for it must wait for what follows.
	working := l.s.work.begin()
	l.mu.Lock()
	if l.released != nil {
		done := l.released
		l.mu.Unlock()
		if working {
			l.s.work.done()
		}
		<-done
		return l.result
	}
	l.released = make(chan struct{})
	defer close(l.released)
	var lost ending
	if l.valid.Over(l.s.b.Instant()) { //safety:release-judged
		lost = l.expire()
	}
	was, end := l.state, l.valid.End
	released := l.release(ErrReleased)
	cause := l.cause
	for h := l.holders; h != nil; h = h.next {
		h.state = Released
	}
	l.mu.Unlock()
	lost.finish()
	released.finish() //safety:context-first

	if !deletes {
		if was != Held {
			l.result = cause
		}
		if working {
			l.s.work.done()
		}
		return l.result
	}
	switch {
	case was != Held && !working:
		l.result = cause
		return l.result
	case !working:
		l.result = fmt.Errorf("release lock %q: %w", l.kept.Name, bucket.ErrClosed)
		return l.result
	case was != Held && (!errors.Is(cause.Kind, ErrBroken) || l.s.b.Away()):
		// The caller is not kept waiting for what is most likely gone. A broken
		// record is there, and keeps others out until it is deleted.
		l.deleteLater()
		l.s.work.done()
		l.result = cause
		return l.result
	}
	if ctx.Err() != nil { // now that the lease's own context has ended
		ctx = context.Background()
	}
	found, err := l.deleteWithin(ctx, l.s.ReleaseTimeout)
	switch {
	case was != Held:
		l.result = cause
	case found != nil && (errors.Is(found, ErrBroken) || l.s.b.Instant() < end):
		l.result = found
	case found != nil:
		// Refused after the validity end: it has simply expired since.
	case err != nil:
		l.result = fmt.Errorf("release lock %q (token %d): %w; it is free when its TTL of %v has passed at the latest", l.kept.Name, l.Body.Token, err, l.terms.TTL)
	}
	return l.result
}

// Drop ends a lease without a holder, without waiting for anything. Its record is deleted
// in the background. The channel is closed when that is over.
func (l *Lease) Drop() (deleted <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.released != nil {
		return l.released
	}
	done := make(chan struct{})
	l.released = done
	working := l.s.work.begin() // before the lease ends: see Leave
	released := l.release(ErrReleased)
	if working {
		go func() {
			defer l.s.work.done()
			defer close(done)
			released.finish()
			l.delete(l.s.work.ctx, record.StatusGone, time.Now(), l.terms.TTL, nil)
		}()
	}
	return done
}

// delete ends a record at the server, by a tombstone or by a record that rests or is handed over, whatever became of its
// last renewals. It tries until the server has confirmed that or limit has passed
// since begun. first is a first write, made at begun; nil: there was none.
func (k *kept) delete(ctx context.Context, status record.Status, begun time.Time, limit time.Duration, first *sent) deletion {
	b := k.s.b
	end := begun.Add(limit)
	last := core.Removal{ID: k.Body.ID, HandsOff: k.handing(), Revision: k.last}
	for try := 0; ; try++ {
		// The first write is hardly ever not the last, and ends by itself.
		if try == 1 || try == 0 && time.Until(end) < bucket.AnswerTimeout {
			var cancel context.CancelFunc
			ctx, cancel = context.WithDeadlineCause(ctx, end, fmt.Errorf("%w: no answer within %v", bucket.ErrUnavailable, limit))
			defer cancel()
		}
		up := b.Online()
		if first == nil {
			w, err := k.closing(status, last.Revision, last.Broken != nil)
			if err != nil {
				return deletion{err: err}
			}
			first = &sent{w, k.s.renewer.post(w).wait(ctx, time.Until(end))}
		}
		w, answer := first.write, first.answer
		first = nil
		err := answer.Err
		refusal := bucket.AnswerOf(answer)
		next := last.Wrote(refusal, b.Alone())
		if next == core.ReadRecord {
			var entry record.Entry
			// As of a state that contains the last write known: a leader that was
			// deposed refuses as well, and may have removed what was renewed since.
			entry, err = b.Read(ctx, k.Key, max(refusal.Last, last.Revision)) //safety:release-read
			if next = last.Found(entry, err != nil, refusal.Last, b.Alone(), time.Since(begun)); err == nil {
				err = errBehind
			}
		} else if next == core.Removed {
			k.closed(w, answer.Revision)
		}
		switch next {
		case core.Removed:
			return deletion{found: k.brokenBy(last.Broken)}
		case core.LostBefore:
			why := "its record was gone when it was to be released"
			if last.HandsOff {
				why = "its record was gone when it was to be handed over"
			}
			return deletion{found: &EndError{Name: k.Name, Token: k.Body.Token, Kind: ErrLost, Why: why}}
		case core.WriteAgain:
			continue
		}
		if ctx.Err() != nil && bucket.IsAny(err, context.DeadlineExceeded, context.Canceled, bucket.ErrNoAnswer) {
			err = context.Cause(ctx)
		}
		if ctx.Err() != nil || bucket.IsAny(err, bucket.ErrPermission, kvstore.ErrClosed, kvstore.ErrConnectionClosed, kvstore.ErrDraining) {
			return deletion{err: bucket.Unavailable(err)}
		}
		pause := clock.OutageBackoff(try)
		if next == core.WriteSoon {
			pause = clock.InFlightBackoff(try)
		}
		if b.Sleep(ctx, pause, up) != nil {
			return deletion{err: bucket.Unavailable(err)}
		}
	}
}

// errBehind: a server has shown an older record than the one it acknowledged.
var errBehind = fmt.Errorf("%w: the server that answered lags behind", bucket.ErrUnavailable)

// brokenBy is the end of a lease whose record an operator has broken; nil: none has.
func (k *kept) brokenBy(e *record.Entry) *EndError {
	if e == nil {
		return nil
	}
	return &EndError{Name: k.Name, Token: k.Body.Token, Kind: ErrBroken, Why: e.BrokenBecause()}
}
