package core

import (
	"slices"
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
)

// Drain is a writer that has the gate of a reader-writer lock, and waits for the readers ahead of it to leave. From the
// moment the gate is in place, the server admits no reader.
//
// The writer asks the leader which readers there are, and reads the record of each. A notification that a reader has
// left is a hint: it makes the writer ask again, and names a revision that a read has to contain.
//
//	 ReadersListed      ReaderRead, OverdueDeleted
//	ask --------> read key --------------> the last key is read
//	 ^                                         |
//	 +---- a deletion, so it asks again -------+
//	 +---- a reader: watch, or wait -----------+
//	 +---- none, and replicas: write the ------+
//	 |     gate once more (GateConfirmed)      |
//	                                           +---- a proof that no reader is left ---> drained
//
// On one replica the proof is one answer that contains a gate write and names no reader that may be live. On several
// replicas, the server that answers may have been deposed without knowing it. By its own clock, such a server removes
// readers that have renewed with its successor. There the proof takes two such answers, each containing a gate write of
// its own. The writer sends the second gate write after the first answer has arrived. The second answer has to arrive
// within [ProofWindow] of the sending of the first gate write. To see why this suffices, suppose that neither answer
// names some live reader.
//
//   - Suppose that the stream has no renewal of this reader between the two gate writes. Then the reader's record had
//     expired when the first answer was given, and so had its validity. Any later renewal comes too late.
//   - Suppose that the stream has such renewals. The state of the second answer contains the last of them, or a later
//     one: a leader stores a renewal before it removes the record that the renewal replaces. That renewal was stored
//     after the first gate write, and its TTL is longer than a ProofWindow. So the second answer names the reader, a
//     contradiction.
//
// The second case requires a leader. A replica that is catching up first removes what was replaced, and lacks the
// reader until the renewal arrives: with two renewals in the window, a reader can be missing from both of two such
// answers (the model's proofWithHole).
//
// The argument does not depend on the reader's TTL or margin, which the writer does not know. internal/verify/model has
// the counterexample to a bound derived from the writer's.
type Drain struct {
	Once bool           // report a reader inside at once
	Left []record.Entry // the readers in the last answer; a zero entry was named but not found, or has changed

	list     ReaderList
	knows    bool         // the list is a leader's, and contains the gate write
	unread   []string     // the keys in the list that are not read yet, beginning with the one being read
	shown    record.Entry // for Once: the reader that was read, to be read again as of the gate write; zero if none
	deleted  bool         // a reader has been deleted since the list
	watched  bool
	gone     map[string]bool   // readers whose tombstones were read
	notified map[string]uint64 // revisions of tombstones that were only notified
	created  time.Time         // creation time of the bucket in the first answer
	late     Lateness

	first   clock.Instant // when the gate write in the first of two answers was sent
	renewed bool          // a gate write was acknowledged after the first answer
	tries   int           // consecutive proofs that took too long
}

const (
	// ProofWindow limits the time of a proof on several replicas: the shortest lease less the possible difference
	// between clocks.
	ProofWindow = clock.MinTTL * 4 / 5 //safety:proof-window
	// drainTries limits the consecutive proofs that take too long. After that the writer gives up: the link is too
	// slow.
	drainTries = 10
)

// ReaderList is a server's answer about the readers.
type ReaderList struct {
	Keys     []string // of readers, tombstones included
	Last     uint64   // the last revision that the server has applied
	Complete bool     // the server leads the stream, or is the only one
	Replicas int
	Created  time.Time     // creation time of the bucket
	Time     time.Time     // by the server's clock
	At       clock.Instant // when the answer arrived
	Gate     uint64        // the last gate write that was acknowledged before the request
	Sent     clock.Instant // when that gate write was sent
	Alone    bool          // no other server answers reads
}

// DrainStep is the next step of a writer behind its gate.
type DrainStep struct {
	Do       DrainAction
	Key      string
	Revision uint64       // for ReadReader: the revision that the read has to contain; 0 if any state will do
	Entry    record.Entry // for DeleteReader and ReaderInside
	Probes   bool         // for WatchReaders: a probe proves the subscription
	Knows    bool         // for AwaitReaders: the leader has answered
}

// DrainAction is the kind of a [DrainStep].
type DrainAction uint8

const (
	// AskReaders: ask the leader for the readers, and call [Drain.ReadersListed].
	AskReaders DrainAction = iota
	// ReadReader: read the record under Key, and call [Drain.ReaderRead].
	ReadReader
	// DeleteReader: delete the record Entry at its revision, and call [Drain.OverdueDeleted].
	DeleteReader
	// ConfirmGate: renew the gate now, and call [Drain.GateConfirmed].
	ConfirmGate
	// WatchReaders: subscribe to the departures of readers, and call [Drain.SubscriptionMade].
	WatchReaders
	// AwaitReaders: wait for a notification, at most for [Drain.Pause]. Then ask again.
	AwaitReaders
	// GateRemade: the gate was deleted with its bucket. Have the bucket verified, and wait as for AwaitReaders.
	GateRemade
	// Drained: no reader is left.
	Drained
	// ReaderInside: the reader of Entry was inside during a one-shot acquire.
	ReaderInside
	// LinkTooSlow: the writer can never get in.
	LinkTooSlow
	// DrainForbidden: the user may not ask for the readers, or may not read them.
	DrainForbidden
)

// Failure is the kind of failure of a request.
type Failure uint8

const (
	// NoFailure: the request was answered.
	NoFailure Failure = iota
	// NoAnswer: the server is unavailable, or says that it is.
	NoAnswer
	// NotPermitted: the user may not make the request.
	NotPermitted
	// Withheld: only the leader can answer, and the user may not ask it.
	Withheld
)

// ReaderDeparted handles a notification that a reader's record has a tombstone.
func (d *Drain) ReaderDeparted(key string, revision uint64) {
	if d.notified == nil {
		d.notified = make(map[string]uint64)
	}
	d.notified[key] = revision
}

// ReadersListed handles an answer about the readers.
func (d *Drain) ReadersListed(l ReaderList, f Failure) DrainStep {
	d.list, d.unread, d.Left, d.deleted = l, l.Keys, d.Left[:0], false
	if f != NoFailure {
		return d.failed(f)
	}
	if d.created.IsZero() {
		d.created = l.Created
	}
	if !l.Created.Equal(d.created) { //safety:drain-remade
		return DrainStep{Do: GateRemade}
	}
	// An answer from before the gate write may lack a reader that joined before the gate. The answer of a replica that
	// is catching up may lack a reader that has renewed.
	d.knows = l.Last >= l.Gate && l.Complete //safety:answer-knows
	return d.next()
}

// next returns the step that reads the next reader, or the step after the last one.
func (d *Drain) next() DrainStep {
	for ; len(d.unread) > 0; d.unread = d.unread[1:] {
		if key := d.unread[0]; !d.gone[key] {
			// A lagging replica would still show a reader whose tombstone was notified. The read waits for the
			// tombstone only once, because the notification may be forged.
			revision := d.notified[key]
			delete(d.notified, key)
			return DrainStep{Do: ReadReader, Key: key, Revision: revision}
		}
	}
	return d.judge()
}

// ReaderRead handles record e of the reader being read. e is zero if there is none.
func (d *Drain) ReaderRead(e record.Entry, f Failure) DrainStep {
	key, before := d.unread[0], d.shown
	d.shown = record.Entry{}
	switch {
	case f == Withheld && !before.Zero():
		return DrainStep{Do: ReaderInside, Entry: before}
	case f != NoFailure: // it may still hold the lock
		return d.failed(f) //safety:reader-not-read
	case e.Zero(): // the replica lags, or the record has just expired
		d.Left = append(d.Left, e) //safety:reader-not-found
	case e.Deleted: //safety:reader-gone
		d.leaves(key) // forever: ids are not used again
	case e.OverdueAt(d.list.Time): //safety:reader-overdue
		return DrainStep{Do: DeleteReader, Entry: e} // the server may have forgotten to remove it
	case d.Once && (d.list.Alone || !before.Zero()):
		return DrainStep{Do: ReaderInside, Entry: e}
	case d.Once: // a state that contains the gate write proves that it was inside during this call
		d.shown = e
		return DrainStep{Do: ReadReader, Key: key, Revision: d.list.Gate}
	default:
		d.Left = append(d.Left, e)
	}
	d.unread = d.unread[1:]
	return d.next()
}

func (d *Drain) failed(f Failure) DrainStep {
	d.Left = d.Left[:0]
	if f == NotPermitted {
		return DrainStep{Do: DrainForbidden}
	}
	return DrainStep{Do: AwaitReaders}
}

func (d *Drain) leaves(key string) {
	if d.gone == nil {
		d.gone = make(map[string]bool)
	}
	d.gone[key] = true
}

// OverdueDeleted records whether the overdue reader was deleted. If not, its record may have changed: a renewal makes
// the server refuse the deletion.
func (d *Drain) OverdueDeleted(acknowledged bool) DrainStep {
	if acknowledged { //safety:reader-deleted
		d.leaves(d.unread[0])
		d.deleted = true
	} else {
		d.Left = append(d.Left, record.Entry{})
	}
	d.unread = d.unread[1:]
	return d.next()
}

// judge decides once every reader in the list has been read.
func (d *Drain) judge() DrainStep {
	switch nobody := d.knows && len(d.Left) == 0; { //safety:nobody-reads
	case d.deleted: // only an answer from after the deletion is a proof
		return DrainStep{Do: AskReaders}
	case nobody && d.list.Replicas == 1: //safety:two-answers
		return DrainStep{Do: Drained}
	case nobody:
		return d.prove()
	case !d.watched && !(d.Once && len(d.Left) > 0): // the writer then asks again, so it misses nothing
		return DrainStep{Do: WatchReaders, Probes: d.list.Replicas != 1} // a single replica's next answer proves it
	}
	return d.await()
}

// prove handles a list without readers from a bucket with replicas. It is the second of two that make a proof, or a
// first one, after which the writer writes the gate once more.
func (d *Drain) prove() DrainStep {
	if d.renewed {
		if d.list.At.Sub(d.first) < ProofWindow { //safety:proof-in-time
			return DrainStep{Do: Drained}
		}
		if d.tries++; d.tries > drainTries {
			return DrainStep{Do: LinkTooSlow}
		}
	}
	d.first, d.renewed = d.list.Sent, false
	return DrainStep{Do: ConfirmGate}
}

// GateConfirmed records whether the gate write sent after the last answer was acknowledged. If so, the next answer
// counts only if it contains that write. If not, the link is not slow: the server is cut off.
func (d *Drain) GateConfirmed(acknowledged bool) DrainStep {
	if acknowledged { //safety:gate-written-between
		d.renewed = true
	}
	return DrainStep{Do: AskReaders}
}

// SubscriptionMade records whether the subscription was made.
func (d *Drain) SubscriptionMade(made bool) DrainStep {
	if d.watched = made; made {
		return DrainStep{Do: AskReaders}
	}
	return d.await()
}

func (d *Drain) await() DrainStep { return DrainStep{Do: AwaitReaders, Knows: d.knows} }

// Pause returns how long the writer waits, at most pause. It leaves in Left the readers whose ends the driver tracks.
// Another proof begins after the wait: an answer that proves nothing comes from a server that is cut off or in an
// election, and says nothing about the link.
func (d *Drain) Pause(pause time.Duration, server time.Time) time.Duration {
	d.tries, d.renewed = 0, false
	all := len(d.Left)
	d.Left = slices.DeleteFunc(d.Left, func(e record.Entry) bool { return isOver(e, server) })
	for _, e := range d.Left {
		if left := e.Remaining(server); !d.watched && left > 0 {
			pause = min(pause, left)
		}
	}
	if len(d.Left) == all {
		d.late = 0
		return pause
	}
	return min(pause, d.late.Next())
}

// Slow reports whether the proofs of a one-shot acquire took too long, once its time is over. That time ends before
// drainTries proofs can fail.
func (d *Drain) Slow() bool { return d.Once && d.tries > 1 }
