package core

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
)

// writer tells the story of a writer behind its gate. A test is a list of events, each followed by what
// the writer does next:
//
//	w := shuts(t, 1, 12)
//	w.names(12, "R").then("read R")
//	w.reads("R", 11).then("watch")
//
// Instants count from when the gate was sent. The gate is acknowledged immediately.
type writer struct {
	t *testing.T
	Drain
	list ReaderList // the next reply
	step DrainStep
}

const (
	gateSent  = clock.Instant(-time.Hour)
	readerTTL = 5 * time.Second
	drainWait = 4 * time.Second // between two requests
)

var drainTime = time.Unix(1_000_000, 0) // the server's time, which stands still

// shuts stores the writer's gate at revision gate, in a bucket with the given number of replicas.
func shuts(t *testing.T, replicas int, gate uint64) *writer {
	return &writer{t: t, list: ReaderList{
		Complete: true, Replicas: replicas, Alone: replicas == 1, Created: drainTime.Add(-time.Hour), Time: drainTime,
		At: gateSent, Gate: gate, Sent: gateSent,
	}}
}

// names delivers a list of readers from a server that has applied revisions up to last.
func (w *writer) names(last uint64, readers ...string) *writer {
	w.list.Last, w.list.Keys = last, readers
	w.step = w.ReadersListed(w.list, NoFailure)
	return w
}

// namesAt is names at a given instant.
func (w *writer) namesAt(at time.Duration, last uint64, readers ...string) *writer {
	w.list.At = gateSent.Add(at)
	return w.names(last, readers...)
}

// fails delivers no list.
func (w *writer) fails(f Failure) *writer {
	w.step = w.ReadersListed(ReaderList{}, f)
	return w
}

func (w *writer) record(key string, revision uint64) record.Entry {
	return record.Entry{
		Record: kvstore.Record{Key: key, Revision: revision, Time: drainTime, TTL: readerTTL},
		Body:   record.Body{Status: record.StatusHeld, ID: key, Mode: uint8(record.Shared)},
	}
}

// reads delivers the reader's live record.
func (w *writer) reads(key string, revision uint64) *writer {
	w.step = w.ReaderRead(w.record(key, revision), NoFailure)
	return w
}

// readsOver delivers a record whose TTL ended some time ago.
func (w *writer) readsOver(key string, revision uint64, ago time.Duration) *writer {
	e := w.record(key, revision)
	e.Time = drainTime.Add(-readerTTL - ago)
	w.step = w.ReaderRead(e, NoFailure)
	return w
}

// readsGone delivers the reader's tombstone.
func (w *writer) readsGone(key string, revision uint64) *writer {
	e := w.record(key, revision)
	e.Deleted = true
	w.step = w.ReaderRead(e, NoFailure)
	return w
}

// readsNothing delivers neither record nor tombstone, because there is none or because the request
// failed.
func (w *writer) readsNothing(f Failure) *writer {
	w.step = w.ReaderRead(record.Entry{}, f)
	return w
}

// deletes ends the deletion of an overdue reader, acknowledged or not.
func (w *writer) deletes(acknowledged bool) *writer {
	w.step = w.OverdueDeleted(acknowledged)
	return w
}

// renews rewrites the gate at the given instant and stores it at revision.
func (w *writer) renews(at time.Duration, revision uint64) *writer {
	w.list.Gate, w.list.Sent = revision, gateSent.Add(at)
	w.step = w.GateConfirmed(true)
	return w
}

// renewsUnanswered rewrites the gate but gets no reply.
func (w *writer) renewsUnanswered() *writer {
	w.step = w.GateConfirmed(false)
	return w
}

// watches puts the subscription in place.
func (w *writer) watches() *writer {
	w.step = w.SubscriptionMade(true)
	return w
}

// waits passes the pause before the writer asks again.
func (w *writer) waits() *writer {
	w.Pause(drainWait, drainTime)
	w.step = DrainStep{}
	return w
}

// then requires the writer's next step.
func (w *writer) then(want string) *writer {
	w.t.Helper()
	s := w.step
	got := map[DrainAction]string{
		AskReaders:     "ask",
		ReadReader:     "read " + s.Key,
		DeleteReader:   fmt.Sprintf("delete %s at %d", s.Entry.Key, s.Entry.Revision),
		ConfirmGate:    "renew the gate",
		WatchReaders:   "watch",
		AwaitReaders:   "wait",
		GateRemade:     "verify",
		Drained:        "drained",
		ReaderInside:   fmt.Sprintf("no: %s at %d", s.Entry.Key, s.Entry.Revision),
		LinkTooSlow:    "too slow",
		DrainForbidden: "forbidden",
	}[s.Do]
	switch {
	case s.Revision > 0:
		got += fmt.Sprintf(" as of %d", s.Revision)
	case s.Probes:
		got += " and probe"
	case s.Knows:
		got += " for readers"
	}
	require.Equal(w.t, want, got)
	return w
}

// TestDrain follows the sequence in docs/protocol: a writer waits for the reader ahead of its gate and is
// notified of its departure. What counts is the tombstone that the writer reads.
func TestDrain(t *testing.T) {
	shuts(t, 1, 12).names(12).then("drained")

	w := shuts(t, 1, 12)
	w.names(12, "R").then("read R").reads("R", 11).then("watch")
	w.watches().then("ask")
	w.names(12, "R").then("read R").reads("R", 11).then("wait for readers")
	require.Equal(t, []record.Entry{w.record("R", 11)}, w.Left)
	w.ReaderDeparted("R", 13)
	w.waits().names(13, "R").then("read R as of 13").readsGone("R", 13).then("drained")
}

// Each reader counts until its own tombstone has been read, and never again after that.
func TestDrainSeveral(t *testing.T) {
	w := shuts(t, 1, 12)
	w.watches().names(12, "Q", "R", "S").then("read Q").readsGone("Q", 10).then("read R")
	w.reads("R", 11).then("read S").readsGone("S", 9).then("wait for readers")
	w.waits().names(13, "Q", "R", "S").then("read R").readsGone("R", 13).then("drained")
}

// Each reply lacks exactly one thing, so it proves nothing.
func TestDrainNoProof(t *testing.T) {
	for name, test := range map[string]struct {
		answer func(w *writer)
		then   string
	}{
		"older than the gate by one": {func(w *writer) { w.names(11) }, "wait"},
		"of the gate":                {func(w *writer) { w.names(12) }, "drained"},
		"without a leader": {func(w *writer) {
			w.list.Complete = false
			w.names(12)
		}, "wait"},
		"of a bucket with replicas":    {func(w *writer) { w.list.Replicas = 3; w.names(12) }, "renew the gate"},
		"a failure":                    {func(w *writer) { w.fails(NoAnswer) }, "wait"},
		"a permission is lacking":      {func(w *writer) { w.fails(NotPermitted) }, "forbidden"},
		"named":                        {func(w *writer) { w.names(12, "R").reads("R", 11) }, "wait for readers"},
		"named, and not found":         {func(w *writer) { w.names(12, "R").readsNothing(NoFailure) }, "wait for readers"},
		"named, and not to be read":    {func(w *writer) { w.names(12, "R").readsNothing(NoAnswer) }, "wait"},
		"named, and forbidden":         {func(w *writer) { w.names(12, "R").readsNothing(NotPermitted) }, "forbidden"},
		"named, and withheld":          {func(w *writer) { w.names(12, "R").readsNothing(Withheld) }, "wait"},
		"named, and notified only":     {func(w *writer) { w.ReaderDeparted("R", 13); w.names(13, "R").reads("R", 11) }, "wait for readers"},
		"one not to be read, one gone": {func(w *writer) { w.names(12, "Q", "R").reads("Q", 10).readsNothing(NoAnswer) }, "wait"},
	} {
		t.Run(name, func(t *testing.T) {
			w := shuts(t, 1, 12)
			w.watches()
			test.answer(w)
			w.then(test.then)
			if test.then == "wait" {
				require.Empty(t, w.Left, "it is not known who is left")
			}
		})
	}
}

// On several replicas a proof takes two replies with a gate write between them. The second reply must
// arrive within 800 ms of sending the gate write that the first one contains.
func TestDrainTwoAnswers(t *testing.T) {
	const ms = time.Millisecond
	shuts(t, 3, 12).names(12).then("renew the gate").renews(0, 13).then("ask").names(13).then("drained")

	w := shuts(t, 3, 12)
	w.namesAt(400*ms, 12).then("renew the gate").renews(400*ms, 13)
	w.namesAt(800*ms-1, 13).then("drained")

	w = shuts(t, 3, 12)
	w.namesAt(400*ms, 12).then("renew the gate").renews(400*ms, 13)
	w.namesAt(800*ms, 13).then("renew the gate").renews(800*ms, 14) // the second reply is the first of another proof
	w.namesAt(1200*ms-1, 14).then("drained")

	w = shuts(t, 3, 12) // a renewal was sent before the reply: only its own sending time counts
	w.namesAt(500*ms, 12).then("renew the gate").renews(500*ms, 13)
	w.namesAt(900*ms, 13).then("renew the gate").renews(900*ms, 14)
	w.namesAt(1300*ms, 14).then("renew the gate")

	w = shuts(t, 3, 12) // a reader joins between the two replies, as seen by another server
	w.watches().names(12).renews(0, 13)
	w.names(13, "R").then("read R").reads("R", 11).then("wait for readers").waits()
	w.names(14).then("renew the gate")
}

// A server keeps replying while the writer's gate writes go unanswered, so no gate write lies between two
// of its replies. However often that happens, it does not make the link slow.
func TestDrainCutOff(t *testing.T) {
	w := shuts(t, 3, 12)
	for range 3 * drainTries {
		w.names(12).then("renew the gate").renewsUnanswered().then("ask")
	}
	w.names(12).renews(0, 13).then("ask")
	w.names(13).then("drained")

	w = shuts(t, 3, 12) // a write between two replies lies before the next two
	w.namesAt(0, 12).renews(100*time.Millisecond, 13)
	w.namesAt(ProofWindow, 13).then("renew the gate").renewsUnanswered()
	w.namesAt(ProofWindow, 13).then("renew the gate").renews(ProofWindow, 14)
	w.namesAt(ProofWindow, 14).then("drained")
}

// If no two replies ever fit into the window, the link is too slow. Only a leader's reply that names no
// reader says anything about the link.
func TestDrainTooSlow(t *testing.T) {
	proof := func(w *writer) *writer {
		w.namesAt(w.list.At.Sub(gateSent)+ProofWindow, w.list.Gate)
		return w
	}
	again := func(w *writer) { w.then("renew the gate").renews(w.list.At.Sub(gateSent), w.list.Gate+1).then("ask") }
	slow := func(t *testing.T, n int) *writer { // n proofs take too long
		w := shuts(t, 3, 12)
		w.watches()
		again(proof(w))
		for range n {
			again(proof(w))
		}
		return w
	}
	proof(slow(t, drainTries)).then("too slow")

	for name, between := range map[string]func(*writer){
		"a reader":         func(w *writer) { w.names(w.list.Gate, "R").reads("R", 11) },
		"a failure":        func(w *writer) { w.fails(NoAnswer) },
		"an older answer":  func(w *writer) { w.names(w.list.Gate - 1) },
		"another bucket's": func(w *writer) { w.list.Created = drainTime; w.names(12); w.list.Created = drainTime.Add(-time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			w := slow(t, drainTries)
			between(w)
			again(proof(w.waits())) // the first reply of a new proof
			again(proof(w))
		})
	}

	// A one-shot acquire does not have that much time.
	for n, want := range []bool{false, false, true} {
		w := slow(t, n)
		require.False(t, w.Slow(), "it waits")
		w.Once = true
		require.Equal(t, want, w.Slow(), n)
		require.False(t, w.waits().Slow())
	}
}

// A server may have forgotten to remove a reader whose TTL is over. The writer deletes the record exactly
// as it was read, and only a reply from after the deletion is a proof.
func TestDrainOverdue(t *testing.T) {
	w := shuts(t, 1, 12)
	w.names(12, "Q", "R").readsGone("Q", 10).readsOver("R", 11, record.OverdueSlack).then("delete R at 11")
	w.deletes(true).then("ask")
	w.names(13, "R").then("drained") // the name belongs to its tombstone

	w = shuts(t, 1, 12) // it renewed in time, according to another server
	w.watches().names(12, "R").readsOver("R", 11, record.OverdueSlack).then("delete R at 11")
	w.deletes(false).then("wait for readers").waits()
	w.names(12, "R").then("read R")

	w = shuts(t, 1, 12) // the clocks of two servers may simply differ
	w.watches().names(12, "R").readsOver("R", 11, record.OverdueSlack-1).then("wait for readers")

	w = shuts(t, 1, 12)
	w.names(12, "Q", "R").readsOver("Q", 11, time.Second).deletes(true).then("read R")
	w.reads("R", 10).then("ask")
	w.names(12, "Q", "R").then("read R")
}

// A writer whose bucket was re-created has lost its gate. Readers in the new bucket are not its concern,
// and an empty list there proves nothing.
func TestDrainRemade(t *testing.T) {
	w := shuts(t, 1, 12)
	w.watches().names(12, "R").reads("R", 11).then("wait for readers").waits()
	w.list.Created = drainTime
	w.names(1_000).then("verify")
	w.names(1_000, "S").then("verify")
	require.Empty(t, w.Left)
}

// The tombstone revision in a notification may be forged, so only one read waits for it.
func TestDrainForgedDeparture(t *testing.T) {
	w := shuts(t, 3, 12)
	w.watches().ReaderDeparted("R", 1_000_000)
	w.names(12, "R").then("read R as of 1000000").readsNothing(NoAnswer).then("wait").waits()
	w.names(12, "R").then("read R").reads("R", 11).then("wait for readers").waits()
	w.ReaderDeparted("R", 13)
	w.names(13, "R").then("read R as of 13")
}

// The writer subscribes when it meets a reader, or no leader, and then asks again because earlier
// departures were not notified. If the reply may come from a server other than the one that serves the
// subscription, a probe proves the subscription.
func TestDrainWatches(t *testing.T) {
	w := shuts(t, 3, 12)
	w.fails(NoAnswer).then("wait").waits()
	w.names(11).then("watch and probe")
	w.step = w.SubscriptionMade(false)
	w.then("wait").waits()
	w.names(12, "R").reads("R", 11).then("watch and probe")
	w.step = w.SubscriptionMade(false)
	w.then("wait for readers").waits()
	w.names(12, "R").reads("R", 11).then("watch and probe").watches().then("ask")
	w.names(12, "R").reads("R", 11).then("wait for readers")
}

// A one-shot writer that meets a reader behind its gate is denied the lock if the reader was inside
// during the call, which a state containing the gate's write shows.
func TestDrainOnce(t *testing.T) {
	once := func(replicas int) *writer {
		w := shuts(t, replicas, 12)
		w.Once = true
		return w
	}
	once(1).names(12, "Q", "R").readsGone("Q", 10).reads("R", 11).then("no: R at 11")

	w := once(3)
	w.names(12, "R").then("read R").reads("R", 11).then("read R as of 12").reads("R", 13).then("no: R at 13")

	w = once(3) // the replica lagged
	w.names(12, "Q", "R").reads("Q", 10).then("read Q as of 12").readsGone("Q", 11).then("read R")
	w.reads("R", 9).then("read R as of 12").readsGone("R", 12).then("renew the gate")

	w = once(3) // this user may not read from the leader
	w.names(12, "R").reads("R", 11).then("read R as of 12").readsNothing(Withheld).then("no: R at 11")
	once(3).names(12, "R").readsNothing(NotPermitted).then("forbidden")

	w = once(3) // nothing is known about it, so the next reply decides, without a subscription
	w.names(12, "R").reads("R", 11).then("read R as of 12").readsNothing(NoAnswer).then("wait").waits()
	w.names(12, "R").then("read R").readsNothing(NoFailure).then("wait for readers").waits()
	w.names(11).then("watch and probe")

	w = once(1)
	w.names(12, "R").readsOver("R", 11, time.Second).then("delete R at 11").deletes(true).then("ask")
}

// A writer waits to be notified of each reader's end. Without a subscription it asks again when the first
// reader's TTL is over, and keeps asking at short intervals if the end is a moment late.
func TestDrainPause(t *testing.T) {
	const soon = 20 * time.Millisecond
	for name, test := range map[string]struct {
		watched bool
		left    time.Duration // the reader's remaining TTL; negative: it has no end
		pause   time.Duration
		tracked bool
	}{
		"notified":             {true, time.Second, drainWait, true},
		"unnotified":           {false, time.Second, time.Second, true},
		"later than the pause": {false, time.Minute, drainWait, true},
		"without an end":       {false, -1, drainWait, true},
		"over":                 {true, 0, soon, false},
		"over, and unnotified": {false, 0, soon, false},
	} {
		w := shuts(t, 1, 12)
		w.watched = test.watched
		e := w.record("R", 11)
		if e.Record.TTL = max(test.left, 0); test.left == 0 {
			e.Record.TTL, e.Time = time.Second, drainTime.Add(-time.Second)
		}
		w.names(12, "R").step = w.ReaderRead(e, NoFailure)
		require.Equal(t, test.pause, w.Pause(drainWait, drainTime), name)
		require.Equal(t, test.tracked, len(w.Left) == 1, name)
	}

	w := shuts(t, 1, 12) // named but not found
	w.watches().names(12, "Q", "R").reads("Q", 10).readsNothing(NoFailure)
	var all time.Duration
	for range 15 {
		w.names(12, "R").readsNothing(NoFailure)
		all += w.Pause(drainWait, drainTime)
	}
	require.Equal(t, 15*soon, all)
	w.names(12, "R").readsNothing(NoFailure)
	require.Equal(t, 100*time.Millisecond, w.Pause(drainWait, drainTime), "later")
	w.names(12, "R").readsNothing(NoFailure)
	require.Equal(t, time.Millisecond, w.Pause(time.Millisecond, drainTime), "not longer than without it")
	w.names(12, "R").reads("R", 11)
	require.Equal(t, drainWait, w.Pause(drainWait, drainTime))
	w.names(12, "R").readsNothing(NoFailure)
	require.Equal(t, soon, w.Pause(drainWait, drainTime), "anew")
}
