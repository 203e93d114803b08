package call

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/kvstore"
)

// mailbox collects notifications for a waiter. It keeps the newest event for each watched key until the waiter takes
// it, and wakes the waiter through a channel on which wake-ups coalesce. No transition of a key is lost, because a
// tombstone or an expiry is newer than the record it ends. An expiry has the revision of the record's last write,
// which may be lower than that of an event for the previously watched key. New events are not compared with those
// already taken, because a forged event may claim any revision.
type mailbox struct {
	mu      sync.Mutex
	prefix  string          // the prefix of the keys
	events  []kvstore.Event // in the order in which the keys first changed
	recheck bool
	wake    chan struct{}
	cut     context.CancelFunc // ends the requests that a deletion makes obsolete; nil if there are none
}

func newMailbox() *mailbox { return &mailbox{wake: make(chan struct{}, 1)} }

// turn discards all pending events and makes the mailbox accept only events for keys with the given prefix.
func (m *mailbox) turn(prefix string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.prefix, m.events, m.recheck = prefix, nil, false
}

func (m *mailbox) deliver(ev kvstore.Event) {
	m.mu.Lock()
	i := slices.IndexFunc(m.events, func(old kvstore.Event) bool { return old.Record.Key == ev.Record.Key })
	switch {
	case ev.Kind == kvstore.Recheck:
		m.recheck = true
	case i < 0 && strings.HasPrefix(ev.Record.Key, m.prefix):
		m.events = append(m.events, ev)
	case i >= 0 && ev.Record.Revision >= m.events[i].Record.Revision:
		m.events[i] = ev
	default:
		m.mu.Unlock()
		return
	}
	m.cutShort()
	m.mu.Unlock()
	m.signal()
}

// untilDeleted returns a context that ends when the mailbox receives a deletion.
func (m *mailbox) untilDeleted(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cut = cancel
	m.cutShort()
	return ctx, cancel
}

// cutShort cancels the context returned by untilDeleted if a deletion is pending. m.mu must be held.
func (m *mailbox) cutShort() {
	if m.cut != nil && slices.ContainsFunc(m.events, func(ev kvstore.Event) bool { return ev.Kind == kvstore.Deleted }) {
		m.cut()
	}
}

func (m *mailbox) signal() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

func (m *mailbox) take() (events []kvstore.Event, recheck bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	events, recheck = m.events, m.recheck
	m.events, m.recheck = nil, false
	return events, recheck
}

// one is like take, but for a watch on a single key.
func (m *mailbox) one() (ev kvstore.Event, recheck bool) {
	events, recheck := m.take()
	if len(events) > 0 {
		ev = events[0]
	}
	return ev, recheck
}

// backstop determines how long a waiter waits for a notification before it reads anyway: only briefly at first, then
// for about the time between two renewals of its place.
type backstop struct {
	place  time.Duration // the TTL of the place
	tries  int
	silent int // consecutive unanswered reads
}

var early = [...]time.Duration{20 * time.Millisecond, 100 * time.Millisecond, 500 * time.Millisecond}

func (b *backstop) next() time.Duration {
	if b.tries++; b.tries <= len(early) {
		return early[b.tries-1]
	}
	return b.place/3 + rand.N(b.place/30) //safety:waiter-reads
}

// after returns the pause after a read. An unanswered read is repeated soon, because a notification may have prompted
// it, and notifications are not repeated.
func (b *backstop) after(answered bool) time.Duration {
	pause := b.next()
	if answered {
		b.silent = 0
		return pause
	}
	b.silent++
	return min(pause, clock.OutageBackoff(b.silent-1))
}
