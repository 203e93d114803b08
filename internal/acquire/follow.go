package acquire

import (
	"math/rand/v2"
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
	"github.com/natslock/locks/kvstore"
)

const (
	// idleFor is how long a waiter sees the lock free before it takes it out
	// of turn: a paused first waiter holds nobody up.
	idleFor = 1200 * time.Millisecond
	// idleRead is how often it reads meanwhile: more often than a tombstone
	// lives, so that no change goes unseen.
	idleRead = 400 * time.Millisecond
)

// follower is a waiter behind its predecessor.
type follower struct {
	a      *acquisition
	pred   record.Entry
	watch  kvstore.Watch // nil: the timers remain
	proven bool          // the subscription is in place
	back   backstop
	late   lateness
	idle   idleness
	next   bool // nobody is between the two
	slot   int  // of a semaphore: the slot that idle is about

	slots        []idleness // of a semaphore, from slot begin on
	begin, timed int        // idle is about the slot with the index timed
}

// idleness is since when the lock was seen free, and with what tombstone.
type idleness struct {
	since    clock.Instant
	revision uint64
}

// follow waits behind the predecessor until it has gone, and then reads the queue
// again (relist) or is the first (compete).
func (a *acquisition) follow(place *session.Place, pred record.Entry, next bool) result {
	a.mailbox.turn(pred.Key)
	f := follower{a: a, pred: pred, next: next, back: backstop{place: a.placeTTL()}}
	if w, err := a.c.b.Watch(pred.Key, a.mailbox.deliver); err == nil {
		defer w.Stop()
		w.Track(kvstore.Record{}) // also when a clock says that the record is over
		f.watch = w
	}
	there, _, pause := f.read()
	if !there {
		return result{outcome: relist}
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case <-a.mailbox.wake:
			ev, recheck := a.mailbox.take()
			switch {
			case place.Gone():
				return result{outcome: requeue}
			case ev.Kind == kvstore.Deleted:
				return result{outcome: f.after(ev.Record)}
			case ev.Kind == kvstore.Put && record.Of(ev.Record).ID != pred.ID:
				return result{outcome: relist} // its tombstone was overtaken
			case ev.Kind == kvstore.Expired || recheck:
				f.proven = f.proven && !recheck // another server serves the subscription now
				timer.Reset(0)
			}
		case <-timer.C:
			if place.Gone() {
				return result{outcome: requeue}
			}
			var gate *record.Entry
			if there, gate, pause = f.read(); !there {
				return result{outcome: relist}
			}
			if gate != nil && f.idleLong(*gate) {
				// Its turn or not, the lock has been free for a while.
				if a.counts() {
					a.aim(f.slot)
				}
				switch r := a.bid.offer(f.idle.revision); r.outcome {
				case free, busy:
					f.idle = idleness{}
				default:
					return r
				}
			}
			if f.idle.since != 0 {
				pause = min(pause, idleRead)
			}
			timer.Reset(pause)
		case <-a.ctx.Done():
			return result{outcome: ended, err: a.over()}
		case <-a.c.b.Granting().Done():
			return result{outcome: ended, err: a.over()}
		}
	}
}

// after is what follows the tombstone of the predecessor. The tombstone of a first waiter
// that was granted makes its successor the first. It does not where another waiter is
// between the two, nor among readers, of which several can be granted at once.
func (f *follower) after(tombstone kvstore.Record) outcome {
	body, err := record.Decode(tombstone.Value)
	if err == nil && body.Status == record.StatusGranted && body.ID == f.pred.ID && f.a.req.Kind != record.RW && f.next { //safety:no-shortcut
		return compete
	}
	return relist
}

// read reads the predecessor's record, and the lock beside it once the subscription is
// proven. It returns when to read again.
func (f *follower) read() (there bool, gate *record.Entry, pause time.Duration) {
	a, b := f.a, f.a.c.b
	var entry record.Entry
	var err error
	if f.proven {
		var beside record.Entry
		if entry, beside, err = f.readBeside(); err == nil {
			gate = &beside
		}
	} else {
		// As the leader has it, from a state no older than the subscription.
		var last uint64
		last, err = b.Probe(a.ctx, f.pred.Key)
		f.proven = err == nil
		if entry = f.pred; f.proven && last != f.pred.Revision {
			entry, err = b.Read(a.ctx, f.pred.Key, last)
		}
	}
	pause = f.back.after(err == nil)
	if err != nil {
		a.heard(err)
		return true, nil, pause // not known; the timers will try again
	}
	// Another claim may have its key by now, behind all that have queued since.
	if there = entry.Live() && entry.ID == f.pred.ID; there {
		a.heard(nil)
	}
	if there && entry.Remaining(b.Now()) == 0 {
		pause = f.late.next()
		rest, err := b.Clear(a.ctx, []record.Entry{entry})
		there = err != nil || len(rest) > 0
	} else if f.late = 0; f.watch != nil {
		f.watch.Track(entry.Record)
	}
	return there, gate, pause
}

// readBeside reads the predecessor's record and the lock.
func (f *follower) readBeside() (now, gate record.Entry, err error) {
	if f.a.counts() {
		return f.readSlotBeside()
	}
	return f.a.c.b.ReadBeside(f.a.ctx, f.pred, f.a.keys.Gate)
}

// idleLong says whether the lock, read a moment ago, has been free for long enough,
// with jitter by rank, to be claimed out of turn at idle.revision.
func (f *follower) idleLong(gate record.Entry) bool {
	a, idle := f.a, &f.idle
	if a.bid.mine(gate) {
		idle.revision = 0
		return true
	}
	if gate.Live() && !a.c.b.Overdue(a.ctx, gate) {
		a.saw(gate)
		*idle = idleness{}
		return false
	}
	now := a.c.b.Instant()
	if idle.since == 0 || (gate.Revision != 0 && gate.Revision != idle.revision) {
		*idle = idleness{since: now, revision: gate.Revision}
		return false
	}
	idle.revision = gate.Revision
	rank := time.Second
	if a.bid.ahead > 0 { // known, so far
		rank = min(time.Duration(a.bid.ahead)*20*time.Millisecond, rank)
	}
	return now.Sub(idle.since) >= idleFor+rank+rand.N(rank+1) //safety:idle-lock
}
