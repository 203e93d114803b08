package admin

import (
	"context"
	"fmt"
	"time"

	view "github.com/natslock/locks/internal/admin"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/session"
	"github.com/natslock/locks/natslock"
)

// EventType is the type of an [Event].
type EventType int

const (
	// EventQueued: a client began to wait.
	EventQueued EventType = iota + 1
	// EventGranted: a client got the lock.
	EventGranted
	// EventRenewed: the server confirmed a lease for longer.
	EventRenewed
	// EventReleased: the holder unlocked. To Watch: the client released the lock, which it
	// may have kept idle for a while (see [natslock.Linger]), or the rest of a minimum hold
	// is over ([natslock.MinHold]). A lock that was handed over ([natslock.Lock.Handoff]) is released
	// when a client adopts it, or when its TTL has passed.
	EventReleased
	// EventExpired: a lease ended, and its client neither renewed nor released it.
	// To an observer: this client lost the lock, and the event's Cause says why. Watch
	// also reports the planned end of an [natslock.Until] lock so: the bucket shows no difference.
	EventExpired
	// EventEnded: an [natslock.Until] lock was held to its planned end. Observers only.
	EventEnded
	// EventBroken: an operator broke the lock.
	EventBroken
	// EventGaveUp: a waiter stopped waiting.
	EventGaveUp
	// EventAtRisk: the client cannot renew a held lock, and its Cause says why. The
	// connection was closed, or the server refuses the renewal, because it is full or
	// the user may no longer write. The lock is held to the end of its validity, and
	// longer if a later renewal is accepted. Or the client has found the bucket unfit: the
	// Cause matches kvstore.ErrBucketConfig, the lease goes on, and clients that have not
	// noticed yet may not be kept out. Observers only.
	EventAtRisk
	// EventWatching: events follow from here on. Earlier changes are in a list only.
	// It is the first event of [Admin.Watch], and comes again after each outage of the
	// connection. Watch only.
	EventWatching
	// EventGap: events between Time and Until are missing. [Admin.History] only.
	EventGap
)

func (t EventType) String() string {
	names := [...]string{EventQueued: "queued", EventGranted: "granted", EventRenewed: "renewed", EventReleased: "released",
		EventExpired: "expired", EventEnded: "ended", EventBroken: "broken", EventGaveUp: "gave up", EventAtRisk: "at risk", EventWatching: "watching", EventGap: "gap"}
	if t > 0 && int(t) < len(names) {
		return names[t]
	}
	return fmt.Sprintf("EventType(%d)", int(t))
}

// Event is a transition of a lock: of this client's locks for an observer, of any
// client's for [Admin.Watch].
//
// An observer gets a grant and an end for each goroutine, even of a lock that lingers. The
// renewals, a break and the end of an idle lock are no events to an observer. [Admin.Watch]
// reports the record: one grant and one end, and renewals between them. The Holder of these
// events reports whether the lock lingers and was idle.
type Event struct {
	Type EventType
	Kind Kind
	// Mode is the mode of the holder or waiter. Watch only.
	Mode Mode
	Name string
	ID   string // of the claim; an observer gets the [natslock.Lock.ID]
	// Token is the fencing token of a holder, or the ticket of a waiter. It is 0 for a
	// goroutine that waits behind another one of its client, which holds the lock.
	Token uint64
	Time  time.Time
	// Waited is the time from the call to the grant, or to giving up. Watch reports
	// it in milliseconds, and 0 if the holder did not queue. For a waiter that gave
	// up, Watch takes it from the clocks of the waiter and the server.
	Waited time.Duration
	// Grants is the number of grants that the event reports, and Waited then the sum of their
	// waits. A client that hands a lock on among its goroutines, or takes an idle lock
	// again, writes these grants with its next renewal, or with the release. Watch only.
	Grants uint64
	// Late is of an [EventRenewed] that came more than two thirds of the TTL after the write
	// before: the time between them. The client renews after a third, so a renewal was lost or
	// delayed. It is 0 for any other event. [Admin.Watch] and [Admin.History] only.
	Late time.Duration
	// Since is of an [EventWatching] that follows an outage of the connection, or events that
	// came faster than they were taken: events from
	// then on to Time may be missing. It is zero at the first one. Watch only.
	Since time.Time
	// Until is the end of an [EventGap], which begins at Time. Missed is the number of writes to the
	// bucket that are missing, or 0 if that is unknown. Without a Name the writes may be of any lock.
	// With a Name Missed is a lower bound of the missing grants and ends of that lock, which its later
	// records show. A gap without a Name counts them too.
	Until  time.Time
	Missed uint64
	// Cause is the reason why a lock or a wait ended. Observers only. Of a gap it is
	// kvstore.ErrRemade if the bucket was re-created there.
	Cause error
	// Holder is the holder or waiter that the event is about, or nil if unknown.
	// Watch only. It has only the ID and the token after a release whose holder
	// this watch had not seen.
	Holder *Holder
}

var eventTypes = map[session.EventType]EventType{
	session.EventQueued: EventQueued, session.EventGranted: EventGranted, session.EventRenewed: EventRenewed,
	session.EventReleased: EventReleased, session.EventLost: EventExpired, session.EventEnded: EventEnded, session.EventBroken: EventBroken,
	session.EventGaveUp: EventGaveUp, session.EventAtRisk: EventAtRisk, view.EventWatching: EventWatching, view.EventGap: EventGap,
}

func observed(ev session.Event) Event {
	return Event{
		Type: eventTypes[ev.Type], Kind: Kind(ev.Kind), Name: ev.Name, ID: ev.ID,
		Token: ev.Token, Time: ev.Time, Waited: ev.Waited, Cause: public(ev.Cause),
	}
}

func changed(ch view.Change) Event {
	ev := Event{Type: eventTypes[ch.Type], Kind: Kind(ch.Kind), Mode: Mode(ch.Mode), Name: ch.Name, ID: ch.Entry.ID,
		Token: ch.Entry.TokenOrTicket(), Time: ch.Time, Holder: holderOf(ch.Entry), Grants: ch.Grants, Waited: ch.Waited,
		Late: ch.Late, Since: ch.Since, Until: ch.Until, Missed: ch.Missed}
	switch {
	case ch.Remade:
		ev.Cause = kvstore.ErrRemade
	case ev.Holder == nil:
	case ev.Type == EventGaveUp && !ev.Holder.Since.IsZero():
		ev.Waited = max(ev.Time.Sub(ev.Holder.Since), 0)
	}
	return ev
}

// WithObserver calls fn for every transition of the client's own locks, for metrics and
// traces. The calls come one after the other, in order, on a goroutine that delays no
// lock. Their context has the values of the acquire's context. A nil fn has natslock.New return
// [natslock.ErrInvalid].
func WithObserver(fn func(context.Context, Event)) natslock.Option {
	if fn == nil {
		return observe(nil)
	}
	return observe(func(ctx context.Context, ev session.Event) { fn(ctx, observed(ev)) })
}
