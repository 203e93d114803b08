package election

import (
	"context"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/natslock/locks/internal/bridge"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/natslock"
)

// refreshAfter is how long an observer goes without news before it reads the leader: a
// notification may be lost.
const refreshAfter = 4 * time.Second

// settleAfter is how long after the end of a lease an observer reads again, if the record
// was still there: by then it has gone, or is overdue.
const settleAfter = 500 * time.Millisecond

var watchHolder = bridge.WatchHolder.(func(context.Context, *natslock.Client, string) iter.Seq2[natslock.Event, error])

// Observe yields the leader, and then each change: another leader, another value, and
// each vacancy as a zero Leader, until ctx ends. The first one is the state at the
// beginning. It costs one subscription, a request every 10 s, and one read when 4 s have
// passed without a notification. Where several servers keep the bucket, a read is two
// requests.
//
// An observer that notifications reach is right within a round trip. If one is lost, it
// is right within five seconds, and may miss a leader in between. While the server does
// not answer, Observe yields nothing, and then the state after the outage. It goes on in
// a bucket that was re-created.
//
// The sequence ends without an error when ctx ends, or when the caller stops. The error
// of any other end matches [natslock.ErrClosed], [natslock.ErrPermission],
// [natslock.ErrInvalidName] or [natslock.ErrInvalidOption].
func (e *Election) Observe(ctx context.Context) iter.Seq2[Leader, error] {
	return func(yield func(Leader, error) bool) {
		if err := e.ready(); err != nil {
			yield(Leader{}, err)
			return
		}
		var following sync.WaitGroup
		defer following.Wait()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		events := make(chan natslock.Event)
		following.Go(func() { e.follow(ctx, events) })
		timer := time.NewTimer(0)
		defer timer.Stop()
		var o observer
		for failed := 0; ; {
			var got news
			pause := refreshAfter
			select {
			case ev := <-events:
				got = o.notified(ev)
				if ev.Type == natslock.EventExpired {
					pause = settleAfter
				}
			case <-timer.C:
				got = doubt //safety:observed-again
			case <-ctx.Done():
				return
			}
			if got == doubt {
				l, revision, err := e.read(ctx)
				switch {
				case ctx.Err() != nil:
					return
				case err == nil:
					failed = 0
					o.leader, o.revision, o.known = l, revision, true
				case isFinal(err):
					yield(Leader{}, fmt.Errorf("election %q: %w", e.name, err))
					return
				default:
					pause = min(backoff(failed), refreshAfter)
					failed++
				}
			}
			if got == stale {
				continue
			}
			timer.Reset(pause)
			if l, changed := o.change(); changed && !yield(l, nil) {
				return
			}
		}
	}
}

// follow passes on the changes of the leader's record. After the end of a watch it passes
// on an event without a type, and begins another watch.
func (e *Election) follow(ctx context.Context, events chan<- natslock.Event) {
	for failed := 0; ; {
		for ev, err := range watchHolder(ctx, e.c, e.name) {
			if err == nil {
				failed = 0
			}
			select {
			case events <- ev:
			case <-ctx.Done():
				return
			}
		}
		if clock.Sleep(ctx, backoff(failed)) != nil {
			return
		}
		failed++
	}
}

// observer is what an observer knows of the leader.
type observer struct {
	leader   Leader
	revision uint64 // of the last record known
	known    bool   // it has read the leader
	yielded  Leader
	any      bool // it has yielded a leader
}

// news is what a notification means to an observer.
type news int

const (
	// stale: it says nothing new.
	stale news = iota
	// fresh: the observer knows the state as of now.
	fresh
	// doubt: only a read can show the state.
	doubt
)

// notified takes a change of the leader's record. Such notifications can be lost and
// forged, so what follows from nothing else is read.
func (o *observer) notified(ev natslock.Event) news {
	if !o.known {
		return doubt
	}
	switch ev.Type {
	case natslock.EventGranted, natslock.EventRenewed, natslock.EventBroken:
		if h := ev.Holder; h != nil && ev.ID != "" {
			switch {
			case h.Revision > o.revision: //safety:observed-in-order
				o.leader, o.revision = leaderOf(h), h.Revision
				return fresh
			case ev.Type != natslock.EventBroken:
				return stale
			}
		}
	case natslock.EventReleased:
		if ev.ID != "" && ev.ID == o.leader.ID {
			o.leader = Leader{}
			return fresh
		}
	}
	return doubt
}

// change returns the leader if the last yield was of another one.
func (o *observer) change() (l Leader, changed bool) {
	if !o.known || o.any && o.leader.equal(o.yielded) {
		return Leader{}, false
	}
	o.yielded, o.any = o.leader, true
	return o.leader, true
}

// report calls OnChange until stop, which waits for the last call. The context that it
// returns ends with ctx, or with the error that ends the calls.
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
