package call

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/claim"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
)

// The reader-writer lock works like the mutex, with three additions.
//
// The gate: a writer takes the record rw.<name> as it would take a mutex. Readers join by writing their own records on
// the condition that the gate is free, and the server refuses those writes if a writer came first. Once in place, the
// gate admits no readers.
//
// The drain: a writer that has the gate waits for the readers ahead of it to leave. This file does the I/O for
// [core.Drain].
//
// The queue rule: a reader is first if no writer waits ahead of it, and a writer is first if nobody waits ahead of it.
// So consecutive readers enter together, and a reader never overtakes a writer that was already waiting.

// errSlowLink explains why a writer can never get in.
var errSlowLink = errors.New("the link to the server is too slow")

// drain is a writer's wait behind its gate.
type drain struct {
	core.Drain
	a       *Call
	gate    *session.Lease
	mailbox *mailbox
	watch   kvstore.Watch // nil before the subscription
	back    backstop
	err     error // the last request's error

	mu       sync.Mutex
	departed map[string]uint64 // revisions of notified tombstones that the core has not seen yet
}

// Drain waits until the last reader has left. It returns granted once the writer has the lock, and lost if the gate is
// gone.
func (a *Call) Drain(gate *session.Lease) claim.Result {
	d := drain{a: a, gate: gate, mailbox: newMailbox(), back: backstop{place: a.placeTTL()}, Drain: core.Drain{Once: a.Req.Once}}
	gate.OnEnd(d.mailbox.signal)
	defer a.WhileGranting()()
	settled := func() bool { return true }
	if a.Req.Fixed && a.Req.Until.IsZero() { // the TTL is meant for the caller's work, so the gate is renewed during the drain
		settled = gate.Keep() //safety:drain-kept
		defer settled()
	}
	defer func() {
		if d.watch != nil {
			d.watch.Stop()
		}
	}()
	for s := d.ask(); ; {
		// Once the gate has ended, readers may join again, and its lease admits no writer.
		if _, _, cause := gate.Status(); cause != nil {
			return result{Outcome: lost}
		}
		switch s.Do {
		case core.Drained:
			// A process with no memory of this drain may extend the gate later. If the server stored a delayed renewal
			// only then, that process would mistake it for proof that no other client could have got in before it.
			if settled() {
				return result{Outcome: granted}
			}
			if err := gate.Confirm(a.ctx); err != nil {
				a.RequestAnswered(err)
			}
			s = core.DrainStep{}
		case core.ReaderInside:
			return result{Outcome: busy, Entry: s.Entry}
		case core.DrainForbidden:
			return result{Outcome: failed, Err: d.err}
		case core.LinkTooSlow:
			return tooSlow()
		}
		if cause := a.Over(); cause != nil {
			if d.Slow() {
				return tooSlow()
			}
			return result{Outcome: ended, Err: cause}
		}
		switch s.Do {
		case core.AskReaders:
			s = d.ask()
		case core.ConfirmGate:
			s = d.confirm()
		case core.WatchReaders:
			s = d.subscribe(s.Probes)
		default:
			s = d.wait(s.Knows)
		}
	}
}

// ask asks the leader which readers are left, and reads or deletes their records as the core decides.
func (d *drain) ask() core.DrainStep {
	a, b := d.a, d.a.c.b
	ctx, cancel := context.WithTimeout(a.ctx, 2*bucket.AnswerTimeout)
	defer cancel()
	sent, gate := d.gate.Confirmation()
	st, err := b.State(ctx, a.Keys.Reader("*"))
	at := b.Instant()
	d.takeDepartures()
	s := d.ReadersListed(core.ReaderList{
		Keys: st.Keys, Last: st.LastRevision, Complete: st.Complete, Replicas: st.Replicas, Created: st.Created, Time: st.Time,
		At: at, Gate: gate, Sent: sent, Alone: b.Alone(),
	}, failureOf(err))
	for s.Do == core.ReadReader || s.Do == core.DeleteReader {
		if s.Do == core.DeleteReader {
			s = d.OverdueDeleted(b.DeleteOverdue(ctx, s.Entry) == nil)
			continue
		}
		var entry record.Entry
		var rec kvstore.Record
		if rec, err = b.Get(ctx, s.Key, s.Revision); err == nil {
			entry = record.Of(rec)
		} else if errors.Is(err, kvstore.ErrNotFound) {
			err = nil
		}
		d.takeDepartures()
		s = d.ReaderRead(entry, failureOf(err))
	}
	if s.Do == core.GateRemade {
		a.c.s.Verify(ctx)
		err = kvstore.ErrRemade
	}
	if len(d.Left) > 0 {
		a.holderSeen(d.Left[0])
	}
	if err != nil || len(d.Left) > 0 {
		a.RequestAnswered(err)
	}
	d.err = err
	return s
}

func failureOf(err error) core.Failure {
	switch {
	case err == nil:
		return core.NoFailure
	case bucket.IsAny(err, bucket.ErrPermission):
		return core.NotPermitted
	case bucket.IsAny(err, kvstore.ErrWithheld):
		return core.Withheld
	}
	return core.NoAnswer
}

// confirm renews the gate immediately and waits for the acknowledgment.
func (d *drain) confirm() core.DrainStep {
	ctx, cancel := context.WithTimeout(d.a.ctx, bucket.AnswerTimeout)
	defer cancel()
	return d.GateConfirmed(d.gate.Confirm(ctx) == nil)
}

// subscribe starts watching the readers.
func (d *drain) subscribe(probes bool) core.DrainStep {
	b := d.a.c.b
	d.departed = make(map[string]uint64)
	w, err := b.Watch(d.a.Keys.Reader("*"), func(ev kvstore.Event) {
		switch ev.Kind {
		case kvstore.Put:
			return
		case kvstore.Deleted:
			d.mu.Lock()
			d.departed[ev.Record.Key] = ev.Record.Revision
			d.mu.Unlock()
		}
		d.mailbox.signal()
	})
	if err == nil {
		d.watch = w
		w.Track(kvstore.Record{})
		if probes {
			_, _ = b.Probe(d.a.ctx, d.a.Keys.Gate)
		}
	}
	return d.SubscriptionMade(err == nil)
}

// takeDepartures passes the notified departures on to the core.
func (d *drain) takeDepartures() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for key, revision := range d.departed {
		d.ReaderDeparted(key, revision)
	}
	clear(d.departed)
}

// wait waits until a notification arrives or the next read is due. answered is true if the leader answered the last
// read.
func (d *drain) wait(answered bool) core.DrainStep {
	b := d.a.c.b
	pause := d.Pause(d.back.after(answered), b.Now())
	if d.watch != nil {
		for _, e := range d.Left {
			d.watch.Track(e.Record)
		}
	}
	timer := b.Timer(pause)
	defer b.TimerDone(timer)
	select {
	case <-d.mailbox.wake:
	case <-timer.C:
	case <-d.a.ctx.Done():
	}
	return core.DrainStep{Do: core.AskReaders}
}

func tooSlow() result {
	return result{Outcome: failed, Err: fmt.Errorf("%w: %w: two round trips must complete within %v", bucket.ErrUnavailable, errSlowLink, core.ProofWindow)}
}
