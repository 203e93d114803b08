package core

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// readersInside is a line whose reader A is inside. The client knows that no writer waits.
func readersInside(t *testing.T) *script {
	s := begin(t)
	s.asks("A", reads).granted("A", 10).then("settle 1", "size 1 is 1").is("[A]")
	return s.informed(reads).passes(10 * ms)
}

// Readers are inside together, and the last one that leaves releases the lease.
func TestReaders(t *testing.T) {
	s := readersInside(t)
	s.asks("B", reads).then("on end 1").is("[A B]")
	s.leaves("A").thenNothing().is("[B]")
	s.asks("C", reads).thenNothing().is("[B C]")
	s.leaves("C").thenNothing().is("[B]")
	s.leaves("B").then("settle 1", "close", "B releases 1").is()

	s = readersInside(t) // the gate is listed before that is too old, too
	s.passes(silence/2).event().line.Listed(nil, 0, nil, s.now, s.now, s.server())
	s.asks("B", reads).then("on end 1", "list").is("[A B]")
}

// All that wait together are admitted at once.
func TestReadersWaitTogether(t *testing.T) {
	s := begin(t)
	s.asks("A", reads).asks("B", reads).is("A B")
	s.granted("A", 10).then("settle 1", "size 1 is 2", "on end 1", "size 1 is 1", "wake B").is("[A B]")
}

// A reader joins those inside while its client knows of no writer since their join: of no place, and
// of no gate. Readers that wait elsewhere are none of its business.
func TestReadersJoin(t *testing.T) {
	for name, test := range map[string]struct {
		since func(*script)
		joins bool
	}{
		"nobody":           {func(*script) {}, true},
		"a reader's place": {func(s *script) { s.queues("x", 11, reads) }, true},
		"a writer's place": {func(s *script) { s.queues("x", 11) }, false},
		"a gate":           {func(s *script) { s.shuts("x", 11) }, false},
		"an older gate":    {func(s *script) { s.shuts("x", 9) }, true},
		"a gate that is gone": {func(s *script) {
			s.shuts("x", 11).opens(12)
		}, true},
		"a gate that has ended": {func(s *script) {
			s.shuts("x", 11)
			s.run(1).Lease.Until = s.now.Add(time.Hour) // renewed
			s.passes(ttl+time.Second).goes("x", 12)
			s.door.Deleted = true
			s.lists()
		}, true},
		"a gate that a list has shown": {func(s *script) {
			s.shutsUnseen("x", 11)
			s.lists()
		}, false},
		"an old list": {func(s *script) { s.passes(silence) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := readersInside(t)
			test.since(s)
			s.asks("B", reads)
			if test.joins {
				s.is("[A B]")
			} else {
				s.is("[A]", "B")
			}
		})
	}
}

// A run of readers that waits takes members until a writer queues behind it.
func TestReadersAtTheirPlace(t *testing.T) {
	s := begin(t)
	s.asks("A", reads).subscribes().queues("x", 10).writes("A").queued("A", 11).shown("A")
	s.queues("y", 12, reads).passes(10 * ms)
	s.asks("B", reads).then("size 1 is 2", "announce B").is("A B")
	s.queues("z", 13).asks("C", reads).is("A B", "C")
}

// A reader queues at once behind a writer that is known to have the gate or to wait.
func TestReadersBehindWriters(t *testing.T) {
	s := begin(t)
	writers := func() bool { return s.line.Others.Writers(s.now) }
	require.False(t, writers(), "not subscribed")
	s.subscribes(reads)
	require.False(t, writers())
	s.queues("x", 11, reads)
	require.False(t, writers())
	s.queues("y", 12)
	require.True(t, writers())
	s.goes("y", 13)
	require.False(t, writers())
	s.shuts("y", 14)
	require.True(t, writers())
	s.opens(15)
	require.False(t, writers())
}

// A list of the queue says nothing of a gate. A subscription to the gate needs a proof of its own,
// and a list that shows the gate too.
func TestReadersOfTheQueueOnly(t *testing.T) {
	s := begin(t)
	s.asks("A", reads).granted("A", 10)
	s.informed().passes(10 * ms)
	s.asks("B", reads).is("[A]", "B")

	s = begin(t)
	s.asks("A", reads).granted("A", 10)
	s.informed().passes(10 * ms)
	s.subscribes(reads).lists() // not proven
	s.asks("B", reads).is("[A]", "B")
	s.proves().lists().merges("B").is("[A B]")
}

// Readers join a join without an answer, but not behind a gate: the writer may have come first.
func TestReadersUnansweredBehindAGate(t *testing.T) {
	s := begin(t)
	s.subscribes(reads).asks("A", reads).passes(ms)
	s.asks("B", reads).is("A B")
	s.shuts("x", 10).asks("C", reads).is("A B", "C")

	s = begin(t)
	s.subscribes(reads).asks("A", reads)
	s.shuts("me", 10).asks("B", reads).is("A B") // the gate of their own client is no news

	s = begin(t)
	s.subscribes(reads).shuts("x", 9).asks("A", reads)
	s.shuts("x", 10).asks("B", reads).is("A B") // that is a renewal
}

// A run of readers merges with the readers before it, when its client has made sure that no writer
// has come between them.
func TestReadersMerge(t *testing.T) {
	s := begin(t)
	s.asks("A", reads).granted("A", 10)
	s.subscribes(reads).passes(time.Second)
	s.asks("B", reads).asks("C", reads).is("[A]", "B C")
	s.merges("B").then("unsure").is("[A]", "B C")
	s.proves().lists()
	s.merges("B").then("wake B", "wake C", "settle 2", "on end 1").is("[A B C]")

	s = begin(t)
	s.asks("A", reads).granted("A", 10)
	s.subscribes(reads).passes(time.Second)
	s.asks("B", reads)
	s.proves().lists().queues("x", 11)
	s.merges("B").then("unsure").is("[A]", "B")
	s.leaves("A").merges("B").then("no host").is("B")

	for name, before := range map[string]func(*script){
		"a writer":                  func(s *script) { s.asks("A").granted("A", 10) },
		"others, without an answer": func(s *script) { s.asks("A", reads) },
		"others of another lease":   func(s *script) { s.asks("A", reads, wants(time.Minute)).granted("A", 10) },
		"a lease that has ended": func(s *script) {
			s.asks("A", reads).granted("A", 10).run(1).Lease.Until = s.now.Add(time.Second)
		},
	} {
		s = begin(t)
		before(s)
		s.passes(time.Second-1).asks("B", reads)
		s.passes(1).informed(reads).merges("B")
		require.Contains(t, s.said, "no host", "behind %s", name)
	}
}

// A one-shot reader joins readers that are inside, and waits for nothing.
func TestReadersOnce(t *testing.T) {
	s := readersInside(t)
	s.asks("B", reads, once).then("on end 1").is("[A B]")

	s = begin(t)
	s.asks("A", reads)
	s.asks("B", reads, once).then("open 2", "wake B").is("A", "B") // A has no answer yet

	s = begin(t)
	s.asks("A").granted("A", 10)
	s.asks("B", once).then("apart").is("[A]")

	s = begin(t) // others join it when it is inside
	s.asks("A").asks("B", reads, once).is("A", "B")
	s.givesUp("A").granted("B", 10).informed(reads).passes(unanswered)
	s.asks("C", reads).is("[B C]")
}

// The broken record of readers lasts until the last of them has stopped. One that has not entered
// deletes it only if nobody is inside, and asks again.
func TestReadersBroken(t *testing.T) {
	s := begin(t)
	s.asks("A", reads).asks("B", reads).asks("C", reads).granted("A", 10).is("[A B C]")
	s.ends(1).then("settle 1", "close").is()
	s.loses("B").then("open 2", "wake B", "B reopens").is("B")
	s.loses("C").thenNothing().is("C B")
	s.leaves("A").then("A releases 1").is("C B")

	s = begin(t)
	s.asks("A", reads).asks("B", reads).granted("A", 10)
	s.ends(1)
	s.leaves("A").thenNothing()
	s.loses("B").then("open 2", "wake B", "B deletes 1", "B reopens").is("B")

	s = begin(t) // the run behind it has its lease, which says nothing of C
	s.asks("A", reads).asks("B", reads).asks("C", reads).granted("A", 10).ends(1)
	s.loses("A").granted("A", 11).is("[A]")
	s.loses("B").then("open 3", "wake B", "B reopens").is("[A]", "B")
	s.loses("C").then("C deletes 1").is("[A]", "C B")

	s = begin(t) // a one-shot acquire does not wait with others
	s.asks("A", reads).granted("A", 10)
	s.informed(reads).asks("B", reads, once).asks("C", reads).is("[A B C]")
	s.ends(1).loses("C").is("C")
	s.loses("B").then("open 3", "wake B", "B reopens").is("C", "B")
}
