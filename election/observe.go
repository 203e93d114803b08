package election

import (
	"context"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/natslock/locks/internal/again"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/natslock/admin"
)

// refreshAfter is how long an observer goes without news before it reads the leader again, in
// case a notification was lost.
const refreshAfter = 4 * time.Second

// readEvery is the maximum interval between an observer's reads. The leader's renewals postpone
// the next read, but because renewals can be forged, they never postpone it beyond this interval.
const readEvery = time.Minute

// fruitless is how many reads in a row can find nothing new before an observer has to wait until
// floodPause has passed since its last read. Otherwise, forged notifications could make it read
// in a tight loop.
const (
	fruitless  = 4
	floodPause = 50 * time.Millisecond
)

// settleAfter is how long after the end of a lease an observer reads again, in case the first
// read still found the record. By then the record has been removed or is overdue.
const settleAfter = 500 * time.Millisecond

// Observe yields the current leader and then each change until ctx ends: a new leader, a new
// value, or a vacancy, which is a zero [Leader]. It costs one subscription, a request every 10 s,
// a read for each change, and a read whenever 4 s pass without a notification. On a replicated
// bucket a read takes two requests.
//
// Because notifications can be forged, Observe yields only what it has read from the server. It
// is up to date within two round trips of a notification, within five seconds if one is lost, and
// within a minute if a user forges renewals. It may miss a leader whose term was shorter than
// these delays, but always yields a vacancy between two leaders. During an outage Observe yields
// nothing. Afterwards it yields the current state. It continues if the bucket is re-created.
//
// The sequence ends without an error when ctx ends or the caller stops iterating. Otherwise the
// error matches [natslock.ErrUnavailable] and nats.ErrConnectionClosed if the connection was
// closed for good, or [natslock.ErrClosed], [natslock.ErrPermission] or [natslock.ErrInvalid].
func (e *Election) Observe(ctx context.Context) iter.Seq2[Leader, error] {
	return func(yield func(Leader, error) bool) {
		if err := e.ready(ctx); err != nil {
			yield(Leader{}, err)
			return
		}
		var following sync.WaitGroup
		defer following.Wait()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		events := make(chan admin.Event)
		following.Go(func() { e.follow(ctx, events) })
		timer := time.NewTimer(0)
		defer timer.Stop()
		var o observer
		var readAt time.Time
		for failed, vain := 0, 0; ; {
			var got news
			told := false
			pause := refreshAfter
			select {
			case ev := <-events:
				got, told = o.notified(ev), true
				if left := floodPause - time.Since(readAt); got == doubt && vain >= fruitless && left > 0 {
					timer.Reset(left)
					continue
				}
				if ev.Type == admin.EventExpired {
					pause = settleAfter
				}
			case <-timer.C:
				got = doubt //safety:observed-again
			case <-ctx.Done():
				return
			}
			if got == doubt {
				l, revision, err := e.read(ctx)
				readAt = time.Now()
				if vain++; !told || !l.equal(o.leader) {
					vain = 0
				}
				switch {
				case ctx.Err() != nil:
					return
				case err == nil:
					failed = 0
					o.leader, o.revision, o.known = l, revision, true
				case again.Final(err):
					yield(Leader{}, fmt.Errorf("election %.512q: %w", e.name, err))
					return
				default:
					pause = min(again.Pause(failed), refreshAfter)
					failed++
				}
			}
			switch got {
			case stale:
				continue
			case same: // may be forged too, so do not rely on it for longer than readEvery
				pause = min(pause, time.Until(readAt.Add(readEvery)))
			}
			timer.Reset(pause)
			for l, changed := o.change(); changed; l, changed = o.change() {
				if !yield(l, nil) {
					return
				}
			}
		}
	}
}

// follow forwards changes to the leader's record. When a watch ends, it sends an event without a
// type and starts a new watch.
func (e *Election) follow(ctx context.Context, events chan<- admin.Event) {
	for failed := 0; ; {
		for ev, err := range inside.WatchHolder(ctx, e.c, e.name) {
			if err == nil {
				failed = 0
			}
			select {
			case events <- ev:
			case <-ctx.Done():
				return
			}
		}
		if clock.Sleep(ctx, again.Pause(failed)) != nil {
			return
		}
		failed++
	}
}

// observer is the state of one Observe call.
type observer struct {
	leader   Leader
	revision uint64 // the last read reflects all changes up to this revision
	known    bool   // the leader has been read
	yielded  Leader
	any      bool // a leader or a vacancy has been yielded
}

// news is what a notification means to an observer.
type news int

const (
	// stale means that the notification is older than the last read.
	stale news = iota
	// same means that the notification shows the leader that was last read.
	same
	// doubt means that the observer has to read the leader to find out.
	doubt
)

// notified classifies a notification about the leader's record. Because notifications can be lost
// or forged, they never update what the observer knows, not even the revision. All they can do is
// prompt it to read the record.
func (o *observer) notified(ev admin.Event) news {
	if !o.known {
		return doubt
	}
	switch ev.Type {
	case admin.EventGranted, admin.EventRenewed, admin.EventBroken:
		if h := ev.Holder; h != nil && ev.ID != "" {
			old := h.Revision <= o.revision && ev.Type != admin.EventBroken //safety:observed-in-order
			switch {
			case old:
				return stale
			case leaderOf(h).equal(o.leader):
				return same
			}
		}
	}
	return doubt
}

// next returns the leader to yield. Leaders with different IDs come from different claims: the
// first claim ended before the second began, so next returns a vacancy in between.
func (o *observer) next() Leader {
	if o.any && !o.yielded.Vacant() && !o.leader.Vacant() && o.yielded.ID != o.leader.ID {
		return Leader{}
	}
	return o.leader
}

// change returns the leader to yield next, and false if there is nothing new to yield.
func (o *observer) change() (l Leader, changed bool) {
	if !o.known || o.any && o.leader.equal(o.yielded) {
		return Leader{}, false
	}
	o.yielded, o.any = o.next(), true
	return o.yielded, true
}

// report calls the OnChange function for each change until stop is called. stop waits for the
// last call to return. The returned context ends with parent, or earlier if Observe fails, with
// its error as the cause.
func (e *Election) report(parent context.Context) (ctx context.Context, stop func()) {
	if e.onChange == nil {
		return parent, func() {}
	}
	ctx, cancel := context.WithCancelCause(parent)
	var reporting sync.WaitGroup
	reporting.Go(func() {
		for l, err := range e.Observe(ctx) {
			if err != nil {
				cancel(err)
				return
			}
			e.onChange(l)
		}
	})
	return ctx, func() {
		cancel(nil)
		reporting.Wait()
	}
}
