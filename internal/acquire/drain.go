package acquire

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
	"github.com/natslock/locks/kvstore"
)

// The reader-writer lock is the mutex's machinery with three things of its own.
//
// The gate: a writer takes the record rw.<name> like a mutex. Readers join by writing
// a record of their own on the condition that the gate is free. The server refuses
// the join when a writer has come first. From the moment the gate stands it admits
// nobody.
//
// The drain: a writer that has the gate waits until the readers before it have gone.
// Their tombstones are hints. On one replica the proof is one answer that lists no
// reader and contains a gate write. On several replicas the server that answers may
// have been deposed without knowing it. Such a server removes by its own clock
// readers that have renewed with its successor. There the proof takes two answers
// that list nobody, each containing a gate write. The second gate write is sent when
// the first answer has arrived. The second answer arrives within proofWindow of the
// sending of the first gate write. For let a reader be in neither.
//
//   - The stream has no renewal of it between the two gate writes. Then it had
//     expired when the first answer was given. Any renewal comes after the second
//     gate write, and so after its validity.
//   - The stream has some. The second answer's state contains the last of them, or a
//     later one: a leader stores a renewal before it removes what that replaces. It was
//     sent after the first gate write, and cannot have expired within a proofWindow
//     of it. So the answer names the reader.
//
// The second case needs a leader. A replica that catches up removes at first what was
// replaced, and lacks the reader until the renewal arrives: with two renewals in the
// window, a reader can be in neither of two such answers (the model's proofWithHole).
//
// Nothing here depends on the reader's TTL or margin, which the writer does not
// know: internal/verify/model has the counter-example to a bound by the writer's.
//
// The queue rule: a reader is first when no earlier writer waits, a writer when
// nobody does. So consecutive readers enter together, and a later reader never
// passes a waiting writer.

const (
	// proofWindow is how long a proof of several replicas may take: less than
	// the shortest lease, by what clocks may be apart.
	proofWindow = clock.MinTTL * 4 / 5 //safety:proof-window
	// drainTries is how many proofs in a row may take too long before the writer
	// gives up: the link is too slow.
	drainTries = 10
)

// errSlowLink says why a writer can never get in.
var errSlowLink = errors.New("the link to the server is too slow")

// answer is one of the leader about the readers.
type answer struct {
	readers  []record.Entry // those that are left
	knows    bool           // it is a leader's, and contains the gate write below
	alone    bool           // there are no other replicas
	sent     clock.Instant  // of the gate write
	revision uint64         // of the gate write
	at       clock.Instant  // when it arrived
}

// departures are the readers that have gone since the gate stands.
type departures struct {
	gone map[string]bool // by tombstones that were read

	mu       sync.Mutex
	notified map[string]uint64 // the revisions of tombstones that were only notified
}

func (d *departures) note(key string, revision uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.notified[key] = revision
}

// take returns the tombstone of key that was notified, once: a forged revision must not
// be waited for again and again.
func (d *departures) take(key string) (revision uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	revision = d.notified[key]
	delete(d.notified, key)
	return revision
}

// drain is a writer's wait behind its gate.
type drain struct {
	a        *acquisition
	gate     *session.Lease
	departed departures
	mailbox  *mailbox
	watch    kvstore.Watch // nil: not yet
	back     backstop
	late     core.Lateness

	first   answer // of a proof by two: no reader was in it
	renewed uint64 // a gate write sent since; 0: none yet
	tries   int    // proofs in a row that took too long

	created time.Time // of the bucket, as the first answer has it
}

// drain waits until no reader is left behind the gate. It returns granted when the lock is
// the writer's, lost when the gate is gone.
func (a *acquisition) drain(gate *session.Lease) result {
	d := drain{a: a, gate: gate, mailbox: newMailbox(), back: backstop{place: a.placeTTL()}}
	d.departed.gone, d.departed.notified = make(map[string]bool), make(map[string]uint64)
	gate.OnEnd(d.mailbox.poke)
	defer a.whileGranting()()
	defer func() {
		if d.watch != nil {
			d.watch.Stop()
		}
	}()
	for {
		r, err := d.ask()
		if len(r.readers) > 0 {
			a.saw(r.readers[0])
		}
		if err != nil || len(r.readers) > 0 {
			a.heard(err)
		}
		// Readers may join now, and the server admits no writer to a gate that has ended.
		if _, _, cause := gate.Status(); cause != nil {
			return result{outcome: lost}
		}
		switch nobody := err == nil && r.knows && len(r.readers) == 0; { //safety:nobody-reads
		case bucket.IsAny(err, bucket.ErrPermission):
			return result{outcome: failed, err: err}
		case nobody && r.alone: //safety:two-answers
			return result{outcome: granted}
		case nobody:
			if res, decided := d.prove(r); decided {
				return res
			}
			if a.over() == nil {
				continue
			}
		case len(r.readers) > 0 && a.req.Once:
			if reader, ok := a.readerInside(r, &d.departed); ok {
				return result{outcome: busy, entry: reader}
			}
		case err == nil && d.watch == nil:
			// The leader is asked again after subscribing, so that nothing is missed.
			if d.subscribe(r.alone) {
				continue
			}
		}
		if a.req.Once && d.tries > 1 && a.ctx.Err() != nil {
			return tooSlow() // the time for an answer is over before the tries are
		}
		// A mere hint is one from a server that is cut off or electing: it is
		// asked again like one that does not answer.
		d.tries, d.renewed = 0, 0
		d.wait(d.pause(r.readers, err == nil && r.knows))
		if cause := a.over(); cause != nil {
			return result{outcome: ended, err: cause}
		}
	}
}

// prove takes an answer without readers on a bucket with replicas: the second of two that
// make a proof, or a first one, which another gate write follows.
func (d *drain) prove(r answer) (result, bool) {
	if d.renewed != 0 && r.revision >= d.renewed {
		if r.at.Sub(d.first.sent) < proofWindow { //safety:proof-in-time
			return result{outcome: granted}, true
		}
		if d.tries++; d.tries > drainTries {
			return tooSlow(), true
		}
	}
	// When no other gate write is acknowledged, the link is not slow but the server
	// cut off.
	d.first, d.renewed = r, 0
	ctx, cancel := context.WithTimeout(d.a.ctx, bucket.AnswerTimeout)
	defer cancel()
	if d.gate.Confirm(ctx) == nil { //safety:gate-written-between
		_, d.renewed = d.gate.Confirmation()
	}
	return result{}, false
}

// ask asks the leader for the readers that are left. It deletes those that are overdue;
// then only an answer from after the deletion is a proof.
func (d *drain) ask() (answer, error) {
	for {
		r, deleted, err := d.askOnce()
		if !deleted {
			return r, err
		}
	}
}

func (d *drain) askOnce() (r answer, deleted bool, err error) {
	b := d.a.c.b
	ctx, cancel := context.WithTimeout(d.a.ctx, 2*bucket.AnswerTimeout)
	defer cancel()
	r.sent, r.revision = d.gate.Confirmation()
	st, err := b.State(ctx, d.a.keys.Reader("*"))
	r.at = b.Instant()
	if err != nil {
		return answer{}, false, err
	}
	if d.created.IsZero() {
		d.created = st.Created
	}
	if !st.Created.Equal(d.created) { //safety:drain-remade
		d.a.c.s.Verify(ctx) // the gate has gone with its bucket
		return answer{}, false, kvstore.ErrRemade
	}
	// An answer from before the gate's write may lack a reader that joined before it, and
	// that of a replica which catches up a reader that has renewed.
	r.knows = st.LastRevision >= r.revision && st.Complete //safety:answer-knows
	r.alone = st.Replicas == 1
	for _, key := range st.Keys {
		if d.departed.gone[key] {
			continue
		}
		// A replica that lags would show a reader whose tombstone was notified.
		rec, err := b.Get(ctx, key, d.departed.take(key))
		switch {
		case err == nil && rec.Deleted: //safety:reader-gone
			// Dead by its own tombstone, and for ever: ids are not used again.
			d.departed.gone[key] = true
		case err == nil:
			entry := record.Of(rec)
			// The server may have forgotten to remove it.
			if entry.OverdueAt(st.Time) { //safety:reader-overdue
				if b.DeleteOverdue(ctx, entry) == nil { //safety:reader-deleted
					d.departed.gone[key], deleted = true, true // a renewal would have made the server refuse that
					continue
				}
				entry = record.Entry{} // it has changed, or is unknown: ask again
			}
			r.readers = append(r.readers, entry)
		case errors.Is(err, kvstore.ErrNotFound):
			r.readers = append(r.readers, record.Entry{}) // a replica lags, or it has just expired: ask again //safety:reader-not-found
		default:
			// A reader whose record cannot be read may still hold the lock.
			return answer{}, false, err //safety:reader-not-read
		}
	}
	return r, deleted, nil
}

// subscribe begins to watch the readers.
func (d *drain) subscribe(alone bool) bool {
	b := d.a.c.b
	w, err := b.Watch(d.a.keys.Reader("*"), func(ev kvstore.Event) {
		switch ev.Kind {
		case kvstore.Put:
			return
		case kvstore.Deleted:
			d.departed.note(ev.Record.Key, ev.Record.Revision)
		}
		d.mailbox.poke()
	})
	if err != nil {
		return false
	}
	d.watch = w
	w.Track(kvstore.Record{})
	if !alone { // else the next answer proves the subscription
		_, _ = b.Probe(d.a.ctx, d.a.keys.Gate)
	}
	return true
}

// pause is how long to wait for notifications of the readers that are left, as a leader has
// answered or not.
func (d *drain) pause(readers []record.Entry, answered bool) time.Duration {
	pause := d.back.after(answered)
	over := false
	for _, e := range readers {
		switch left := e.Remaining(d.a.c.b.Now()); {
		case e.Zero() || left == 0: // listed, and over or not to be read
			over = true
		case d.watch != nil:
			d.watch.Track(e.Record)
		case left > 0:
			pause = min(pause, left)
		}
	}
	if !over {
		d.late = 0
		return pause
	}
	return min(pause, d.late.Next())
}

// wait waits for a notification, at most for a pause.
func (d *drain) wait(pause time.Duration) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-d.mailbox.wake:
	case <-timer.C:
	case <-d.a.ctx.Done():
	}
}

func tooSlow() result {
	return result{outcome: failed, err: fmt.Errorf("%w: %w: two writes and two answers have to fit into %v", bucket.ErrUnavailable, errSlowLink, proofWindow)}
}
