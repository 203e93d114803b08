package core

import (
	"slices"
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
)

// Drain is a writer that has the gate of a reader-writer lock, and waits until the readers before it
// have gone. From the moment the gate is in place the server admits no reader.
//
// It asks the leader which readers there are, and reads the record of each. Notifications of their
// departure are hints: they make it ask, and say which revision a read has to contain.
//
//	    Answered           Read, Deleted
//	ask --------> read key --------------> the last key is read
//	 ^                                         |
//	 +---- a deletion, so it asks again -------+
//	 +---- a reader: watch, or wait -----------+
//	 +---- nobody, and replicas: write the ----+
//	 |     gate once more (Confirmed)          |
//	                                           +---- a proof that nobody reads ---> drained
//
// On one replica the proof is one answer that names no reader that may be live and contains a gate
// write. On several replicas the server that answers may have been deposed without knowing it. Such a
// server removes by its own clock readers that have renewed with its successor. There the proof takes
// two answers that name nobody, each containing a gate write. The second gate write is sent when the
// first answer has arrived. The second answer arrives within [ProofWindow] of the sending of the first
// gate write. For let a reader be in neither.
//
//   - The stream has no renewal of it between the two gate writes. Then it had expired when the first
//     answer was given. Any renewal comes after the second gate write, and so after its validity.
//   - The stream has some. The second answer's state contains the last of them, or a later one: a leader
//     stores a renewal before it removes what that replaces. It was sent after the first gate write, and
//     cannot have expired within a ProofWindow of it. So the answer names the reader.
//
// The second case needs a leader. A replica that catches up removes at first what was replaced, and
// lacks the reader until the renewal arrives: with two renewals in the window, a reader can be in
// neither of two such answers (the model's proofWithHole).
//
// Nothing here depends on the reader's TTL or margin, which the writer does not know:
// internal/verify/model has the counter-example to a bound by the writer's.
type Drain struct {
	Once bool           // a reader that is inside is an answer
	Left []record.Entry // the readers in the last answer; zero: one that is named and not found, or has changed

	list     ReaderList
	knows    bool         // the list is a leader's, and contains the gate write
	unread   []string     // the keys in the list that are still to be read, and the one that is being read
	shown    record.Entry // Once: the reader that was read, and is read again as of the gate's write; zero: none
	deleted  bool         // a reader, since the list
	watched  bool
	gone     map[string]bool   // readers, by tombstones that were read
	notified map[string]uint64 // the revisions of tombstones that were only notified
	created  time.Time         // of the bucket, as the first answer has it
	late     Lateness

	first   clock.Instant // of a proof by two: when the gate write in the first answer was sent
	renewed bool          // a gate write is acknowledged since that answer
	tries   int           // proofs in a row that took too long
}

const (
	// ProofWindow is how long a proof of several replicas may take: less than the shortest lease, by
	// what clocks may be apart.
	ProofWindow = clock.MinTTL * 4 / 5 //safety:proof-window
	// drainTries is how many proofs in a row may take too long before the writer gives up: the link is
	// too slow.
	drainTries = 10
)

// ReaderList is a server's answer about the readers.
type ReaderList struct {
	Keys     []string // of readers, tombstones included
	Last     uint64   // the last revision that the server has applied
	Complete bool     // it leads the stream, or there is no other one
	Replicas int
	Created  time.Time     // of the bucket
	Time     time.Time     // by the server's clock
	At       clock.Instant // when the answer arrived
	Gate     uint64        // the last gate write that was acknowledged before the request
	Sent     clock.Instant // and when that was sent
	Alone    bool          // no other server answers reads
}

// DrainStep is what a writer behind its gate does next.
type DrainStep struct {
	Do       DrainAction
	Key      string
	Revision uint64       // of ReadReader: the state that is read has to contain it; 0: any
	Entry    record.Entry // of DeleteReader and ReaderInside
	Probes   bool         // of WatchReaders: a probe proves the subscription
	Knows    bool         // of AwaitReaders: the leader has answered
}

// DrainAction says what a [DrainStep] is.
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
	// GateRemade: the gate has gone with its bucket. Have that verified, and wait likewise.
	GateRemade
	// Drained: nobody is left.
	Drained
	// ReaderInside: Entry was inside during a one-shot acquire.
	ReaderInside
	// LinkTooSlow: the writer can never get in.
	LinkTooSlow
	// DrainForbidden: the user may not ask for the readers, or not read them.
	DrainForbidden
)

// Failure says how a request has failed.
type Failure uint8

const (
	// NoFailure: it has not.
	NoFailure Failure = iota
	// NoAnswer: the server is unavailable, or says that it is.
	NoAnswer
	// NotPermitted: the user may not ask that.
	NotPermitted
)

// ReaderDeparted takes a notification that a reader's record has got a tombstone.
func (d *Drain) ReaderDeparted(key string, revision uint64) {
	if d.notified == nil {
		d.notified = make(map[string]uint64)
	}
	d.notified[key] = revision
}

// ReadersListed takes an answer about the readers.
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
	// An answer from before the gate's write may lack a reader that joined before it, and that of a
	// replica which catches up a reader that has renewed.
	d.knows = l.Last >= l.Gate && l.Complete //safety:answer-knows
	return d.next()
}

// next returns the read of the next reader, or the step after the last one.
func (d *Drain) next() DrainStep {
	for ; len(d.unread) > 0; d.unread = d.unread[1:] {
		if key := d.unread[0]; !d.gone[key] {
			// A replica that lags would show a reader whose tombstone was notified. That is waited for
			// once: it can be forged.
			revision := d.notified[key]
			delete(d.notified, key)
			return DrainStep{Do: ReadReader, Key: key, Revision: revision}
		}
	}
	return d.judge()
}

// ReaderRead takes the record of the reader that was to be read; zero: there is none.
func (d *Drain) ReaderRead(e record.Entry, f Failure) DrainStep {
	key, before := d.unread[0], d.shown
	d.shown = record.Entry{}
	switch {
	case f == NotPermitted && !before.Zero(): // the leader's word is withheld from this user
		return DrainStep{Do: ReaderInside, Entry: before}
	case f != NoFailure: // it may still hold the lock
		return d.failed(f) //safety:reader-not-read
	case e.Zero(): // a replica lags, or it has just expired
		d.Left = append(d.Left, e) //safety:reader-not-found
	case e.Deleted: //safety:reader-gone
		d.leaves(key) // for ever: ids are not used again
	case e.OverdueAt(d.list.Time): //safety:reader-overdue
		return DrainStep{Do: DeleteReader, Entry: e} // the server may have forgotten to remove it
	case d.Once && (d.list.Alone || !before.Zero()):
		return DrainStep{Do: ReaderInside, Entry: e}
	case d.Once: // a state that contains the gate's write shows that it was inside during this call
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

// OverdueDeleted notes whether the overdue reader was deleted: a renewal would have made the server refuse
// that. Otherwise it has changed, or is unknown.
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

// judge decides when each reader in the list is read.
func (d *Drain) judge() DrainStep {
	switch nobody := d.knows && len(d.Left) == 0; { //safety:nobody-reads
	case d.deleted: // only an answer from after the deletion is a proof
		return DrainStep{Do: AskReaders}
	case nobody && d.list.Replicas == 1: //safety:two-answers
		return DrainStep{Do: Drained}
	case nobody:
		return d.prove()
	case !d.watched && !(d.Once && len(d.Left) > 0): // it asks again then, so that nothing is missed
		return DrainStep{Do: WatchReaders, Probes: d.list.Replicas != 1} // else the next answer proves it
	}
	return d.await()
}

// prove takes a list without readers on a bucket with replicas: the second of two that make a proof, or
// a first one, which another gate write follows.
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

// GateConfirmed notes whether a gate write was acknowledged that was sent after the last answer. The next
// answer contains it if it counts. Without one the link is not slow but the server cut off.
func (d *Drain) GateConfirmed(acknowledged bool) DrainStep {
	if acknowledged { //safety:gate-written-between
		d.renewed = true
	}
	return DrainStep{Do: AskReaders}
}

// SubscriptionMade notes whether the subscription was made.
func (d *Drain) SubscriptionMade(made bool) DrainStep {
	if d.watched = made; made {
		return DrainStep{Do: AskReaders}
	}
	return d.await()
}

func (d *Drain) await() DrainStep { return DrainStep{Do: AwaitReaders, Knows: d.knows} }

// Pause is how long the writer waits, at most for a pause. Left are the readers then whose ends are to
// be notified. Another proof begins after that: what is no proof comes from a server that is cut off or
// electing, and says nothing of the link.
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

// Slow reports whether the proofs of a one-shot acquire whose time is over took too long. Its time ends
// before drainTries proofs can fail.
func (d *Drain) Slow() bool { return d.Once && d.tries > 1 }
