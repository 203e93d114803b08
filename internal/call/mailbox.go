package call

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/kvstore"
)

// mailbox is a waiter's view of the key it watches: the newest event that it has not
// taken yet, and a wake channel. Wake-ups coalesce. Transitions do not get lost,
// because tombstones and ends are newer than the records they end. That holds for one
// key. The end of a record is an event at the revision of its last write, which may
// be older than an event of the key watched before. Events are not compared with
// those taken: a forged one may name any revision.
type mailbox struct {
	mu      sync.Mutex
	key     string
	ev      kvstore.Event
	recheck bool
	wake    chan struct{}
}

func newMailbox() *mailbox { return &mailbox{wake: make(chan struct{}, 1)} }

// turn begins to watch key and forgets what was seen of another.
func (m *mailbox) turn(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.key, m.ev, m.recheck = key, kvstore.Event{}, false
}

func (m *mailbox) deliver(ev kvstore.Event) {
	m.mu.Lock()
	switch {
	case ev.Kind == kvstore.Recheck:
		m.recheck = true
	case ev.Record.Key == m.key && ev.Record.Revision >= m.ev.Record.Revision:
		m.ev = ev
	default:
		m.mu.Unlock()
		return
	}
	m.mu.Unlock()
	m.poke()
}

func (m *mailbox) poke() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

func (m *mailbox) take() (ev kvstore.Event, recheck bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	ev, recheck = m.ev, m.recheck
	m.ev, m.recheck = kvstore.Event{}, false
	return ev, recheck
}

// backstop yields the pauses after which a waiter reads by itself: soon at first,
// then about as often as its place is renewed.
type backstop struct {
	place  time.Duration // its TTL
	tries  int
	silent int // reads in a row without an answer
}

func (b *backstop) next() time.Duration {
	early := [...]time.Duration{20 * time.Millisecond, 100 * time.Millisecond, 500 * time.Millisecond}
	if b.tries++; b.tries <= len(early) {
		return early[b.tries-1]
	}
	return b.place/3 + rand.N(b.place/30) //safety:waiter-reads
}

// after yields the pause after a read. One without an answer is repeated soon: it may have
// followed a notification, which does not come again.
func (b *backstop) after(answered bool) time.Duration {
	pause := b.next()
	if answered {
		b.silent = 0
		return pause
	}
	b.silent++
	return min(pause, clock.OutageBackoff(b.silent-1))
}
