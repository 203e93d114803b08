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

// refreshAfter is the time without news after which an observer reads the leader, in case a
// notification was lost.
const refreshAfter = 4 * time.Second

// readEvery limits the time between two reads by an observer. Renewals by the leader postpone
// the next read, but may be forged.
const readEvery = time.Minute

// An observer slows down under a flood of forged notifications: after fruitless reads in
// a row without news, it reads again only when floodPause has passed.
const (
	fruitless  = 4
	floodPause = 50 * time.Millisecond
)

// settleAfter is the delay after the end of a lease before an observer reads again if the record
// was still there: by then it has been removed or is overdue.
const settleAfter = 500 * time.Millisecond

// Observe yields the leader and then each change until ctx ends: another leader, another value,
// and each vacancy as a zero [Leader]. It costs one subscription, a request every 10 s, a read
// for each change, and a read after 4 s without a notification. On a bucket with replicas a read
// takes two requests.
//
// A notification can be forged, so Observe yields only what it has read. It is correct within
// two round trips of a notification, within five seconds of a lost one, and within a minute if a
// user forges renewals. It may miss a leader that led for less time than that, and always yields
// a vacancy between two leaders. While the server does not answer, Observe yields nothing.
// Afterwards it yields the state after the outage. It continues if the bucket is re-created.
//
// The sequence ends without an error when ctx ends or the caller stops. Otherwise the error
// matches [natslock.ErrUnavailable] and nats.ErrConnectionClosed if the connection was closed
// for good, or [natslock.ErrClosed], [natslock.ErrPermission] or [natslock.ErrInvalid].
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
			case same: // it may be forged, too
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

// follow forwards changes to the leader's record. When a watch ends, it sends an event with no
// type and starts another watch.
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

// observer is what one Observe knows about the leader.
type observer struct {
	leader   Leader
	revision uint64 // changes up to this revision are no newer than the last read
	known    bool   // the leader was read
	yielded  Leader
	any      bool // a leader was yielded
}

// news is the meaning of a notification for an observer.
type news int

const (
	// stale: the notification says nothing new.
	stale news = iota
	// same: the notification shows the leader that was read last.
	same
	// doubt: only a read can show the state.
	doubt
)

// notified handles a notification of a change to the leader's record. Notifications can be lost
// or forged, so the observer reads the record before it believes news. It takes nothing else from
// a notification, not even how recent the last one was.
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

// next returns the leader to yield. A record with another id belongs to another claim:
// the previous one had ended, and no one led in between.
func (o *observer) next() Leader {
	if o.any && !o.yielded.Vacant() && !o.leader.Vacant() && o.yielded.ID != o.leader.ID {
		return Leader{}
	}
	return o.leader
}

// change returns the leader to yield next, if it differs from the last one yielded.
func (o *observer) change() (l Leader, changed bool) {
	if !o.known || o.any && o.leader.equal(o.yielded) {
		return Leader{}, false
	}
	o.yielded, o.any = o.next(), true
	return o.yielded, true
}

// report calls OnChange until stop, which waits for the last call. The returned ctx
// ends with parent, or with the error that ends the calls.
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
