package lease

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// EventType says what happened to a claim of this client.
type EventType uint8

// The transitions an observer is told of.
const (
	EventQueued EventType = iota + 1
	EventGranted
	EventRenewed
	EventReleased
	EventLost
	EventBroken
	EventEnded
	EventGaveUp
	EventAtRisk
)

// Event is one transition of one claim of this client.
type Event struct {
	Type   EventType
	Kind   Kind
	Name   string
	ID     string
	Token  uint64 // or the ticket, for EventQueued
	Time   time.Time
	Waited time.Duration // for EventGranted and EventGaveUp
	Cause  error         // for the ends
}

// tell hands an event to the observer, on a goroutine that delays nobody.
func (e *Engine) tell(ctx context.Context, ev Event) {
	e.stats.count(ev.Type)
	if e.cfg.Observe == nil {
		return
	}
	ev.Time = time.Now()
	ctx = context.WithoutCancel(ctx)
	e.teller.add(func() { e.cfg.Observe(ctx, ev) })
}

type counters [EventAtRisk + 1]atomic.Uint64

func (c *counters) count(t EventType) { c[t].Add(1) }

// Counts returns how often each transition has happened.
func (e *Engine) Counts(t EventType) uint64 { return e.stats[t].Load() }

func isAny(err error, targets ...error) bool {
	for _, t := range targets {
		if errors.Is(err, t) {
			return true
		}
	}
	return false
}
