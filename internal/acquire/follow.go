package acquire

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
	"github.com/natslock/locks/kvstore"
)

// follower is a waiter behind its predecessor. It reads by its timers (readAt). When the lock
// seems to be free it looks (lookAt): it reads the lock and the whole queue, again and again,
// until somebody has taken the lock or its own window is over; see window.go.
type follower struct {
	a      *acquisition
	place  *session.Place
	pred   record.Entry
	watch  kvstore.Watch // nil: the timers remain
	proven bool          // the subscription is in place
	back   backstop
	late   lateness // of the predecessor's place
	next   bool     // nobody is between the two
	second bool     // the predecessor is the head of the queue
	near   bool     // the predecessor seems to be dead

	heard    clock.Instant // when the predecessor wrote last, as far as is known
	lock     kvstore.Watch // of the lock; nil: not watched
	freed    freed
	windows  []window // of each key of the lock
	jitter   time.Duration
	readAt   clock.Instant
	lookAt   clock.Instant     // 0: nothing is known to be free
	free     map[string]uint64 // the revisions of the keys that the last read has shown free
	again    bool              // the next read is soon, and shows whether they still are
	hinted   bool              // by notifications only
	lookLate lateness          // of the lock's record
	failed   int               // looks in a row without an answer
}

// follow waits behind the predecessor until it has gone, and then reads the queue
// again (relist) or is the first (compete). second says that nobody is before the predecessor.
func (a *acquisition) follow(place *session.Place, pred record.Entry, next, second bool) result {
	a.mailbox.turn(pred.Key)
	f := follower{a: a, place: place, pred: pred, next: next, second: second, back: backstop{place: a.placeTTL()}}
	f.freed.box = a.mailbox
	f.windows = make([]window, 1)
	if a.counts() {
		f.windows = make([]window, a.req.Permits)
	}
	if !second { // which goes first, if it lives
		f.jitter = lookJitter/4 + rand.N(lookJitter*3/4)
	}
	if w, err := a.c.b.Watch(pred.Key, a.mailbox.deliver); err == nil {
		defer w.Stop()
		w.Track(kvstore.Record{}) // also when a clock says that the record is over
		f.watch = w
	}
	defer func() {
		if f.lock != nil {
			f.lock.Stop()
		}
	}()
	f.readAt = a.c.b.Instant()
	f.heard = f.written(pred)
	for {
		timer := a.c.b.Timer(f.pause())
		r, decided := result{}, false
		select {
		case <-a.mailbox.wake:
			r, decided = f.notified()
		case <-timer.C:
			r, decided = f.due()
		case <-a.ctx.Done():
			r, decided = result{outcome: ended, err: a.over()}, true
		}
		a.c.b.TimerDone(timer)
		if decided {
			return r
		}
	}
}

// pause is how long to wait for notifications.
func (f *follower) pause() time.Duration {
	at := f.readAt
	if f.lookAt != 0 {
		at = min(at, f.lookAt)
	}
	if !f.near {
		at = min(at, f.silentAt())
	}
	return at.Sub(f.a.c.b.Instant())
}

// due does what is due.
func (f *follower) due() (result, bool) {
	b := f.a.c.b
	if f.place.Gone() {
		return result{outcome: requeue}, true
	}
	now := b.Instant()
	if !f.near && f.silentAt() <= now {
		f.near, f.readAt = true, now
	}
	if f.readAt <= now {
		// The second waiter, and one whose predecessor seems to be dead, may be the first of
		// those that live. It watches the lock from its second read on: of a lock that goes
		// from hand to hand it is the first before that.
		if f.lock == nil && f.proven && (f.second || f.near) {
			f.watchLock()
		}
		if !f.read() {
			return result{outcome: relist}, true
		}
	}
	if f.lookAt == 0 || f.lookAt > b.Instant() {
		return result{}, false
	}
	return f.look()
}

// notified judges the notifications that have come.
func (f *follower) notified() (result, bool) {
	now := f.a.c.b.Instant()
	ev, recheck := f.a.mailbox.take()
	switch {
	case f.place.Gone():
		return result{outcome: requeue}, true
	case ev.Kind == kvstore.Deleted:
		return result{outcome: f.after(ev.Record)}, true
	case ev.Kind == kvstore.Put && record.Of(ev.Record).ID != f.pred.ID:
		return result{outcome: relist}, true // its tombstone was overtaken
	case ev.Kind == kvstore.Put:
		f.heard = now
	case ev.Kind == kvstore.Expired || recheck:
		f.readAt = now
	}
	if recheck { // another server serves the subscription now, and nothing was seen meanwhile
		f.proven = false
		f.anew()
	}
	// One that is alive takes the lock in a moment, and that is notified too.
	if f.lookAt == 0 && f.freed.any() {
		f.lookAt, f.hinted = now.Add(lookAfter), true
	}
	return result{}, false
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
// proven. It says whether the predecessor is there, and notes when to read again.
func (f *follower) read() (there bool) {
	a, b := f.a, f.a.c.b
	var entry record.Entry
	var err error
	if f.proven {
		entry, err = f.readBeside()
	} else {
		// As the leader has it, from a state no older than the subscription.
		var last uint64
		last, err = b.Probe(a.ctx, f.pred.Key)
		f.proven = err == nil
		if entry = f.pred; f.proven && last != f.pred.Revision {
			entry, err = b.Read(a.ctx, f.pred.Key, last)
		}
	}
	pause := f.back.after(err == nil)
	if f.again {
		pause = min(pause, readAgain)
	}
	defer func() { f.readAt = b.Instant().Add(pause) }()
	if err != nil {
		a.heard(err)
		f.anew()
		return true // not known; the timers will try again
	}
	// Another claim may have its key by now, behind all that have queued since.
	if there = entry.Live() && entry.ID == f.pred.ID; !there {
		return false
	}
	a.heard(nil)
	if f.heard = max(f.heard, f.written(entry)); entry.Remaining(b.Now()) == 0 {
		pause = f.late.next()
		rest, err := b.Clear(a.ctx, []record.Entry{entry})
		return err != nil || len(rest) > 0
	}
	if f.late = 0; f.watch != nil {
		f.watch.Track(entry.Record)
	}
	return true
}

// readBeside reads the predecessor's record, and the lock or some of the slots. A key that is
// free there at the revision of the last read makes it look. One read alone may meet any
// hand-over, and a look reads the whole queue: so it is repeated once, soon.
func (f *follower) readBeside() (now record.Entry, err error) {
	a, b := f.a, f.a.c.b
	keys := []string{a.keys.Gate}
	var beside []record.Entry
	if a.counts() {
		keys = keys[:0]
		for i, begin := 0, rand.IntN(a.req.Permits); i < min(enough, a.req.Permits); i++ {
			keys = append(keys, a.keys.Slot((begin+i)%a.req.Permits))
		}
		var l kvstore.Listing
		if l, err = b.ListSoon(a.ctx, f.pred.Key, f.pred.Revision, kvstore.Also(keys...), kvstore.Tombstones()); err == nil {
			beside = make([]record.Entry, len(keys))
			for _, r := range l.Records {
				if i := slices.Index(keys, r.Key); i >= 0 {
					beside[i] = record.Of(r)
				} else {
					now = record.Of(r)
				}
			}
		}
	}
	if beside == nil { // or this user may not read them with one request
		beside = make([]record.Entry, 1)
		if now, beside[0], err = b.ReadBeside(a.ctx, f.pred, keys[0]); err != nil {
			return now, err
		}
	}
	before, repeated := f.free, f.again
	f.free, f.again = nil, false
	for i, e := range beside {
		switch {
		case f.over(e) || a.bid.mine(e):
			revision, shown := before[keys[i]]
			switch stays := shown && revision == e.Revision; {
			case f.lookAt == 0 && (stays || a.bid.mine(e)):
				f.lookAt, f.hinted = b.Instant(), false
			case !stays:
				f.again = !repeated
			}
			if f.free == nil {
				f.free = make(map[string]uint64)
			}
			f.free[keys[i]] = e.Revision
		case f.lock != nil:
			f.lock.Track(e.Record)
			fallthrough
		default:
			a.saw(e)
		}
	}
	return now, nil
}

// written is when the predecessor has written the place that was read.
func (f *follower) written(pred record.Entry) clock.Instant {
	b := f.a.c.b
	return b.Instant().Add(-max(b.Now().Sub(pred.Time), 0))
}

// silentAt is when the predecessor has not renewed its place for longer than those that live
// do. It proves nothing: the waiter watches the lock then, no more.
func (f *follower) silentAt() clock.Instant {
	return f.heard.Add(f.pred.Record.TTL/3 + renewedLate)
}

// watchLock subscribes to the lock.
func (f *follower) watchLock() {
	pattern := f.a.keys.Gate
	if f.a.counts() {
		pattern = f.a.keys.Slots()
	}
	if w, err := f.a.c.b.Watch(pattern, f.freed.deliver); err == nil {
		w.Track(kvstore.Record{})
		f.lock = w
	}
}
