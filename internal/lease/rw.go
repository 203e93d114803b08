package lease

import (
	"context"
	"errors"
	"fmt"
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
// gone. Their tombstones are hints. What proves it is one answer of the stream's
// leader that lists no reader, contains a gate write, and arrives while the
// server that gave it cannot have been deposed for long enough to have expired,
// by its own clock, readers who renew with its successor.
//
// The queue rule: a reader is first when no earlier writer waits, a writer when
// nobody does. So consecutive readers enter together, and a later reader never
// passes a waiting writer.

// drainTries is how many proofs in a row may come too late before the writer
// gives up: the link is too slow for the TTL.
const drainTries = 10

// errSlowLink says why a writer can never get in.
var errSlowLink = errors.New("the link to the server is too slow for the TTL")

// rwKeys makes a the acquire of a reader-writer lock.
func (a *acquire) rwKeys(encoded string) {
	a.shortcut = false
	a.gate = gatePrefix + encoded
	a.waitKey = rwaitPrefix + encoded + "."
	a.readers = readerPrefix + encoded + "."
}

// newClaim makes a claim of what a asks for. A reader's has a key of its own and
// is guarded by the gate; each of its claims is a new reader.
func (a *acquire) newClaim() *claim {
	c := a.e.newClaim(a.spec, a.body(), a.terms)
	if a.reads() {
		c.spec.key, c.spec.once = a.readers+c.id, true
		c.guard = a.gate
	}
	return c
}

func (a *acquire) reads() bool { return a.req.Mode == Shared }

// blocks says whether a waiter that came earlier has to go first.
func (a *acquire) blocks(earlier Entry) bool {
	return !a.reads() || Mode(earlier.Mode) == Exclusive
}

// currentReaders lists who reads, as a hint.
func (a *acquire) currentReaders() ([]Entry, error) {
	ctx, cancel := context.WithTimeout(a.ctx, answerTimeout)
	defer cancel()
	l, err := a.e.kv.List(ctx, a.readers+"*", 0)
	if err != nil {
		return nil, err
	}
	var readers []Entry
	for _, r := range l.Records {
		readers = append(readers, entryOf(r))
	}
	return readers, nil
}

// worth is what an answer about the readers proves.
type worth uint8

const (
	hint  worth = iota // nothing: who gave it does not know the gate, or does not lead
	late               // nothing: it came too long after the gate write it contains
	proof              // that there are no readers but those in it
)

// readersLeft asks the leader who is left, and says what its answer is worth.
func (a *acquire) readersLeft(l *Lease, gone map[string]bool) (live []Entry, w worth, err error) {
	ctx, cancel := context.WithTimeout(a.ctx, 2*answerTimeout)
	defer cancel()
	sent, revision, margin := l.confirmation()
	st, err := a.e.kv.State(ctx, a.readers+"*")
	at := a.e.now()
	if err != nil {
		return nil, hint, err
	}
	// On one replica whoever answers is whoever has acknowledged the gate,
	// before this was asked. On several it may be a leader that does not know
	// yet that it is none.
	switch {
	case st.LastRevision < revision || st.Leader == "":
		w = hint
	case st.Replicas > 1 && at.Sub(sent) >= margin/2:
		w = late
	default:
		w = proof
	}
	for _, key := range st.Keys {
		if gone[key] {
			continue
		}
		r, err := a.e.kv.Get(ctx, key, 0)
		switch {
		case err == nil && r.Deleted:
			// Dead by its own tombstone, and for ever: ids are not used again.
			gone[key] = true
		case err == nil:
			live = append(live, entryOf(r))
		case errors.Is(err, kvstore.ErrNotFound):
			live = append(live, Entry{}) // a replica lags, or it has just expired: ask again
		default:
			return nil, hint, err
		}
	}
	return live, w, nil
}

// drain waits until no reader is left behind the gate, whose lease is l. It
// returns the zero verdict when the lock is the writer's.
func (a *acquire) drain(l *Lease) verdict {
	look := newSight()
	gone := make(map[string]bool)
	var watch kvstore.Watch
	defer func() {
		if watch != nil {
			watch.Stop()
		}
	}()
	var back backstop
	var over lateness
	var counted uint64 // the gate write last seen to be proven too late
	for tries := 0; ; {
		live, worth, err := a.readersLeft(l, gone)
		if len(live) > 0 {
			a.holder = live[0]
		}
		if _, _, cause := l.Status(); cause != nil {
			return verdict{outcome: spoilt}
		}
		switch {
		case isAny(err, ErrPermission):
			return verdict{outcome: failed, err: err}
		case err == nil && len(live) == 0 && worth == proof:
			return verdict{}
		case err == nil && len(live) == 0 && worth == late:
			// Nobody there, but the answer proves nothing: with a newer gate
			// write the next one may. Each write counts once: when none is
			// acknowledged, the link is not slow but the server cut off.
			_, revision, margin := l.confirmation()
			if revision != counted {
				counted = revision
				tries++
			}
			if tries > drainTries {
				return verdict{outcome: failed, err: fmt.Errorf("%w: %w: a write and an answer have to fit into %v; use a longer TTL", ErrUnavailable, errSlowLink, margin/2)}
			}
			ctx, cancel := context.WithTimeout(a.ctx, answerTimeout)
			_ = l.confirm(ctx)
			cancel()
			if a.ctx.Err() == nil && a.e.life.Err() == nil {
				continue
			}
		case err == nil && len(live) > 0 && a.req.Once:
			return verdict{outcome: busy, entry: live[0]}
		case err == nil && watch == nil:
			// Looked again after subscribing, so that nothing is missed.
			w, err := a.e.kv.Watch(a.readers+"*", func(ev kvstore.Event) {
				if ev.Kind != kvstore.Put {
					look.poke()
				}
			})
			if err == nil {
				watch = w
				continue
			}
		}
		// A mere hint is one from a server that is cut off or electing: it is
		// asked again like one that does not answer.
		tries = 0
		pause := back.next()
		for _, r := range live {
			switch left := r.Remaining(time.Now()); {
			case r.Zero() || left == 0: // listed, and over or not to be read
				pause = min(pause, over.next())
			case watch != nil:
				watch.Track(r.Record)
			case left > 0:
				pause = min(pause, left)
			}
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
