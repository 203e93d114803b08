package core

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The goroutines of a client that ask one after the other wait in one run, and are served in order.
// Another client that queues between them keeps those that ask after it out of the run.
func TestRun(t *testing.T) {
	s := begin(t)
	s.asks("A").then("open 1", "wake A").is("A")
	s.granted("A", 10).then("settle 1", "size 1 is 1").is("[A]")
	s.informed().passes(2 * turn)
	s.asks("B").then("size 1 is 2", "on end 1", "announce B").is("[A] B")
	s.asks("C").then("size 1 is 3", "announce C").is("[A] B C")
	s.leaves("A").then("size 1 is 2", "wake B").is("[B] C")
	s.queues("x", 11).thenNothing()
	s.asks("D").then("open 2", "wake D").is("[B] C", "D")
	s.leaves("B").then("size 1 is 1", "wake C").is("[C]", "D")
	s.leaves("C").then("settle 1", "C releases 1").is("D")
	s.writes("D").queued("D", 12).then("announce D", "settle 2", "size 2 is 1").is("D")
	s.granted("D", 13).is("[D]")
	s.leaves("D").then("settle 2", "close", "D releases 2").is()
}

// A run that waits at a place takes members, until another client queues behind it.
func TestRunAtItsPlace(t *testing.T) {
	s := begin(t)
	s.asks("A")
	s.subscribes().writes("A").queued("A", 11).then("announce A", "settle 1", "size 1 is 1")
	s.queues("x", 10) // before it
	s.shown("A").passes(10 * ms)
	s.asks("B").then("size 1 is 2", "announce B").is("A B")
	s.queues("y", 12)
	s.asks("C").then("open 2", "wake C").is("A B", "C")

	s = begin(t) // what it knows is old
	s.asks("A").subscribes().writes("A").queued("A", 11).shown("A").passes(silence)
	s.asks("B").then("open 2", "wake B").is("A", "B")
}

// A client that has not listed the queue from a subscription knows nothing: its goroutines join no
// run that has a place or the lock.
func TestRunOfTheUninformed(t *testing.T) {
	for name, inform := range map[string]func(*script){
		"no subscription": func(*script) {},
		"no proof":        func(s *script) { s.subscribes().lists() },
		"no list":         func(s *script) { s.subscribes().proves() },
		"an older list":   func(s *script) { s.subscribes().passes(ms).proves().listed(s.now - 1) },
	} {
		t.Run(name, func(t *testing.T) {
			s := begin(t)
			s.asks("A").granted("A", 10)
			inform(s)
			s.passes(10 * ms)
			s.asks("B").then("open 2", "wake B").is("[A]", "B")
		})
	}
}

// A list counts for a second, because a notification may be lost.
func TestRunLostNotification(t *testing.T) {
	s := begin(t)
	s.asks("A").granted("A", 10)
	s.informed()
	s.queuesUnseen("x", 11)
	s.passes(silence - 1).asks("B").is("[A] B")
	s.passes(1).asks("C").is("[A] B", "C")
}

// A run that takes members has the queue listed before the list is too old.
func TestRunListsAgain(t *testing.T) {
	s := begin(t)
	s.asks("A").granted("A", 10)
	s.informed().passes(silence / 2)
	s.asks("B").then("size 1 is 2", "on end 1", "announce B", "list").is("[A] B")
	s.asks("C").then("size 1 is 3", "announce C").is("[A] B C")
	s.lists()
	s.line.Others.Refreshed()
	s.passes(silence-1).asks("D").then("size 1 is 4", "announce D", "list").is("[A] B C D")

	s = begin(t) // it is too old already: the next run lists
	s.asks("A").informed().passes(silence).granted("A", 10)
	s.asks("B").then("size 1 is 2", "end turn 1 at 1.001s", "on end 1", "announce B").is("[A] B")
}

// Another server that takes a subscription over may have missed a notification. The list before it
// counts no more, and a probe and a list from after it do.
func TestRunAnotherServerServes(t *testing.T) {
	s := begin(t)
	s.asks("A").granted("A", 10)
	s.informed().passes(10 * ms)
	s.moves()
	s.queuesUnseen("x", 11)
	s.asks("B").is("[A]", "B")

	s = begin(t)
	s.asks("A").granted("A", 10)
	_, epoch := s.informed().line.Others.Proven()
	s.passes(10 * ms).moves()
	s.line.Others.Prove(s.now, epoch) // by the answer to a write from before
	s.lists().asks("B").is("[A]", "B")

	s = begin(t)
	s.asks("A").granted("A", 10)
	s.informed().passes(10 * ms).moves().proves().lists()
	s.passes(10 * ms).proves() // a second proof takes nothing from the list
	s.asks("B").is("[A] B")
}

// A run whose first write has no answer takes members for 900 ms, and until another client is known
// to have queued.
func TestRunUnanswered(t *testing.T) {
	t.Run("for a time", func(t *testing.T) {
		s := begin(t)
		s.asks("A").passes(unanswered - 1)
		s.asks("B").thenNothing().is("A B") // it has no record to note the size in
		s.passes(1).asks("C").then("open 2", "wake C").is("A B", "C")
	})
	t.Run("whatever a list shows", func(t *testing.T) { // it has no place, so others may be behind its claim
		s := begin(t)
		s.asks("A").informed().passes(unanswered)
		s.asks("B").then("open 2", "wake B").is("A", "B")
	})
	t.Run("until a notification", func(t *testing.T) {
		s := begin(t)
		s.asks("A").subscribes().passes(ms)
		s.asks("B").is("A B")
		s.queues("x", 10).asks("C").is("A B", "C")
	})
	t.Run("not with its place shown", func(t *testing.T) {
		s := begin(t)
		s.asks("A").subscribes().writes("A").queued("A", 10)
		s.asks("B").is("A B")
		s.queuesUnseen("x", 11)
		s.shown("A").asks("C").is("A B", "C")
	})
}

// Other clients may have queued, unnoticed, behind a place that was sent without a subscription.
func TestRunPlaceWithoutASubscription(t *testing.T) {
	s := begin(t)
	s.asks("A").writes("A")
	s.asks("B").then("open 2", "wake B").is("A", "B")

	s = begin(t)
	s.asks("A").subscribes().writes("A")
	s.asks("B").is("A B")
}

// Goroutines share a record that says the same of all of them: one TTL, one mode, for readers one
// metadata, and a lease that is renewed.
func TestRunOfOnesOwn(t *testing.T) {
	for name, test := range map[string]struct {
		first, second []option
		joins         bool
	}{
		"alike":                     {nil, nil, true},
		"the first is private":      {[]option{private}, nil, false},
		"the second is private":     {nil, []option{private}, false},
		"another TTL":               {nil, []option{wants(time.Minute)}, false},
		"a reader behind a writer":  {nil, []option{reads}, false},
		"a writer behind a reader":  {[]option{reads}, nil, false},
		"readers":                   {[]option{reads, meta("1")}, []option{reads, meta("1")}, true},
		"readers of other metadata": {[]option{reads, meta("1")}, []option{reads, meta("2")}, false},
		"writers of other metadata": {[]option{meta("1")}, []option{meta("2")}, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := begin(t)
			s.asks("A", test.first...).asks("B", test.second...)
			if test.joins {
				s.thenNothing().is("A B") // as in TestRunUnanswered
			} else {
				s.then("open 2", "wake B").is("A", "B")
			}
		})
	}
}

// A run writes its place when the run before has a record: the place could get the earlier ticket
// otherwise.
func TestRunsInOrder(t *testing.T) {
	s := begin(t)
	s.asks("A").waitsFor("A").thenNothing()
	s.asks("B", wants(time.Minute)).asks("C")
	s.is("A", "B", "C")
	s.waitsFor("B").then("after 1")
	s.waitsFor("C").then("after 2")
	s.writes("A").queued("A", 10).then("announce A", "settle 1", "size 1 is 1")
	s.waitsFor("B").thenNothing()
	s.waitsFor("C").then("after 2")
	s.writes("B").queued("B", 11)
	s.waitsFor("C").thenNothing()
	s.granted("A", 12)
	s.waitsFor("B").thenNothing()
}

// A run whose place has gone queues again behind the others of its client, and members join it.
func TestRunQueuesAgain(t *testing.T) {
	s := begin(t)
	s.asks("A").subscribes().writes("A").queued("A", 10).shown("A")
	s.queues("x", 11).asks("B").is("A", "B")
	s.writes("B").queued("B", 12).shown("B")
	s.unqueued("A").thenNothing().is("B", "A")
	s.waitsFor("A").thenNothing()
	s.writes("A").queued("A", 13).shown("A").passes(10 * ms)
	s.asks("C").then("size 1 is 2", "announce C").is("B", "A C")

	s = begin(t) // others may have queued since the place was written
	s.asks("A").subscribes().writes("A").queued("A", 10).unqueued("A")
	s.asks("B").is("A", "B")
}

// When the member that drives a run gives up, the first of the others drives on. The last one that
// gives up withdraws what the run has written.
func TestRunGivesUp(t *testing.T) {
	s := begin(t)
	s.asks("A").asks("B").asks("C").subscribes().writes("A").queued("A", 10)
	s.givesUp("A").then("size 1 is 2", "wake B", "B drives").is("B C")
	s.givesUp("C").then("size 1 is 1").is("B")
	s.givesUp("B").then("size 1 is 0", "settle 1", "close", "B withdraws 1").is()
}

// A lease that was granted to a goroutine which gives up before it enters is that of the next one.
// If nobody is left, it is released.
func TestRunGrantedInVain(t *testing.T) {
	s := begin(t)
	s.asks("A").asks("B").granted("A", 10).then("settle 1", "size 1 is 2", "on end 1", "announce B")
	s.is("[A] B")
	s.givesUp("A").then("size 1 is 1", "wake B").is("[B]")
	s.givesUp("B").then("settle 1", "close", "B releases 1").is()

	s = begin(t)
	s.asks("A").asks("B").granted("A", 10)
	s.givesUp("B").then("size 1 is 1").is("[A]")
	s.leaves("A").then("settle 1", "close", "A releases 1").is()
}

// A holder leaves in two steps, since the next one may end the lease at once. When those that waited
// have gone between the two, its caller waits until the lease is released, as that of a lone holder.
func TestRunWaitersGoneMeanwhile(t *testing.T) {
	s := begin(t)
	s.asks("A").asks("B").granted("A", 10)
	left := s.leaving("A")
	s.thenNothing().givesUp("B").then("size 1 is 1").event()
	left().then("settle 1", "close", "A releases 1").is()

	s = begin(t) // it has been alone from the start
	s.asks("A").granted("A", 10)
	require.Nil(t, s.leaving("A"), "it ends the lease at once")
	s.then("settle 1", "close", "A releases 1").is()

	s = begin(t) // another one has come
	s.asks("A").asks("B").granted("A", 10).informed()
	left = s.leaving("A")
	s.givesUp("B").asks("C").event()
	left().then("size 1 is 1", "wake C").is("[C]")

	s = begin(t) // the lease has ended
	s.asks("A").asks("B").granted("A", 10)
	left = s.leaving("A")
	s.ends(1).then("open 2", "wake B", "settle 1").event()
	left().then("A releases 1").is("B")

	s = begin(t) // nobody is left, and the lease is kept
	s.asks("A", lingers(time.Minute)).subscribes().claims("A").granted("A", 10).lists().asks("B")
	left = s.leaving("A")
	s.givesUp("B").event()
	left().then("idle 1", "alarm at 4s").is("idle")
}

// When a lease ends, those that wait for it go on in a new run. A holder is on its own then.
func TestRunEndsWithItsLease(t *testing.T) {
	s := begin(t)
	s.asks("A").asks("B").asks("C").granted("A", 10).is("[A] B C")
	s.ends(1).then("open 2", "wake B", "settle 1").is("B C")
	s.leaves("A").then("A releases 1").is("B C")
	s.granted("B", 11).is("[B] C")

	s = begin(t)
	s.asks("A").asks("B").granted("A", 10).is("[A] B")
	s.line.Runs[0].Lease.Until = s.now // the notification is still to come
	s.asks("C").then("open 2", "wake B", "settle 1").is("B C")
	s.ends(1).thenNothing()

	s = begin(t)
	s.asks("A").asks("B").granted("A", 10)
	s.event()
	s.members["A"].Part(s.now) // the holder keeps the lock for nobody else
	s.then("open 2", "wake B", "settle 1").is("B")
}

// A goroutine whose lease has ended before it could enter goes first in the run of those that
// waited behind it. It deletes a broken record, since nobody else does.
func TestRunLost(t *testing.T) {
	s := begin(t)
	s.asks("A").asks("B").granted("A", 10).is("[A] B")
	s.loses("A").then("open 2", "wake A", "settle 1", "A deletes 1").is("A B")

	s = begin(t)
	s.asks("A").asks("B").granted("A", 10)
	s.ends(1).is("B")
	s.queued("B", 11)
	s.loses("A").then("size 2 is 2", "announce A", "A deletes 1").is("A B")
}

// A one-shot acquire waits with nobody. What it has written is its own.
func TestRunApart(t *testing.T) {
	s := begin(t)
	s.asks("A").granted("A", 10)
	s.asks("B", once).then("apart").is("[A]")
	s.givesUp("B").then("B withdraws 0").is("[A]")
	s.asks("C", once).granted("C", 11).thenNothing()
	s.loses("C").then("C deletes 0")
	require.Equal(t, s.members["C"], s.members["C"].Run.Driver, "it goes on by itself")
	s.granted("C", 12).leaves("C").then("C releases 0").is("[A]")
}

// Members count as those that wait once they wait behind somebody. A run of several goroutines, or
// behind another one, has its client subscribe to the queue before it writes a place.
func TestRunWaiting(t *testing.T) {
	s := begin(t)
	s.asks("A")
	waiting := func() int { return s.members["A"].Run.Waiting() }
	several := func(name string) bool { return s.members[name].Run.Several() }
	require.Zero(t, waiting(), "the lock may be free")
	require.False(t, several("A"))
	s.asks("B")
	require.True(t, several("A"))
	require.Zero(t, waiting())
	s.queued("A", 10)
	require.Equal(t, 2, waiting())
	s.granted("A", 11)
	require.Equal(t, 1, waiting())
	s.asks("C", wants(time.Minute))
	require.Equal(t, 1, s.members["C"].Run.Waiting())
	require.True(t, several("C"))
	s.leaves("A").leaves("B").granted("C", 12)
	require.Zero(t, s.members["C"].Run.Waiting())
}

// A line is for those that wait. A holder without any needs none, and gets it back with the next one.
func TestRunAlone(t *testing.T) {
	s := begin(t)
	s.asks("A").granted("A", 10)
	r := s.run(1)
	turnEnds, alone := r.Alone()
	require.True(t, alone)
	require.Equal(t, start.Add(turn), turnEnds)

	for name, also := range map[string]func(*script){
		"one waits":           func(s *script) { s.asks("B") },
		"one waits elsewhere": func(s *script) { s.asks("B", wants(time.Minute)) },
		"it knows of others":  func(s *script) { s.subscribes() },
		"it is over":          func(s *script) { s.ends(1) },
		"its end is watched":  func(s *script) { s.run(1).Listen() },
	} {
		x := begin(t)
		x.asks("A").granted("A", 10)
		also(x)
		_, alone := x.run(1).Alone()
		require.False(t, alone, name)
	}

	s = s.lock() // the line is made anew
	s.heads("A", turnEnds).is("[A]")
	s.asks("B").then("size 2 is 2", "end turn 2 at 1ms", "on end 2", "announce B").is("[A] B") // the turn is as it was
	_, alone = s.run(2).Alone()
	require.False(t, alone)
	s.passes(turn).leaves("A").then("size 2 is 1", "open 3", "wake B", "settle 2", "keep turn 2", "A releases 2").is("B")
}
