package core

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// idle is a line whose lease nobody uses for a minute. The queue was listed at the start.
func idle(t *testing.T, options ...option) *script {
	s := begin(t)
	s.idles("A", options...)
	return s
}

// idles has a goroutine get the lock, list the queue and leave an idle lease.
func (s *script) idles(name string, options ...option) *script {
	options = append([]option{lingers(time.Minute)}, options...)
	s.asks(name, options...).subscribes(options[1:]...).claims(name).granted(name, 10)
	return s.lists().leaves(name).is("idle")
}

// The next goroutine uses an idle lease without a message. When it has asked for that, the lease is
// idle again.
func TestIdleUsed(t *testing.T) {
	s := begin(t)
	s.asks("A", lingers(time.Minute)).subscribes().claims("A")
	s.granted("A", 10).then("settle 1", "size 1 is 1") // which proves the subscription
	s.leaves("A").then("on end 1", "idle 1", "relist 1", "alarm at 4s").is("idle")
	s.lists().relisted(1).thenNothing().is("idle")
	s.asks("B", lingers(time.Minute)).thenNothing().is("[B]")
	s.passes(10*ms).asks("C").then("size 1 is 2", "announce C").is("[B] C")
	s.leaves("B").then("size 1 is 1", "wake C").is("[C]")
	s.leaves("C").then("settle 1", "close", "C releases 1").is()
	require.Zero(t, s.client.IdleLeases())

	s = begin(t) // the client has not subscribed yet
	s.asks("A", lingers(time.Minute)).claims("A").granted("A", 10)
	s.leaves("A").then("on end 1", "idle 1", "relist 1", "alarm at 4s").is("idle")
	require.Same(t, s.run(1), s.line.Spare())
	require.Nil(t, (*Line)(nil).Spare())

	s = idle(t) // the list for that counts for longer than one for those that wait
	s.passes(silence / 2).asks("B").thenNothing().is("[B]")
}

// A goroutine uses an idle lease only while a list of the last 5 s has shown nobody. Without one it
// waits for one, and those that ask after it do so too.
func TestIdleListed(t *testing.T) {
	s := idle(t)
	s.queuesUnseen("x", 11)
	s.passes(freshFor).asks("B").then("relist 1").is("idle? B")
	s.asks("C").thenNothing().is("idle? B C")
	s.goes("x", 12).lists().thenNothing()
	s.relisted(1).then("size 1 is 2", "wake B", "announce C").is("[B] C")

	s = idle(t) // the list shows another client
	s.queuesUnseen("x", 11)
	s.passes(freshFor).asks("B").lists().then("open 2", "wake B", "settle 1", "release 1").is("B")
	s.relisted(1).thenNothing()

	s = idle(t) // the list fails
	s.passes(freshFor).asks("B").relisted(1).then("open 2", "wake B", "settle 1", "release 1").is("B")

	s = idle(t) // nobody waits for it any more
	s.passes(freshFor).asks("B").givesUp("B").is("idle?")
	s.lists().relisted(1).then("settle 1", "close", "release 1").is()

	s = idle(t) // the list is of a part of the queue
	s.event().line.Listed(nil, 11, nil, s.now, s.now, s.server())
	s.asks("B").then("relist 1").is("idle? B")

	s = idle(t, reads) // the list has no gate
	s.passes(freshFor).event().line.Listed(nil, 0, nil, s.now, s.now, s.server())
	s.asks("B", reads).then("relist 1").is("idle? B")

	s = begin(t) // the list is under way
	s.asks("A", lingers(time.Minute)).subscribes().claims("A").granted("A", 10)
	s.leaves("A").then("on end 1", "idle 1", "relist 1", "alarm at 4s")
	s.asks("B").thenNothing().is("idle? B")

	s = idle(t) // another server serves the subscription
	s.moves().asks("B").then("relist 1").is("idle? B")

	s = idle(t) // before the list is too old
	s.passes(listEvery).asks("B").then("relist 1").is("[B]")
	s.passes(time.Second).relisted(1).thenNothing().is("[B]") // it has failed, and B stays
}

// An idle lease is given up when anything asks that cannot use it.
func TestIdleRecalled(t *testing.T) {
	released := []string{"settle 1", "close", "release 1"}
	s := idle(t)
	s.queues("x", 11).then(released...).is()
	s.asks("B").then("open 2", "wake B").is("B") // it is never used again
	require.Zero(t, s.client.IdleLeases())

	s = idle(t) // the notification is lost
	s.queuesUnseen("x", 11)
	s.lists().then(released...).is()

	s = idle(t, reads)
	s.queues("x", 11, reads).thenNothing().is("idle")
	s.queues("y", 12).then(released...).is()

	s = idle(t, reads)
	s.shuts("x", 9).thenNothing().is("idle") // from before its join
	s.shuts("y", 11).then(released...).is()

	s = begin(t) // the gate has gone by then
	s.asks("A", reads, lingers(time.Minute)).subscribes(reads).granted("A", 10)
	s.shuts("x", 11).opens(12).leaves("A").is("idle")

	s = idle(t) // broken, or lost: the record is deleted
	s.ends(1).then(released...).is()

	s = idle(t)
	s.asks("B", wants(time.Second)).then("settle 1", "close", "release 1", "open 2", "wake B").is("B")
	require.Same(t, s.run(1), s.members["B"].Run.Awaits, "a claim before its release is refused")

	s = idle(t) // its end is known before the notification of it
	s.run(1).Lease.Until = s.now
	s.asks("B").then("settle 1", "close", "release 1", "open 2", "wake B").is("B")

	s = idle(t)
	s.event().line.GiveUpIdle(s.now) // the client closes
	s.then(released...).is()
}

// One lease is idle for as long as its last holder has asked for, and a client has so many of them.
func TestIdleEnds(t *testing.T) {
	s := idle(t)
	for range 14 {
		s.passes(listEvery).tends().then("alarm at "+s.now.Add(listEvery/2).Sub(start).String(), "list 1")
		s.lists()
		s.run(1).ListedTogether(s.now)
	}
	s.is("idle").passes(time.Minute-14*listEvery).tends().then("settle 1", "close", "release 1").is()

	s = begin(t)
	s.client.Most = 1
	s.idles("A")
	b := s.lock().idles("B").then("on end 2", "idle 2", "settle 1", "close", "release 1")
	b.is("idle")
	s.is()

	s = begin(t) // a client that has none gives the lease up itself
	s.client.Most = 0
	s.asks("A", lingers(time.Minute)).subscribes().claims("A").granted("A", 10).lists()
	s.leaves("A").then("on end 1", "idle 1", "alarm at 4s", "settle 1", "close", "release 1").is()

	s = begin(t) // the least recently used one is given up
	s.client.Most = 2
	s.idles("A")
	b = s.lock().idles("B")
	s.asks("C", lingers(time.Minute)).leaves("C").is("idle")
	c := s.lock().idles("D").then("on end 3", "idle 3", "settle 2", "close", "release 2")
	c.is("idle")
	b.is()
	s.is("idle")
}

// The queues of idle leases are listed together: when one list is old, those half as old too.
func TestIdleListedTogether(t *testing.T) {
	s := begin(t)
	s.idles("A").then("on end 1", "idle 1", "alarm at 4s")
	s.passes(2*time.Second).lock().idles("B").then("on end 2", "idle 2")
	s.passes(time.Second).lock().idles("C").then("on end 3", "idle 3")
	s.passes(time.Second).tends().then("alarm at 6s", "list 1", "list 2")
}

// Readers count on a list of the queue and on one of the gate, and the older of the two has them listed.
func TestIdleReadersListedTogether(t *testing.T) {
	s := idle(t, reads)
	s.passes(3*time.Second).event().line.Listed(nil, 0, nil, s.now, s.now, s.server()) // without the gate
	s.passes(time.Second).tends().then("alarm at 6s", "list 1")

	s = idle(t, reads)
	begun := s.now
	s.passes(3 * time.Second).lists()
	s.event().line.Listed(nil, 0, nil, begun, s.now, s.server()) // an answer that was slow
	s.passes(time.Second).tends().then("alarm at 6s", "list 1")
}

// A use of an idle lease does not put off the next list.
func TestIdleListedAgain(t *testing.T) {
	s := idle(t)
	s.passes(3*time.Second).asks("B", lingers(time.Minute)).is("[B]")
	s.passes(time.Second).tends().thenNothing() // it is not idle
	s.passes(-ms).leaves("B").then("idle 1", "alarm at 4s").is("idle")
}

// A run does not linger where somebody else waits.
func TestNotIdle(t *testing.T) {
	for name, before := range map[string]func(*script){
		"another client waits":            func(s *script) { s.queues("x", 11) },
		"another run waits":               func(s *script) { s.asks("B", wants(time.Second)) },
		"the client closes":               func(s *script) { s.client.Close() },
		"its record does not say that":    func(s *script) { s.run(1).MayIdle = false },
		"its last member wants otherwise": func(s *script) { s.asks("B").leaves("A") },
	} {
		t.Run(name, func(t *testing.T) {
			s := begin(t)
			s.asks("A", lingers(time.Minute)).subscribes().claims("A").granted("A", 10).lists()
			before(s)
			for name, m := range s.members {
				if m.Inside {
					s.leaves(name)
				}
			}
			require.Contains(t, s.said[0], "releases 1")
		})
	}
}

// A one-shot acquire uses an idle lease if it can, at once.
func TestIdleOnce(t *testing.T) {
	s := idle(t)
	s.asks("B", once).thenNothing().is("[B]")
	s.asks("C", once).then("apart").is("[B]")

	s = idle(t)
	s.passes(freshFor).asks("B", once).then("apart").is("idle") // the caller waits for the list
	s.asks("C", once, wants(time.Second)).then("apart").is("idle")

	s = idle(t)
	s.passes(freshFor).asks("B").lists().asks("C", once).then("apart").is("idle? B") // B is first
}

// A one-shot reader that cannot use it opens a run. The idle lease before it is given up, or it
// would wait for the end of that.
func TestIdleBehindATry(t *testing.T) {
	s := idle(t, reads)
	s.asks("B", reads, once, wants(time.Second)).then("open 2", "wake B", "settle 1", "release 1").is("B")
	require.Same(t, s.run(1), s.run(2).Awaits)

	s = idle(t, reads) // or that waits for no list
	s.passes(freshFor).asks("B", reads, once).then("open 2", "wake B", "settle 1", "release 1").is("B")

	s = idle(t, reads)
	s.passes(freshFor).asks("B", reads).is("idle? B")
	s.asks("C", reads, once).then("open 2", "wake C").is("idle? B", "C")
}

// A one-shot acquire that has the lock gets a line, so that it can linger. The client subscribes.
func TestIdleAfterATry(t *testing.T) {
	s := begin(t)
	s.asks("A", once, lingers(time.Minute)).then("apart").granted("A", 10)
	s.keeps("A").then("relist 1").is("[A]")
	s.informed().relisted(1).thenNothing()
	s.leaves("A").then("on end 1", "idle 1", "alarm at 4s").is("idle")
}
