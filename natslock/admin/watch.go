package admin

import (
	"context"
	"fmt"
	"iter"
	"sync"

	view "github.com/natslock/locks/internal/admin"
	"github.com/natslock/locks/natslock"
)

// maxUnread limits how many events a slow reader of Watch may leave unread.
const maxUnread = 1 << 16

// Watch yields the changes that any client makes to the locks whose names match pattern (see
// [Admin.List]), until ctx ends.
//
// The first event has the type [EventWatching] and no name. Watch does not yield the current
// state, so list the locks when that event arrives. The list and the later events together miss
// nothing. Another EventWatching follows each connection outage. Events since its Since may have
// been missed, so list the locks again.
//
// Events are hints, because any user that is allowed to publish notifications can forge them. If
// the notification of a lock's end is missing, Watch reports the end when the lease is over,
// even for a lock that was held before the watch began.
//
// The sequence ends without an error when ctx ends or the caller stops. Otherwise the error
// matches [natslock.ErrInvalid], [natslock.ErrClosed], kvstore.ErrNoWatch if the bucket does not
// publish its changes, or [natslock.ErrUnavailable] if the connection was closed, the bucket was
// deleted or re-created, or the caller left more than 65,536 events unread. A user that is not
// allowed to subscribe to the notifications gets neither events nor an error.
func (a *Admin) Watch(ctx context.Context, pattern string) iter.Seq2[Event, error] {
	return watch(ctx, a.client(), pattern, eachOf((*view.Admin).Watch))
}

// beginning starts a watch, which delivers values until stop is called.
type beginning[T any] func(in *view.Admin, pattern string, deliver func(T), fail func(error)) (stop func(), err error)

// eachOf wraps begin so that it delivers each change as an event.
func eachOf(begin beginning[view.Change]) beginning[Event] {
	return func(in *view.Admin, pattern string, deliver func(Event), fail func(error)) (func(), error) {
		return begin(in, pattern, func(ch view.Change) { deliver(changed(ch)) }, fail)
	}
}

// watch yields the values that begin delivers, until ctx or the client ends.
func watch[T any](ctx context.Context, c *natslock.Client, pattern string, begin beginning[T]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		in, err := inside(ctx, c)
		if err != nil {
			yield(none, fmt.Errorf("watch locks %.512q: %w", pattern, err))
			return
		}
		q := unread[T]{wake: make(chan struct{}, 1)}
		stop, err := begin(in, pattern, q.add, q.fail)
		if err != nil {
			yield(none, fmt.Errorf("watch locks %.512q: %w", pattern, public(err)))
			return
		}
		defer stop()
		for {
			select {
			case <-q.wake:
			case <-ctx.Done():
				return
			case <-in.Life().Done():
				yield(none, fmt.Errorf("watch locks %.512q: %w", pattern, context.Cause(in.Life())))
				return
			}
			events, err := q.take()
			for _, ev := range events {
				if !yield(ev, nil) {
					return
				}
			}
			if err != nil {
				yield(none, fmt.Errorf("watch locks %.512q: %w", pattern, public(err)))
				return
			}
		}
	}
}

// unread queues the events that the caller of a watch has not consumed yet.
type unread[T any] struct {
	mu     sync.Mutex
	events []T
	err    error // returned after the events
	wake   chan struct{}
}

func (q *unread[T]) add(ev T) {
	q.mu.Lock()
	switch {
	case q.err != nil:
	case len(q.events) < maxUnread:
		q.events = append(q.events, ev)
	default:
		q.err = fmt.Errorf("%w: more than %d events unread", natslock.ErrUnavailable, maxUnread)
	}
	q.mu.Unlock()
	q.signal()
}

func (q *unread[T]) fail(err error) {
	q.mu.Lock()
	q.err = err
	q.mu.Unlock()
	q.signal()
}

func (q *unread[T]) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *unread[T]) take() ([]T, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	events := q.events
	q.events = nil
	return events, q.err
}
