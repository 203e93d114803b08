package natslock

import (
	"context"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/natslock/locks/internal/lease"
)

// EventType says what happened to a lock.
type EventType int

const (
	// EventQueued: a client began to wait.
	EventQueued EventType = iota + 1
	// EventGranted: a client got the lock.
	EventGranted
	// EventRenewed: the server confirmed a lease for longer.
	EventRenewed
	// EventReleased: the holder unlocked.
	EventReleased
	// EventExpired: a lease ended, and its holder neither renewed nor released it.
	// To an observer: this client lost the lock, and the event's Cause says why.
	EventExpired
	// EventBroken: an operator broke the lock.
	EventBroken
	// EventGaveUp: a waiter stopped waiting.
	EventGaveUp
	// EventAtRisk: the connection was closed under a held lock, so the client
	// cannot renew it any more. Observers only.
	EventAtRisk
	// EventWatching: events follow from here on. Earlier changes are in a list
	// only. [Client.Follow] only.
	EventWatching
)

func (t EventType) String() string {
	names := [...]string{EventQueued: "queued", EventGranted: "granted", EventRenewed: "renewed", EventReleased: "released",
		EventExpired: "expired", EventBroken: "broken", EventGaveUp: "gave up", EventAtRisk: "at risk", EventWatching: "watching"}
	if t > 0 && int(t) < len(names) {
		return names[t]
	}
	return fmt.Sprintf("EventType(%d)", int(t))
}

// Event is a transition of a lock: of this client's locks for an observer, of any
// client's for [Client.Watch].
type Event struct {
	Type EventType
	Kind Kind
	// Mode tells readers and writers apart. Watch only.
	Mode Mode
	Name string
	ID   string // of the claim
	// Token is the fencing token, or the ticket of a waiter.
	Token uint64
	Time  time.Time
	// Waited is the time from the call to the grant, or to giving up. Watch reports
	// it in milliseconds, and 0 if the holder did not queue. For a waiter that gave
	// up, Watch takes it from the clocks of the waiter and the server.
	Waited time.Duration
	// Cause is the reason why a lock or a wait ended. Observers only.
	Cause error
	// Holder is the holder or waiter that the event is about, or nil if unknown.
	// Watch only. It has only the ID and the token after a release whose holder
	// this watch had not seen.
	Holder *Holder
}

var eventTypes = map[lease.EventType]EventType{
	lease.EventQueued: EventQueued, lease.EventGranted: EventGranted, lease.EventRenewed: EventRenewed,
	lease.EventReleased: EventReleased, lease.EventLost: EventExpired, lease.EventBroken: EventBroken,
	lease.EventGaveUp: EventGaveUp, lease.EventAtRisk: EventAtRisk, lease.EventWatching: EventWatching,
}

func observed(ev lease.Event) Event {
	return Event{
		Type: eventTypes[ev.Type], Kind: Kind(ev.Kind), Name: ev.Name, ID: ev.ID,
		Token: ev.Token, Time: ev.Time, Waited: ev.Waited, Cause: public(ev.Cause),
	}
}

// maxUnread bounds the events that a slow reader of Watch leaves unread.
const maxUnread = 1 << 16

// Watch tells what happens to all locks whose names match pattern (see
// [Client.List]), whoever holds them, until ctx ends. There is no initial
// state: list after the first event, or before and again later; or use
// [Client.Follow], which says when.
//
// Events are hints. They come from the bucket's notifications, which can be
// missed while the connection is down; an end that nobody announced is told
// when the lease is over, also that of a lock held from before. The sequence ends
// without an error when ctx ends, and with one matching [ErrUnavailable] (also
// when the bucket was deleted or made again), [ErrClosed] or [ErrInvalidName]
// otherwise.
func (c *Client) Watch(ctx context.Context, pattern string) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		for ev, err := range c.Follow(ctx, pattern) {
			if ev.Type != EventWatching && !yield(ev, err) {
				return
			}
		}
	}
}

// Follow is [Client.Watch] with marks, for those who keep a picture of the
// locks: an event of the type [EventWatching], without a name, when the server
// has begun to send events, and again after the connection was away. A list
// that is asked for after the mark, and the events that come after it, miss
// nothing between them.
func (c *Client) Follow(ctx context.Context, pattern string) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		q := unread{wake: make(chan struct{}, 1)}
		stop, err := c.engine.Watch(pattern, func(ch lease.Change) { q.add(changed(ch)) }, q.fail)
		if err != nil {
			yield(Event{}, fmt.Errorf("watch locks %q: %w", pattern, public(err)))
			return
		}
		defer stop()
		for {
			select {
			case <-q.wake:
			case <-ctx.Done():
				return
			case <-c.engine.Life().Done():
				yield(Event{}, fmt.Errorf("watch locks %q: %w", pattern, context.Cause(c.engine.Life())))
				return
			}
			events, err := q.take()
			for _, ev := range events {
				if !yield(ev, nil) {
					return
				}
			}
			if err != nil {
				yield(Event{}, fmt.Errorf("watch locks %q: %w", pattern, public(err)))
				return
			}
		}
	}
}

func changed(ch lease.Change) Event {
	ev := Event{Type: eventTypes[ch.Type], Kind: Kind(ch.Kind), Mode: Mode(ch.Mode), Name: ch.Name, ID: ch.Entry.ID,
		Token: ch.Entry.TokenOrTicket(), Time: ch.Time, Holder: holderOf(ch.Entry)}
	switch {
	case ev.Holder == nil:
	case ev.Type == EventGranted:
		ev.Waited = ev.Holder.Waited
	case ev.Type == EventGaveUp && !ev.Holder.Since.IsZero():
		ev.Waited = max(ev.Time.Sub(ev.Holder.Since), 0)
	}
	return ev
}

// unread holds the events that the reader of a watch has not taken yet.
type unread struct {
	mu     sync.Mutex
	events []Event
	err    error // after the events
	wake   chan struct{}
}

func (q *unread) add(ev Event) {
	q.mu.Lock()
	switch {
	case q.err != nil:
	case len(q.events) < maxUnread:
		q.events = append(q.events, ev)
	default:
		q.err = fmt.Errorf("%w: more than %d events unread", ErrUnavailable, maxUnread)
	}
	q.mu.Unlock()
	q.poke()
}

func (q *unread) fail(err error) {
	q.mu.Lock()
	q.err = err
	q.mu.Unlock()
	q.poke()
}

func (q *unread) poke() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *unread) take() ([]Event, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	events := q.events
	q.events = nil
	return events, q.err
}
