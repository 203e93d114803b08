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
	// EventQueued means that a client began to wait.
	EventQueued EventType = iota + 1
	// EventGranted means that a client got the lock.
	EventGranted
	// EventRenewed means that the server confirmed a renewal.
	EventRenewed
	// EventReleased means that the holder unlocked. Watch reports it when the client releases
	// the lock, which it may have kept idle for a while ([natslock.Linger]), or when a minimum
	// hold is over ([natslock.MinHold]). A lock that was handed over ([natslock.Lock.Handoff])
	// is released when a client adopts it or its TTL has passed.
	EventReleased
	// EventExpired means that a lease ended without its client renewing or releasing it. For an
	// observer, this client lost the lock, and the event's Cause says why. Watch also reports
	// the planned end of an [natslock.Until] lock this way, because the bucket shows no
	// difference.
	EventExpired
	// EventEnded means that an [natslock.Until] lock reached its planned end. Observers only.
	EventEnded
	// EventBroken means that an operator broke the lock.
	EventBroken
	// EventGaveUp means that a waiter stopped waiting.
	EventGaveUp
	// EventAtRisk means that the client cannot renew a held lock, or has found the bucket unfit.
	// The event's Cause says why. Observers only.
	//
	// If the connection was closed, or the server refuses the renewal because it is full or the
	// user is no longer allowed to write, the lock is held until the end of its validity, and
	// longer if a later renewal is accepted. If the Cause matches kvstore.ErrBucketConfig, the
	// bucket is unfit: the lease continues, but it might not keep out clients that have not
	// noticed yet.
	EventAtRisk
	// EventWatching means that the watch reports changes from here on. For earlier changes, list
	// the locks. It is the first event of [Admin.Watch], and is repeated after each connection
	// outage. Watch only.
	EventWatching
	// EventGap means that events between Time and Until are missing. [Admin.History] only.
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

// Event is a transition of a lock. An observer receives the transitions of its own client's
// locks, and [Admin.Watch] yields those of all clients' locks.
//
// An observer gets a grant and an end for each goroutine, even if the lock lingers, but no
// events for the renewals, break or end of an idle lock. [Admin.Watch] reports what happens to
// the record: one grant and one end, with renewals between them. The Holder of these events
// shows whether the lock lingers and was idle.
type Event struct {
	Type EventType
	Kind Kind
	// Mode is the holder's or waiter's mode. Watch only.
	Mode Mode
	Name string
	ID   string // the claim's; for an observer, the [natslock.Lock.ID]
	// Token is a holder's fencing token or a waiter's ticket. It is 0 for a goroutine waiting
	// while another goroutine of its client holds the lock.
	Token uint64
	Time  time.Time
	// Waited is the time from the call to the grant, or to giving up. Watch rounds it to
	// milliseconds, and reports 0 if the holder did not queue. For a waiter that gave up, Watch
	// compares the waiter's clock with the server's.
	Waited time.Duration
	// Grants is the number of grants that the event reports, in which case Waited is the sum of
	// their waits. A client that passes a lock on among its goroutines, or takes an idle lock
	// again, writes these grants with its next renewal or the release. Watch only.
	Grants uint64
	// Late is the time between an [EventRenewed] and the previous write, if that exceeds two
	// thirds of the TTL. Because the client renews after a third, this means that a renewal was
	// lost or delayed. Late is 0 for any other event. [Admin.Watch] and [Admin.History] only.
	Late time.Duration
	// Since is set in an [EventWatching] that follows a connection outage, or events that
	// arrived faster than they were consumed. Events between Since and Time may be missing. In
	// the first EventWatching, Since is zero. Watch only.
	Since time.Time
	// Until is the end of an [EventGap], which begins at Time. Missed is the number of missing
	// writes to the bucket, or 0 if that is unknown. In a gap without a Name, the writes may
	// concern any lock. In a gap with a Name, Missed is a lower bound on that lock's missing
	// grants and ends, inferred from its later records. A gap without a Name includes them too.
	Until  time.Time
	Missed uint64
	// Cause is the reason why a lock or a wait ended. Observers only, except that the Cause of a
	// gap is kvstore.ErrRemade if the bucket was re-created there.
	Cause error
	// Holder is the holder or waiter that the event is about, or nil if unknown. It has only the
	// ID and the token after a release by a holder that this watch had not seen. Watch only.
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

// WithObserver calls fn for every transition of the client's own locks, for metrics and traces.
// The calls are made in order, one at a time, on a goroutine that delays no lock. Each call's
// context has the values of the acquire's context. A nil fn makes natslock.New return
// [natslock.ErrInvalid].
func WithObserver(fn func(context.Context, Event)) natslock.Option {
	if fn == nil {
		return observe(nil)
	}
	return observe(func(ctx context.Context, ev session.Event) { fn(ctx, observed(ev)) })
}
