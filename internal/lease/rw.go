package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/natslock/locks/kvstore"
)

// Mode is how a lock is wanted.
type Mode uint8

const (
	// Exclusive: alone.
	Exclusive Mode = iota
	// Shared: together with other readers.
	Shared
)

// The reader-writer lock is the mutex's machinery with three things of its own.
//
// The gate: a writer takes the record rw.<name> like a mutex. Readers join by
// writing a record of their own on the condition that the gate is free: the
// server refuses the join when a writer has come first, and from the moment the
// gate stands it admits nobody.
//
// The drain: a writer that has the gate waits until the readers before it have
// gone. Their tombstones are hints. On one replica, what proves it is one answer
// that lists no reader and contains a gate write. On several, whoever answers may
// have been deposed and not know it: it removes by its own clock readers who have
// renewed with its successor. There it takes two answers that list nobody, each
// containing a gate write; the second one's was sent when the first had arrived,
// and the second arrives within proofWindow of the sending of the first one's.
// For let a reader be in neither.
//
//   - It has not renewed between the two gate writes: then it had expired when
//     the first answer was given, and any renewal comes after the second gate
//     write, after its validity.
//   - It has: then the second answer contains that renewal, which was made after
//     the first gate write, and cannot have expired within a proofWindow of it.
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
	proofWindow = MinTTL * 4 / 5
	// drainTries is how many proofs in a row may take too long before the writer
	// gives up: the link is too slow.
	drainTries = 10
)

// errSlowLink says why a writer can never get in.
var errSlowLink = errors.New("the link to the server is too slow")

// rwKeys makes a the acquire of a reader-writer lock.
func (a *acquire) rwKeys() {
	a.shortcut = false
	a.gate = gatePrefix + a.encoded
}

// newClaim makes a claim of what a asks for. A reader's has a key of its own and
// is guarded by the gate; each of its claims is a new reader.
func (a *acquire) newClaim() *claim {
	c := a.e.newClaim(a.spec, a)
	if a.reads() {
		c.spec.key, c.spec.once = a.readerKey(c.id), true
		c.guard = a.gate
	}
	return c
}

func (a *acquire) reads() bool { return a.req.Mode == Shared }

// blocks says whether a waiter that came earlier has to go first.
func (a *acquire) blocks(earlier Entry) bool {
	return !a.reads() || Mode(earlier.Mode) == Exclusive
}

// roll is an answer about the readers.
type roll struct {
	live     []Entry
	knows    bool // it is a leader's, and contains the gate write below
	alone    bool // there are no other replicas
	sent     Instant
	revision uint64
	at       Instant // when it arrived
}

// departures are the readers that have gone since the gate stands.
type departures struct {
	gone map[string]bool // by tombstones that were read

	mu    sync.Mutex
	heard map[string]uint64 // the revisions of tombstones that were only heard of
}

func (d *departures) hear(key string, revision uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.heard[key] = revision
}

// take returns what was heard of key, once: a forged revision must not be waited
// for again and again.
func (d *departures) take(key string) (revision uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	revision = d.heard[key]
	delete(d.heard, key)
	return revision
}

// readersLeft asks the leader who is left.
func (a *acquire) readersLeft(l *Lease, d *departures) (roll, error) {
	ctx, cancel := context.WithTimeout(a.ctx, 2*answerTimeout)
	defer cancel()
	var r roll
	r.sent, r.revision = l.confirmation()
	st, err := a.e.kv.State(ctx, a.readerKey("*"))
	r.at = a.e.now()
	if err != nil {
		return roll{}, err
	}
	r.knows = st.LastRevision >= r.revision && st.Leader != ""
	r.alone = st.Replicas == 1
	deleted := false
	for _, key := range st.Keys {
		if d.gone[key] {
			continue
		}
		// A replica that lags would show a reader whose farewell was heard.
		rec, err := a.e.kv.Get(ctx, key, d.take(key))
		switch {
		case err == nil && rec.Deleted:
			// Dead by its own tombstone, and for ever: ids are not used again.
			d.gone[key] = true
		case err == nil:
			entry := entryOf(rec)
			if entry.overdue(st.Time) {
				if a.e.deleteOverdue(ctx, entry) == nil {
					d.gone[key], deleted = true, true // a renewal would have made the server refuse that
					continue
				}
				entry = Entry{} // it has changed, or is unknown: ask again
			}
			r.live = append(r.live, entry)
		case errors.Is(err, kvstore.ErrNotFound):
			r.live = append(r.live, Entry{}) // a replica lags, or it has just expired: ask again
		default:
			return roll{}, err
		}
	}
	if deleted { // only an answer from after the deletion is a proof
		return a.readersLeft(l, d)
	}
	return r, nil
}

func tooSlow() verdict {
	return verdict{outcome: failed, err: fmt.Errorf("%w: %w: two writes and two answers have to fit into %v", ErrUnavailable, errSlowLink, proofWindow)}
}

// drain waits until no reader is left behind the gate, whose lease is l. It
// returns the zero verdict when the lock is the writer's.
func (a *acquire) drain(l *Lease) verdict {
	look := newSight()
	departed := departures{gone: make(map[string]bool), heard: make(map[string]uint64)}
	var watch kvstore.Watch
	defer func() {
		if watch != nil {
			watch.Stop()
		}
	}()
	back := backstop{place: a.placeTTL()}
	var over lateness
	var first roll     // of a proof by two: nobody was in it
	var renewed uint64 // a gate write sent since; 0: none yet
	for tries := 0; ; {
		r, err := a.readersLeft(l, &departed)
		if len(r.live) > 0 {
			a.holder = &r.live[0]
		}
		if _, _, cause := l.Status(); cause != nil {
			return verdict{outcome: spoilt}
		}
		switch nobody := err == nil && r.knows && len(r.live) == 0; {
		case isAny(err, ErrPermission):
			return verdict{outcome: failed, err: err}
		case nobody && r.alone:
			return verdict{}
		case nobody:
			if renewed != 0 && r.revision >= renewed {
				if r.at.Sub(first.sent) < proofWindow {
					return verdict{}
				}
				if tries++; tries > drainTries {
					return tooSlow()
				}
			}
			// The first of two, if another gate write is acknowledged. When none
			// is, the link is not slow but the server cut off.
			first, renewed = r, 0
			ctx, cancel := context.WithTimeout(a.ctx, answerTimeout)
			if l.confirm(ctx) == nil {
				_, renewed = l.confirmation()
			}
			cancel()
			if a.ctx.Err() == nil && a.e.life.Err() == nil {
				continue
			}
		case len(r.live) > 0 && a.req.Once:
			if reader, ok := a.readerInside(r, &departed); ok {
				return verdict{outcome: busy, entry: reader}
			}
		case err == nil && watch == nil:
			// Looked again after subscribing, so that nothing is missed.
			w, err := a.e.kv.Watch(a.readerKey("*"), func(ev kvstore.Event) {
				switch ev.Kind {
				case kvstore.Put:
					return
				case kvstore.Deleted:
					departed.hear(ev.Record.Key, ev.Record.Revision)
				}
				look.poke()
			})
			if err == nil {
				watch = w
				w.Track(kvstore.Record{})
				if !r.alone { // else the next answer proves the subscription
					_, _ = a.e.probe(a.ctx, a.gate)
				}
				continue
			}
		}
		if a.req.Once && tries > 1 && a.ctx.Err() != nil {
			return tooSlow() // the time for an answer is over before the tries are
		}
		// A mere hint is one from a server that is cut off or electing: it is
		// asked again like one that does not answer.
		tries, renewed = 0, 0
		pause := back.next()
		overdue := false
		for _, e := range r.live {
			switch left := e.Remaining(a.e.kv.Now()); {
			case e.Zero() || left == 0: // listed, and over or not to be read
				overdue = true
			case watch != nil:
				watch.Track(e.Record)
			case left > 0:
				pause = min(pause, left)
			}
		}
		if overdue {
			pause = min(pause, over.next())
		} else {
			over = 0
		}
		timer := time.NewTimer(pause)
		select {
		case <-look.wake:
		case <-timer.C:
		case <-l.ctx.Done():
		case <-a.ctx.Done():
		case <-a.e.life.Done():
		}
		timer.Stop()
		if a.ctx.Err() != nil {
			return verdict{outcome: ended, err: context.Cause(a.ctx)}
		}
		if a.e.life.Err() != nil {
			return verdict{outcome: ended, err: context.Cause(a.e.life)}
		}
	}
}
