package core

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
)

// holder is a line whose holder A has had its turn. The client knows that nobody is queued.
func holder(t *testing.T) *script {
	s := begin(t)
	s.asks("A").granted("A", 10)
	return s.informed().passes(10 * ms)
}

// A client learns of places by notifications and by lists, and learns that they have gone.
func TestOthers(t *testing.T) {
	for name, test := range map[string]struct {
		since func(*script)
		joins bool
	}{
		"nobody":               {func(*script) {}, true},
		"a place":              {func(s *script) { s.queues("x", 11) }, false},
		"a place of a reader":  {func(s *script) { s.queues("x", 11, reads) }, false},
		"a place that is gone": {func(s *script) { s.queues("x", 11).goes("x", 12) }, true},
		"a place in a list":    {func(s *script) { s.queuesUnseen("x", 11); s.lists() }, false},
		"a place that has ended": {func(s *script) {
			s.queues("x", 11)
			s.run(1).Lease.Until = s.now.Add(time.Hour) // renewed
			s.passes(ttl + record.OverdueSlack).lists() // the server has not removed it
		}, true},
		"an own place in a list": {func(s *script) {
			s.queuesUnseen("me", 11)
			s.lists()
		}, true},
		"a record that is no place": {func(s *script) {
			s.queuesUnseen("x", 11)
			s.queue[0].Status = record.StatusHeld
			s.lists()
		}, true},
		"an unreadable record": {func(s *script) {
			s.queuesUnseen("x", 11)
			s.queue[0].Unreadable = true
			s.lists()
		}, true},
		"a part of the queue": {func(s *script) {
			s.event().line.Listed(nil, 11, nil, s.now, s.now, s.server())
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := holder(t)
			test.since(s)
			s.asks("B")
			if test.joins {
				s.is("[A] B")
			} else {
				s.is("[A]", "B")
			}
		})
	}
}

// A list that was asked for before a place went may still show it. One that was asked for later is
// right: the notification was forged.
func TestOthersForgedDeparture(t *testing.T) {
	s := holder(t)
	s.queues("x", 11)
	queue := slices.Clone(s.queue)
	s.passes(ms).goes("x", 99)
	s.queue = queue
	s.listed(s.now - 1).asks("B").is("[A] B")
	s.passes(ms).lists().asks("C").is("[A] B", "C")
}

// The gate counts as the last record says. A list that was asked for later is right about a forged
// notification.
func TestOthersGate(t *testing.T) {
	s := readersInside(t)
	s.shuts("x", 11).opens(12)
	s.shuts("x", 11) // it is late
	s.asks("B", reads).is("[A B]")

	s = readersInside(t)
	s.shutsUnseen("x", 11)
	shut := s.door
	s.opens(99)
	s.door = shut
	s.listed(s.now).asks("B", reads).is("[A B]")
	s.passes(ms).lists().asks("C", reads).is("[A B]", "C")
}

// A list counts for nothing while the client does not subscribe: what has come since is not known.
func TestOthersUnsubscribed(t *testing.T) {
	s := begin(t)
	s.asks("A").claims("A").granted("A", 10).passes(10 * ms)
	s.lists().asks("B").is("[A]", "B")
}

// Only a place that was not known is news: a renewal is none, and a key that is used again is some.
func TestOthersNews(t *testing.T) {
	s := begin(t)
	s.subscribes().queues("x", 9).asks("A")
	renewed := s.queue[0]
	renewed.Revision, renewed.Body.Token = 10, 9
	s.event().line.PlaceSeen(s.line.Others, renewed, s.now)
	s.asks("B").is("A B")
	s.queues("x", 11).asks("C").is("A B", "C")
}

// A place that has gone is remembered for as long as an older list may show it, and not for ever:
// a queue that is hot has a new one with each lock.
func TestDeparturesAreForgotten(t *testing.T) {
	o := &Others{}
	now := clock.Instant(1)
	for i := range 100 {
		now = now.Add(record.TombstoneLife / 4)
		o.PlaceGone(fmt.Sprint("wait.l.", i), uint64(i+1), now)
	}
	require.Contains(t, o.gone, "wait.l.99")
	require.Contains(t, o.gone, "wait.l.92", "a tombstone ago, and as long again")
	require.LessOrEqual(t, len(o.gone), 16, "of the last seconds")
}

// A holder that wants to know is notified once, when a goroutine or another client waits for what
// it holds. Readers keep only writers waiting.
func TestContended(t *testing.T) {
	s := holder(t)
	s.wantsHint("A").thenNothing()
	s.queues("x", 11).then("hint A")
	s.queues("y", 12).thenNothing()
	require.True(t, s.contended("A"))

	s = holder(t)
	s.wantsHint("A").asks("B").then("size 1 is 2", "hint A", "on end 1", "announce B")
	require.True(t, s.contended("A"))
	s.leaves("A").givesUp("B")

	s = holder(t)
	s.wantsHint("A").asks("B", wants(time.Minute)).then("open 2", "wake B", "hint A")

	s = holder(t)
	s.queuesUnseen("x", 11)
	s.wantsHint("A").lists().then("hint A")

	s = holder(t) // it has left
	s.wantsHint("A").leaves("A").queues("x", 11).thenNothing()

	s = readersInside(t)
	s.wantsHint("A").asks("B", reads).then("on end 1")
	s.asks("C", reads, meta("2")).then("open 2", "wake C").is("[A B]", "C")
	s.queues("x", 11, reads).thenNothing()
	require.False(t, s.contended("A"))
	s.queues("y", 12).then("hint A")
	require.True(t, s.contended("A"))

	s = readersInside(t)
	s.wantsHint("A").shuts("x", 11).then("hint A")

	s = readersInside(t)
	s.wantsHint("A").asks("B").then("open 2", "wake B", "hint A").is("[A]", "B")
}
