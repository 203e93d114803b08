package core

import (
	"slices"
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
)

// Drain is a writer that holds the gate of a reader-writer lock and is waiting for the readers ahead of it to leave.
// Once the gate is in place, the server admits no more readers.
//
// The writer asks the leader which readers there are and reads the record of each. A notification that a reader has
// left is only a hint. It makes the writer ask again, and it names a revision that the next read of that reader's
// record has to contain.
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
// With one replica, the proof is a single answer that contains a gate write and names no reader that may be live. With
// several replicas, the server that answers may have been deposed without knowing it. Such a server goes by its own
// clock and removes even readers that have renewed with its successor. In that case, the proof takes two such answers,
// each containing a different gate write. The writer sends the second gate write after the first answer has arrived,
// and the second answer has to arrive within [ProofWindow] of the time at which the first gate write was sent. To see
// why this suffices, suppose that both answers leave out the same live reader.
//
//   - If the stream has no renewal of this reader between the two gate writes, then the reader's record, and with it
//     the reader's validity, had expired by the time of the first answer, and any later renewal comes too late.
//   - If the stream has such renewals, then the state behind the second answer contains the last of them or a later
//     renewal, because a leader stores a renewal before it removes the record that the renewal replaces. That renewal
//     was stored after the first gate write and has a TTL longer than ProofWindow, so the second answer does name the
//     reader, which is a contradiction.
//
// The second case requires the answers to come from a leader. A replica that is catching up removes the replaced record
// and then lacks the reader until the renewal arrives. If a reader renews twice within the window, it can be missing
// from the answers of two such replicas (proofWithHole in the model).
//
// The argument does not depend on the reader's TTL or margin, which the writer does not know. For a counterexample to a
// bound derived from the writer's own TTL and margin, see internal/verify/model.
type Drain struct {
	Once bool           // immediately report a reader that is inside
	Left []record.Entry // readers in the last answer; a zero entry stands for one that was named but not found, or that has changed

	list     ReaderList
	knows    bool         // the list comes from a leader and contains the gate write
	unread   []string     // keys in the list yet to be read, starting with the one being read
	shown    record.Entry // for Once: the reader that was read and is being read again as of the gate write; zero if there is none
	deleted  bool         // a reader has been deleted since the list was read
	watched  bool
	gone     map[string]bool   // readers that are known to have left
	notified map[string]uint64 // revisions of tombstones known only from notifications
	created  time.Time         // creation time of the bucket, according to the first answer
	late     Lateness

	first   clock.Instant // when the gate write contained in the proof's first answer was sent
	renewed bool          // a gate write has been acknowledged since the first answer
	tries   int           // number of consecutive proofs that took too long
}

const (
	// ProofWindow limits how long a proof may take with several replicas. It is the shortest lease less an allowance
	// for clock differences.
	ProofWindow = clock.MinTTL * 4 / 5 //safety:proof-window
	// drainTries limits how many consecutive proofs may take too long. If more do, the writer gives up because the link
	// is too slow.
	drainTries = 10
)

// ReaderList is a server's answer to [AskReaders].
type ReaderList struct {
	Keys     []string // of readers, including tombstones
	Last     uint64   // last revision that the server has applied
	Complete bool     // the server leads the stream or is the only one
	Replicas int
	Created  time.Time     // creation time of the bucket
	Time     time.Time     // by the server's clock
	At       clock.Instant // when the answer arrived
	Gate     uint64        // last gate write that was acknowledged before the request
	Sent     clock.Instant // when that gate write was sent
	Alone    bool          // no other server answers reads
}

// DrainStep is the next step of a writer behind its gate.
type DrainStep struct {
	Do       DrainAction
	Key      string
	Revision uint64       // for ReadReader: revision that the read has to contain; 0 if any state will do
	Entry    record.Entry // for DeleteReader and ReaderInside
	Probes   bool         // for WatchReaders: a probe has to prove the subscription
	Knows    bool         // for AwaitReaders: the leader has answered
}

// DrainAction is the kind of a [DrainStep].
type DrainAction uint8

const (
	// AskReaders asks the leader which readers there are. The answer goes to [Drain.ReadersListed].
	AskReaders DrainAction = iota
	// ReadReader reads the record under Key. The result goes to [Drain.ReaderRead].
	ReadReader
	// DeleteReader deletes Entry at its revision. The result goes to [Drain.OverdueDeleted].
	DeleteReader
	// ConfirmGate renews the gate now. The result goes to [Drain.GateConfirmed].
	ConfirmGate
	// WatchReaders subscribes to the departures of readers. The result goes to [Drain.SubscriptionMade].
	WatchReaders
	// AwaitReaders waits for a notification, but no longer than [Drain.Pause], and then asks again.
	AwaitReaders
	// GateRemade means that the gate was deleted along with its bucket. The caller has the bucket verified and then
	// waits as it would for AwaitReaders.
	GateRemade
	// Drained means that no reader is left.
	Drained
	// ReaderInside means that the reader in Entry was inside during a one-shot acquire.
	ReaderInside
	// LinkTooSlow means that the link is too slow for the writer ever to get in.
	LinkTooSlow
	// DrainForbidden means that the user is not allowed to list the readers or to read their records.
	DrainForbidden
)

// Failure says how a request failed, if it did.
type Failure uint8

const (
	// NoFailure means that the request was answered.
	NoFailure Failure = iota
	// NoAnswer means that the server is unavailable, or says that it is.
	NoAnswer
	// NotPermitted means that the user is not allowed to make the request.
	NotPermitted
	// Withheld means that only the leader can answer and the user is not allowed to ask it.
	Withheld
)

// ReaderDeparted handles the notification of a reader's tombstone.
func (d *Drain) ReaderDeparted(key string, revision uint64) {
	if d.notified == nil {
		d.notified = make(map[string]uint64)
	}
	d.notified[key] = revision
}

// ReadersListed handles the answer to AskReaders.
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
	// An answer from before the gate write may lack a reader that joined before the gate, and an answer from a replica
	// that is catching up may lack a reader that has renewed.
	d.knows = l.Last >= l.Gate && l.Complete //safety:answer-knows
	return d.next()
}

// next returns the step that reads the next reader or, after the last reader, the step that follows.
func (d *Drain) next() DrainStep {
	for ; len(d.unread) > 0; d.unread = d.unread[1:] {
		if key := d.unread[0]; !d.gone[key] {
			// A lagging replica would still show a reader that, according to a notification, has left. So the read
			// waits for the tombstone. It does so only once, because the notification may be forged.
			revision := d.notified[key]
			delete(d.notified, key)
			return DrainStep{Do: ReadReader, Key: key, Revision: revision}
		}
	}
	return d.judge()
}

// ReaderRead handles the record of the reader being read. e is zero if there is no record.
func (d *Drain) ReaderRead(e record.Entry, f Failure) DrainStep {
	key, before := d.unread[0], d.shown
	d.shown = record.Entry{}
	switch {
	case f == Withheld && !before.Zero():
		return DrainStep{Do: ReaderInside, Entry: before}
	case f != NoFailure: // the reader may still hold the lock
		return d.failed(f) //safety:reader-not-read
	case e.Zero(): // the replica lags, or the record has just expired
		d.Left = append(d.Left, e) //safety:reader-not-found
	case e.Deleted: //safety:reader-gone
		d.leaves(key) // for good, because ids are never reused
	case e.OverdueAt(d.list.Time): //safety:reader-overdue
		return DrainStep{Do: DeleteReader, Entry: e} // the server may have forgotten to remove it
	case d.Once && (d.list.Alone || !before.Zero()):
		return DrainStep{Do: ReaderInside, Entry: e}
	case d.Once: // a state that contains the gate write proves that the reader was inside during this call
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

// OverdueDeleted records whether the overdue reader was deleted. If not, its record may have changed, because the
// server refuses to delete a record that has been renewed.
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

// judge returns the next step once every reader in the list has been read.
func (d *Drain) judge() DrainStep {
	switch nobody := d.knows && len(d.Left) == 0; { //safety:nobody-reads
	case d.deleted: // only an answer given after the deletion is a proof
		return DrainStep{Do: AskReaders}
	case nobody && d.list.Replicas == 1: //safety:two-answers
		return DrainStep{Do: Drained}
	case nobody:
		return d.prove()
	case !d.watched && !(d.Once && len(d.Left) > 0): // the writer asks again after subscribing, so it misses nothing
		return DrainStep{Do: WatchReaders, Probes: d.list.Replicas != 1} // with a single replica, the next answer proves the subscription
	}
	return d.await()
}

// prove handles a list without readers from a bucket with several replicas. The list either completes a proof or is the
// first of two, after which the writer writes the gate once more.
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

// GateConfirmed records whether the gate write sent after the last answer was acknowledged. If it was, the next answer
// has to contain that write. If it was not, the server is cut off, which does not mean that the link is slow.
func (d *Drain) GateConfirmed(acknowledged bool) DrainStep {
	if acknowledged { //safety:gate-written-between
		d.renewed = true
	}
	return DrainStep{Do: AskReaders}
}

// SubscriptionMade records whether subscribing succeeded.
func (d *Drain) SubscriptionMade(made bool) DrainStep {
	if d.watched = made; made {
		return DrainStep{Do: AskReaders}
	}
	return d.await()
}

func (d *Drain) await() DrainStep { return DrainStep{Do: AwaitReaders, Knows: d.knows} }

// Pause returns how long the writer waits, which is at most pause. It keeps in Left only the readers whose expiry the
// driver tracks. After the wait, a new proof begins. An answer that proves nothing comes from a server that is cut off
// or in an election, so it says nothing about the speed of the link.
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

// Slow reports whether the proofs of a one-shot acquire that has run out of time took too long. The acquire runs out of
// time before drainTries proofs can fail.
func (d *Drain) Slow() bool { return d.Once && d.tries > 1 }
