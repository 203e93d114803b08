package session

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/worker"
)

// EventType is the kind of an [Event].
type EventType uint8

// The transitions that an observer is notified of.
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

// Event describes a transition of one of this client's claims.
type Event struct {
	Type   EventType
	Kind   record.Kind
	Name   string
	ID     string
	Token  uint64 // or the ticket, for EventQueued
	Time   time.Time
	Waited time.Duration // for EventGranted and EventGaveUp
	Cause  error         // for EventGaveUp, EventAtRisk and all ends except EventReleased
}

// notifier passes events to the observer on a separate goroutine, so that a slow observer delays nothing else.
type notifier struct {
	observe func(context.Context, Event) // nil if there is no observer
	worker  *worker.Worker
	counts  [EventAtRisk + 1]atomic.Uint64
}

func (n *notifier) notify(ctx context.Context, ev Event) {
	if ev.Type != EventRenewed { // Confirmed counts renewals, once per lease
		n.counts[ev.Type].Add(1)
	}
	if n.observe == nil {
		return
	}
	ev.Time = time.Now()
	ctx = context.WithoutCancel(ctx)
	n.worker.Add(func() { n.observe(ctx, ev) })
}

// Sentinel errors for the end of a lease. Package natslock documents them.
var (
	ErrLost     = errors.New("lock lost")
	ErrBroken   = within("broken by an operator", ErrLost)
	ErrReleased = errors.New("lock released")
	ErrEnded    = errors.New("lock ended as planned")

	ErrHandedOff = within("handed off", ErrReleased)
)

// within returns a sentinel that matches wider but does not repeat its text.
func within(text string, wider error) error { return &sentinel{text, wider} }

type sentinel struct {
	text  string
	wider error
}

func (e *sentinel) Error() string { return e.text }
func (e *sentinel) Unwrap() error { return e.wider }

// EndError is the cause of a lease's end. It matches [ErrLost], [ErrBroken],
// [ErrReleased], [ErrEnded], [ErrHandedOff] or [bucket.ErrClosed].
type EndError struct {
	Name  string
	Token uint64
	Kind  error  // the sentinel
	Why   string // the evidence; may be empty
}

func (e *EndError) Error() string {
	s := fmt.Sprintf("lock %q (token %d): %v", e.Name, e.Token, e.Kind)
	if e.Why != "" {
		s += ": " + e.Why
	}
	return s
}

// Unwrap makes the error match its sentinel.
func (e *EndError) Unwrap() error { return e.Kind }
