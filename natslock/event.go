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
	// EventQueued: somebody began to wait.
	EventQueued EventType = iota + 1
	// EventGranted: somebody got the lock.
	EventGranted
	// EventRenewed: a lease was confirmed for longer.
	EventRenewed
	// EventReleased: the holder unlocked.
	EventReleased
	// EventExpired: a lease ended without being renewed or released. For an
	// observer: the own lock was lost; the event's Cause says why.
	EventExpired
	// EventBroken: an operator broke the lock.
	EventBroken
	// EventGaveUp: somebody stopped waiting.
	EventGaveUp
	// EventAtRisk: the connection was closed under a held lock, so it will not
	// be renewed any more. Observers only.
	EventAtRisk
)

func (t EventType) String() string {
	names := [...]string{EventQueued: "queued", EventGranted: "granted", EventRenewed: "renewed", EventReleased: "released",
		EventExpired: "expired", EventBroken: "broken", EventGaveUp: "gave up", EventAtRisk: "at risk"}
	if t > 0 && int(t) < len(names) {
		return names[t]
	}
	return fmt.Sprintf("EventType(%d)", int(t))
}

// Event is a transition of a lock, of this client's for an observer, of any
// client's for [Client.Watch].
type Event struct {
	Type EventType
	Kind Kind
	Name string
	ID   string // of the claim
	// Token is the fencing token, or the ticket of somebody waiting.
	Token uint64
	Time  time.Time
	// Waited is how long the acquire took that was granted or given up.
	// Observers only.
	Waited time.Duration
	// Cause is why a lock ended or a wait was given up. Observers only.
	Cause error
	// Holder is who the event is about. Watch only; nil when unknown.
	Holder *Holder
}

var eventTypes = map[lease.EventType]EventType{
	lease.EventQueued: EventQueued, lease.EventGranted: EventGranted, lease.EventRenewed: EventRenewed,
	lease.EventReleased: EventReleased, lease.EventLost: EventExpired, lease.EventBroken: EventBroken,
	lease.EventGaveUp: EventGaveUp, lease.EventAtRisk: EventAtRisk,
}

func observed(ev lease.Event) Event {
	return Event{
		Type: eventTypes[ev.Type], Kind: Kind(ev.Kind), Name: ev.Name, ID: ev.ID,
		Token: ev.Token, Time: ev.Time, Waited: ev.Waited, Cause: public(ev.Cause),
	}
}

// maxUnread is how many events a slow reader of Watch may leave unread.
const maxUnread = 1 << 16

// Watch tells what happens to all locks whose names match pattern (see
// [Client.List]), whoever holds them, until ctx ends. There is no initial
// state: list after the first event, or before and again later.
//
// Events are hints. They come from the bucket's notifications, which can be
// missed while the connection is down; an end that nobody announced is told
// when the lease is over. The sequence ends without an error when ctx ends, and
// with one matching [ErrUnavailable], [ErrClosed] or [ErrInvalidName]
// otherwise.
func (c *Client) Watch(ctx context.Context, pattern string) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		var mu sync.Mutex
		var queue []Event
		var overflow bool
		wake := make(chan struct{}, 1)
		stop, err := c.engine.Watch(pattern, func(ch lease.Change) {
			ev := Event{Type: eventTypes[ch.Type], Kind: Kind(ch.Kind), Name: ch.Name, ID: ch.Entry.ID,
				Token: ch.Entry.TokenOrTicket(), Time: ch.Entry.Time, Holder: holderOf(ch.Entry)}
			mu.Lock()
			if len(queue) < maxUnread {
				queue = append(queue, ev)
			} else {
				overflow = true
			}
			mu.Unlock()
			select {
			case wake <- struct{}{}:
			default:
			}
		})
		if err != nil {
			yield(Event{}, fmt.Errorf("watch locks %q: %w", pattern, public(err)))
			return
		}
		defer stop()
		for {
			select {
			case <-wake:
			case <-ctx.Done():
				return
			case <-c.engine.Life().Done():
				yield(Event{}, fmt.Errorf("watch locks %q: %w", pattern, context.Cause(c.engine.Life())))
				return
			}
			mu.Lock()
			events, lossy := queue, overflow
			queue = nil
			mu.Unlock()
			for _, ev := range events {
				if !yield(ev, nil) {
					return
				}
			}
			if lossy {
				yield(Event{}, fmt.Errorf("watch locks %q: %w: more than %d events unread", pattern, ErrUnavailable, maxUnread))
				return
			}
		}
	}
}
