package core

import (
	"testing"
	"time"
)

// behindAStranger is a holder A behind which another client is queued, in its turn.
func behindAStranger(t *testing.T) *script {
	s := begin(t)
	s.asks("A").granted("A", 10)
	return s.informed().queues("x", 11)
}

// For the time of a turn a run serves goroutines that pass other clients.
func TestTurn(t *testing.T) {
	s := behindAStranger(t)
	s.asks("B").then("size 1 is 2", "end turn 1 at 1ms", "on end 1", "announce B").is("[A] B")
	s.asks("C").then("size 1 is 3", "announce C").is("[A] B C")
	s.passes(turn-1).leaves("A").then("size 1 is 2", "wake B").is("[B] C")
	s.passes(1).turnOver(1).then("size 1 is 1", "open 2", "wake C").is("[B]", "C")
	s.leaves("B").then("settle 1", "keep turn 1", "B releases 1").is("C")
}

// A goroutine that asks when the turn is over passes nobody.
func TestTurnBounded(t *testing.T) {
	s := behindAStranger(t)
	s.passes(turn - 1).asks("B").is("[A] B")
	s.passes(1).asks("C").is("[A]", "B", "C")

	s = behindAStranger(t)
	s.passes(turn).asks("B").then("open 2", "wake B").is("[A]", "B")
}

// Members that have joined before the stranger came stay in the run at the end of the turn. Where
// the stranger has gone by then, the others do so too.
func TestTurnCut(t *testing.T) {
	s := begin(t)
	s.asks("A").granted("A", 10)
	s.informed().asks("B").queues("x", 11).asks("C").is("[A] B C")
	s.passes(turn).turnOver(1).then("size 1 is 2", "open 2", "wake C").is("[A] B", "C")

	s = begin(t)
	s.asks("A").granted("A", 10)
	s.informed().queues("x", 11).asks("B").is("[A] B")
	s.goes("x", 12).passes(turn).turnOver(1).thenNothing().is("[A] B")
	s.queues("y", 13).leaves("A").then("size 1 is 1", "wake B").is("[B]") // y has come after B

	s = behindAStranger(t) // when C passes nobody, B before it does not either
	s.asks("B").goes("x", 12).asks("C").queues("y", 13)
	s.passes(turn).turnOver(1).thenNothing().is("[A] B C")
}

// The timer of a turn may be late: a section that ends after the turn admits no goroutine that has
// joined in it.
func TestTurnEndsWithASection(t *testing.T) {
	s := behindAStranger(t)
	s.asks("B").passes(turn).leaves("A")
	s.then("size 1 is 1", "open 2", "wake B", "settle 1", "keep turn 1", "A releases 1").is("B")

	s = begin(t) // nor does it keep one from queueing behind the stranger
	s.asks("A").granted("A", 10)
	s.informed().asks("B").queues("x", 11).asks("C").is("[A] B C")
	s.passes(turn).leaves("A").then("size 1 is 2", "open 2", "wake C", "size 1 is 1", "wake B").is("[B]", "C")
}

// A goroutine that cannot join the run ends its turn: it would pass those that have joined in it.
func TestTurnEndsEarly(t *testing.T) {
	s := behindAStranger(t)
	s.asks("B").is("[A] B")
	s.asks("C", wants(time.Minute)).then("size 1 is 1", "open 2", "wake B", "open 3", "wake C").is("[A]", "B", "C")
	s.asks("D").is("[A]", "B", "C", "D")

	s = behindAStranger(t) // its turn is over for good
	s.asks("B", wants(time.Minute)).givesUp("B").is("[A]")
	s.asks("C").is("[A]", "C")
}

// A candidate that has resigned passes no other one in the turn of its client.
func TestTurnOfThePatient(t *testing.T) {
	s := behindAStranger(t)
	s.asks("B", patient).then("open 2", "wake B").is("[A]", "B")

	s = begin(t)
	s.asks("A").granted("A", 10)
	s.informed().asks("B", patient).is("[A] B") // there is nobody to pass
}

// A claim whose answer was lost may be found when the run has a place. Those that joined the place
// have asked after the clients that queued behind the claim: they go behind these.
func TestClaimFound(t *testing.T) {
	at := func(t *testing.T) *script { // the place of A and B, which C has joined
		s := begin(t)
		s.asks("A").asks("B").passes(unanswered)
		s.subscribes().queues("x", 11).writes("A").queued("A", 12).shown("A").passes(ms)
		return s.asks("C").is("A B C")
	}
	s := at(t)
	s.granted("A", 10).then("settle 1", "size 1 is 3", "open 2", "wake C", "size 1 is 2", "on end 1").is("[A] B", "C")

	s = at(t) // also when the run has queued again
	s.unqueued("A").writes("A").queued("A", 14).granted("A", 10).is("[A] B", "C")

	s = at(t)
	s.granted("A", 13).is("[A] B C") // the claim of the place
	s.leaves("A").leaves("B").is("[C]")

	s = at(t)
	s.goes("x", 13).granted("A", 10).is("[A] B C") // there is nobody to pass

	s = begin(t) // D has asked before all of them, and has lost its lease
	s.asks("D").asks("A").granted("D", 8).ends(1).is("A")
	s.subscribes().queues("x", 11).writes("A").queued("A", 12).shown("A").loses("D").is("D A")
	s.passes(ms).asks("C").givesUp("A").is("D C")
	s.granted("D", 10).is("[D]", "C")

	s = at(t)
	s.givesUp("A").givesUp("B").then("size 1 is 1", "wake C", "C drives")
	s.granted("C", 10).then("settle 1", "size 1 is 1", "open 2", "wake C", "settle 1", "nobody").is("C")
}
