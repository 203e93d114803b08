package lease

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/natslock/locks/kvstore"
)

// Release ends the lease and deletes its record. Further calls wait for the
// first and return its result. The context ends first: what runs under it must
// not meet the next holder.
//
// It returns nil when it was called inside validity and nothing says that the
// lock had been lost before; otherwise the cause of the end. When the server
// does not answer within the release timeout, the error matches
// [ErrUnavailable], the deletion goes on in the background, and at the latest
// the TTL frees the lock.
func (l *Lease) Release() error {
	// Before the lease ends: a Close that waits for it must wait for what follows.
	working := l.e.beginWork()
	l.e.keeper.mu.Lock()
	if l.released != nil {
		done := l.released
		l.e.keeper.mu.Unlock()
		if working {
			l.e.endWork()
		}
		<-done
		return l.result
	}
	l.released = make(chan struct{})
	defer close(l.released)
	lose := func() {}
	if l.e.now() >= l.end {
		lose = l.expire()
	}
	was, end := l.state, l.end
	ending := l.endByRelease()
	l.e.keeper.mu.Unlock()
	lose()
	ending.finish()

	if !working {
		if was != Held {
			l.result = l.cause
		} else {
			l.result = fmt.Errorf("release lock %q: %w", l.spec.name, ErrClosed)
		}
		return l.result
	}
	if was != Held && (!errors.Is(l.cause.Kind, ErrBroken) || l.e.away.Load()) {
		// The caller is not kept waiting for what is most likely gone. A broken
		// record is there, and keeps others out until it is deleted.
		l.e.background(func(ctx context.Context) { l.delete(ctx, StatusGone, time.Now(), l.terms.ttl, nil) })
		l.e.endWork()
		l.result = l.cause
		return l.result
	}
	found, err := l.deleteWithin(l.e.cfg.ReleaseTimeout)
	switch {
	case was != Held:
		l.result = l.cause
	case found != nil && (errors.Is(found, ErrBroken) || l.e.now() < end):
		l.result = found
	case found != nil:
		// Refused after the validity end: it has simply expired since.
	case err != nil:
		l.result = fmt.Errorf("release lock %q (token %d): %w; it is free when its TTL of %v has passed at the latest", l.spec.name, l.token, err, l.terms.ttl)
	}
	return l.result
}

// deleteWithin deletes the record and waits for that at most for d; then the
// deletion goes on in the background. It ends the work that its caller has begun.
//
// What is sent is sent by others, because a network write that is stuck holds up
// whoever else wants to write, and no context ends that.
func (l *Lease) deleteWithin(d time.Duration) (found *EndError, err error) {
	body, err := l.tombstone(StatusGone)
	if err != nil {
		l.e.endWork()
		return nil, err
	}
	begun := time.Now()
	first := l.e.post(kvstore.Write{Key: l.spec.key, Value: body, Expect: l.last, Delete: true})
	a, answered := first.soon(min(deniedAfter, d))
	if answered && a.Err == nil {
		l.e.left(l.spec, a.Revision)
		l.e.endWork()
		return nil, nil
	}
	type deletion struct {
		found *EndError
		err   error
	}
	done := make(chan deletion, 1)
	go func() {
		defer l.e.endWork()
		if !answered {
			a = first.wait(l.e.ctx, max(min(d, answerTimeout)-time.Since(begun), 0))
		}
		found, err := l.delete(l.e.ctx, StatusGone, begun, d, &a)
		done <- deletion{found, err}
		if err != nil {
			l.e.background(func(ctx context.Context) { l.delete(ctx, StatusGone, time.Now(), l.terms.ttl, nil) })
		}
	}()
	stuck := time.NewTimer(d + d/10 - time.Since(begun))
	defer stuck.Stop()
	select {
	case r := <-done:
		return r.found, r.err
	case <-stuck.C:
		return nil, fmt.Errorf("%w: the network takes no writes", ErrUnavailable)
	}
}

// endByRelease makes the lease Released and returns what tells of it, and what is
// to be told without the mutex. Under mu.
func (l *Lease) endByRelease() ending {
	end := ending{tell: l.state == Held && l.announced}
	l.state = Released
	l.end = min(l.end, l.e.now())
	if l.cause == nil {
		l.cause = &EndError{Name: l.spec.name, Token: l.token, Kind: ErrReleased}
	}
	end.cause = l.cause
	l.e.keeper.remove(l)
	end.left = l.finish()
	return end
}

// ending is a release that is still to be told of.
type ending struct {
	tell  bool
	cause *EndError
	left  leavings
}

// finish is called without the mutex.
func (end ending) finish() {
	if l := end.left.l; end.tell {
		l.e.tell(l.base, l.event(EventReleased, nil))
	}
	end.left.tell(end.cause)
}

// leave releases a place in a queue, or a lock that was not handed out, without
// waiting for the answer. The tombstone's body tells a successor in the queue,
// and only it, whether it is first now.
func (l *Lease) leave(status Status) {
	l.e.keeper.mu.Lock()
	if l.released != nil {
		l.e.keeper.mu.Unlock()
		return
	}
	l.released = make(chan struct{})
	close(l.released)
	ending := l.endByRelease()
	l.e.keeper.mu.Unlock()
	ending.finish()
	retry := func() {
		l.e.background(func(ctx context.Context) { l.delete(ctx, status, time.Now(), l.terms.ttl, nil) })
	}
	body, err := l.tombstone(status)
	if err != nil {
		return
	}
	// Work until the answer has come, for a while: it may be refused because a
	// renewal was on its way, and a Close must not come before the second try.
	answered := func() {}
	if l.e.beginWork() {
		end := sync.OnceFunc(l.e.endWork)
		timer := time.AfterFunc(answerTimeout, func() { retry(); end() }) // a lost write would keep others out for a TTL
		answered = func() { timer.Stop(); end() }
	}
	g := &ghost{}
	forget, err := l.e.kv.Send(kvstore.Write{Key: l.spec.key, Value: body, Expect: l.last, Delete: true}, func(a kvstore.Answer) {
		l.e.ghosts.lay(g)
		if a.Err == nil {
			l.e.left(l.spec, a.Revision)
		} else {
			retry()
		}
		answered()
	})
	if err != nil {
		retry()
		answered()
		return
	}
	l.e.ghosts.add(g, forget)
}

func (l *Lease) tombstone(status Status) ([]byte, error) {
	b := Body{Status: status, ID: l.id, Client: l.e.client, Token: l.token}
	return b.encode()
}

// errBehind: a server has shown an older record than the one it acknowledged.
var errBehind = fmt.Errorf("%w: the server that answered lags behind", ErrUnavailable)

// delete removes the record of a lease that has ended, whatever became of its
// last renewals. It tries until the server has confirmed that or limit has passed
// since begun. found is set when the record was not the lease's own any more. first
// is the answer to a first write, made at begun; nil: there was none.
func (l *Lease) delete(ctx context.Context, status Status, begun time.Time, limit time.Duration, first *kvstore.Answer) (found *EndError, err error) {
	body, err := l.tombstone(status)
	if err != nil {
		return nil, err
	}
	end := begun.Add(limit)
	revision := l.last
	unanswered := false
	var broken *EndError
	lost := func(why string) *EndError {
		if broken != nil {
			return broken
		}
		return &EndError{Name: l.spec.name, Token: l.token, Kind: ErrLost, Why: why}
	}
	for try := 0; ; try++ {
		// The first write is hardly ever not the last, and ends by itself.
		if try == 1 || try == 0 && time.Until(end) < answerTimeout {
			var cancel context.CancelFunc
			ctx, cancel = context.WithDeadlineCause(ctx, end, fmt.Errorf("%w: no answer within %v", ErrUnavailable, limit))
			defer cancel()
		}
		up := l.e.online()
		if first == nil {
			answer, err := l.e.write(ctx, kvstore.Write{Key: l.spec.key, Value: body, Expect: revision, Delete: true})
			first = &kvstore.Answer{Revision: answer, Err: err}
		}
		answer, err := first.Revision, first.Err
		first = nil
		var conflict *kvstore.ConflictError
		switch {
		case err == nil:
			l.e.left(l.spec, answer)
			return broken, nil
		case errors.As(err, &conflict):
			// As of a state that contains the last write known: a leader that was
			// deposed refuses as well, and may have removed what was renewed since.
			var entry Entry
			entry, err = l.e.read(ctx, l.spec.key, max(conflict.Last, revision))
			if err == nil && !entry.Zero() && entry.Revision < revision && !l.e.kv.Alone() {
				err = errBehind
			}
			// A refusal that does not know what was acknowledged may come from a
			// leader that was deposed: the one that leads may have applied what it
			// refused, or do so yet. Of an empty key a tombstone would show that for
			// a second.
			none := err == nil && entry.Zero() && time.Since(begun) < tombstoneLife
			if conflict.Last < revision && (entry.of(l.id) || !none && !l.e.kv.Alone()) {
				unanswered = true
			}
			if err != nil {
				break
			}
			switch {
			case !entry.of(l.id) && unanswered:
				return broken, nil // deleted by an earlier try, and taken since
			case !entry.of(l.id):
				return lost("its record was gone when it was to be released"), nil
			case entry.Deleted && entry.Status == StatusBroken:
				return &EndError{Name: l.spec.name, Token: l.token, Kind: ErrBroken, Why: entry.brokenBy()}, nil
			case entry.Deleted:
				return broken, nil // an own deletion whose answer was lost
			case entry.Status == StatusBroken:
				broken = &EndError{Name: l.spec.name, Token: l.token, Kind: ErrBroken, Why: entry.brokenBy()}
			}
			revision = entry.Revision // a renewal that was still on its way
			continue
		// A deposed leader refuses so while the one that leads applies the write.
		case !errors.Is(err, kvstore.ErrInFlight) || !l.e.kv.Alone():
			unanswered = true
		}
		if ctx.Err() != nil && isAny(err, context.DeadlineExceeded, context.Canceled) {
			err = context.Cause(ctx)
		}
		if ctx.Err() != nil || isAny(err, ErrPermission, kvstore.ErrClosed) {
			return nil, unavailable(err)
		}
		pause := outagePause(try)
		if errors.Is(err, kvstore.ErrInFlight) {
			pause = inFlightPause(try)
		}
		if l.e.sleep(ctx, pause, up) != nil {
			return nil, unavailable(err)
		}
	}
}

// discard deletes a record of a claim that is over, at exactly the revision
// seen: a courtesy, so that nobody waits for its TTL.
func (e *Engine) discard(key, id string, revision uint64) {
	b := Body{Status: StatusGone, ID: id, Client: e.client}
	body, err := b.encode()
	if err != nil {
		return
	}
	e.background(func(ctx context.Context) { // asked for on goroutines of the store
		ctx, cancel := context.WithTimeout(ctx, ghostLife)
		defer cancel()
		for try := 0; ; try++ {
			up := e.online()
			_, err := e.write(ctx, kvstore.Write{Key: key, Value: body, Expect: revision, Delete: true})
			if err == nil || isAny(err, kvstore.ErrConflict, ErrPermission, kvstore.ErrClosed) || e.sleep(ctx, outagePause(try), up) != nil {
				return
			}
		}
	})
}

// read returns the record under key as of a state that contains revision; the
// zero entry when there is none.
func (e *Engine) read(parent context.Context, key string, revision uint64) (Entry, error) {
	ctx, cancel := answerIn(parent, answerTimeout)
	defer cancel()
	r, err := e.kv.Get(ctx, key, revision)
	switch {
	case errors.Is(err, kvstore.ErrNotFound):
		return Entry{}, nil
	case err != nil:
		return Entry{}, late(parent, ctx, err)
	}
	return entryOf(r), nil
}

// readBeside returns what is under the key of entry, which was read before, and the
// record under another key, by one request where the user may read many keys.
func (e *Engine) readBeside(ctx context.Context, entry Entry, key string) (now Entry, beside *Entry, err error) {
	ctx, cancel := answerIn(ctx, answerTimeout)
	defer cancel()
	l, err := e.kv.List(ctx, entry.Key, entry.Revision, kvstore.Beside(key))
	if err != nil {
		return Entry{}, nil, err
	}
	if len(l.Records) > 0 {
		now = entryOf(l.Records[0])
	}
	beside = new(Entry)
	if l.Beside.Revision != 0 {
		*beside = entryOf(l.Beside)
	}
	return now, beside, nil
}

// beginWork registers work that Close has to wait for; the caller ends it with
// endWork.
func (e *Engine) beginWork() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ctx.Err() != nil {
		return false
	}
	e.working++
	return true
}

func (e *Engine) endWork() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.working--; e.working == 0 && e.rested != nil {
		close(e.rested)
		e.rested = nil
	}
}

// rest waits until no work is under way or ctx ends. A WaitGroup would not do:
// work begins while it is waited for.
func (e *Engine) rest(ctx context.Context) {
	e.mu.Lock()
	if e.working == 0 {
		e.mu.Unlock()
		return
	}
	if e.rested == nil {
		e.rested = make(chan struct{})
	}
	rested := e.rested
	e.mu.Unlock()
	select {
	case <-rested:
	case <-ctx.Done():
	}
}

// answerIn bounds the wait for an answer: without one the server is unavailable.
func answerIn(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, d, fmt.Errorf("%w: no answer within %v", ErrUnavailable, d))
}

// late is err, or the bound of ctx when that has passed while parent goes on: the
// error of a context that is not the caller's must not reach the caller.
func late(parent, ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil && parent.Err() == nil {
		return context.Cause(ctx)
	}
	return err
}

// unavailable makes err match [ErrUnavailable].
func unavailable(err error) error {
	if errors.Is(err, ErrUnavailable) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

// endOf is why ctx ended: its error and, where they differ, its cause.
func endOf(ctx context.Context) error {
	if cause := context.Cause(ctx); cause != ctx.Err() {
		return errors.Join(ctx.Err(), cause)
	}
	return ctx.Err()
}

// outagePause is how long to wait before something is tried again that got no
// answer: longer and longer, up to some seconds. A connection that comes back
// cuts it short.
func outagePause(try int) time.Duration {
	d := 50 * time.Millisecond << min(try, 6)
	return d/2 + rand.N(d)
}

// sleep waits for d, the end of ctx, or a connection that has come back: up is
// [Engine.online] from before what is to be tried again.
func (e *Engine) sleep(ctx context.Context, d time.Duration, up <-chan struct{}) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-up:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// sleep waits for d or the end of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
