package call

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
)

// successor is a waiter behind its predecessor. It does the I/O for [core.Successor].
type successor struct {
	core.Successor
	a      *Call
	place  *session.Place
	w      *core.Waiter
	watch  kvstore.Watch // nil if subscribing failed, which leaves only the timers
	back   backstop
	lock   kvstore.Watch // nil while the lock is not watched
	freed  freed
	slots  []string // read along with the predecessor's place
	failed int      // consecutive unanswered scans
}

// awaitPredecessor waits until the predecessor is gone. The result is relist if the queue must be read again, and
// compete if the waiter is now first.
func (a *Call) awaitPredecessor(place *session.Place, w *core.Waiter, ahead core.Ahead) result {
	pred := ahead.Pred
	a.mailbox.turn(pred.Key)
	f := successor{a: a, place: place, w: w, back: backstop{place: a.placeTTL()}, Successor: core.Successor{
		ID: place.ID(), Ahead: ahead, Counts: a.Counts(), Shared: a.Req.Kind == record.RW, Seeks: w.Seeks(),
	}}
	f.freed.box = a.mailbox
	if !f.Second() { // the other waiters leave the lock to the second waiter, if it is alive
		f.Jitter = core.ScanJitter/4 + rand.N(core.ScanJitter*3/4)
	}
	if f.Head.Zero() { // far back in the queue, the next read can wait
		f.back.tries = len(early) - 1
	}
	if w, err := a.c.b.Watch(pred.Key, a.mailbox.deliver); err == nil {
		defer w.Stop()
		w.Track(kvstore.Record{}) // even if a clock says that the record has expired
		f.watch = w
	}
	defer func() {
		if f.lock != nil {
			f.lock.Stop()
		}
	}()
	f.Begin(max(a.Req.Permits, 1), f.written(pred), a.c.b.Instant())
	for {
		timer := a.c.b.Timer(f.At().Sub(a.c.b.Instant()))
		r, decided := result{}, false
		select {
		case <-a.mailbox.wake:
			r, decided = f.notified()
		case <-timer.C:
			r, decided = f.due()
		case <-a.ctx.Done():
			r, decided = result{Outcome: ended, Err: a.Over()}, true
		}
		a.c.b.TimerDone(timer)
		if decided {
			return r
		}
	}
}

// due reads the predecessor's place and scans the lock, if either is due.
func (f *successor) due() (result, bool) {
	b := f.a.c.b
	if f.place.Gone() {
		return result{Outcome: requeue}, true
	}
	reads, watches := f.Due(b.Instant())
	if watches && f.lock == nil {
		f.watchLock()
	}
	if reads {
		first := !f.Proven
		ctx, cancel := f.a.mailbox.untilDeleted(f.a.ctx)
		defer cancel()
		if now, there := f.read(ctx); !there {
			return result{Outcome: relist, Entry: now}, true
		}
		if f.Own != "" {
			k, _ := record.ParseKey(f.Own)
			f.Own = ""
			return f.take(k.Slot, 0)
		}
		if !first && f.Head.Zero() && f.w.Peeks() && f.short(ctx) {
			f.w.Seek(b.Instant(), f.a.placeTTL()/3)
			return result{Outcome: relist}, true
		}
	}
	if !f.Scans(b.Instant()) {
		return result{}, false
	}
	return f.scan()
}

// short reports whether the queue may be short after all, which is the case if the waiter knows the least recently
// written place. To find that place, the server has to look at the whole queue. So the waiter first makes a cheap read
// of a known place ahead of its predecessor: if that place is still there, the predecessor is not the head.
func (f *successor) short(ctx context.Context) bool {
	if e := f.w.Beyond(f.Pred.ID); !e.Zero() {
		if now, err := f.a.c.b.Read(ctx, e.Key, 0); err != nil || now.Live() && now.ID == e.ID {
			return false
		}
	}
	l, err := f.a.c.b.ListSoon(ctx, f.a.Keys.Place("*"), f.place.Ticket(), kvstore.From(1), kvstore.AtMost(1))
	return err == nil && len(l.Records) > 0 && f.w.Knows(record.Of(l.Records[0]).ID)
}

// notified handles the pending notifications.
func (f *successor) notified() (result, bool) {
	now := f.a.c.b.Instant()
	ev, recheck := f.a.mailbox.one()
	switch {
	case f.place.Gone():
		return result{Outcome: requeue}, true
	case ev.Kind == kvstore.Deleted:
		if body, err := record.Decode(ev.Record.Value); err == nil && f.First(body) {
			return result{Outcome: compete}, true
		}
		return result{Outcome: relist}, true // a notification may be forged, including its revision
	case ev.Kind == kvstore.Put && record.Of(ev.Record).ID != f.Pred.ID:
		return result{Outcome: relist}, true // a later record has replaced the predecessor's tombstone
	case ev.Kind == kvstore.Put:
		f.PlaceWritten(now)
	case ev.Kind == kvstore.Expired || recheck:
		f.Doubt(now)
	}
	if recheck {
		f.SubscriptionMoved()
	}
	if f.freed.any() {
		f.LockFreed(now)
	}
	return result{}, false
}

// read reads the predecessor's place and, once the subscription is proven, the lock along with it. It returns the
// record it found, and whether the predecessor is still there. A notification that the predecessor is gone cuts the
// read short, because the tombstone, which is read next, lives for only a second.
func (f *successor) read(ctx context.Context) (entry record.Entry, there bool) {
	a, b := f.a, f.a.c.b
	var err error
	if f.Proven {
		entry, err = f.readBeside(ctx)
	} else {
		// Read the leader's version of the place, from a state no older than the subscription.
		var last uint64
		last, err = b.ProbeWithin(ctx, listWithin/2<<min(f.back.silent, 1), f.Pred.Key)
		f.Proven = err == nil
		if entry = f.Pred; f.Proven && last != f.Pred.Revision {
			entry, err = b.Read(ctx, f.Pred.Key, last)
		}
	}
	pause := f.back.after(err == nil)
	if err != nil {
		if ctx.Err() == nil || a.ctx.Err() != nil {
			a.RequestAnswered(err)
		}
		f.ReadFailed(b.Instant(), pause)
		return entry, true // unknown; the timers will try again
	}
	there, over := f.PlaceRead(entry, f.written(entry), b.Instant(), entry.Remaining(b.Now()), pause)
	if !there {
		return entry, false
	}
	a.RequestAnswered(nil)
	if over {
		rest, err := b.Clear(a.ctx, []record.Entry{entry})
		return entry, err != nil || len(rest) > 0
	}
	if f.watch != nil {
		f.watch.Track(entry.Record)
	}
	return entry, true
}

// readBeside reads the predecessor's place along with the lock or some of its slots.
func (f *successor) readBeside(ctx context.Context) (now record.Entry, err error) {
	a, b := f.a, f.a.c.b
	keys := []string{a.Keys.Gate}
	var beside []record.Entry
	if a.Counts() {
		if len(f.slots) == 0 || !f.Near() && len(f.slots) > 1 || f.Near() && len(f.slots) == 1 {
			f.chooseSlots()
		}
		keys = f.slots
		var l kvstore.Listing
		if l, err = b.ListSoon(ctx, f.Pred.Key, f.Pred.Revision, kvstore.Also(keys...), kvstore.Tombstones()); err == nil {
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
	if beside == nil { // a gate, or slots that this user is not allowed to read in one request
		beside = make([]record.Entry, 1)
		if now, beside[0], err = b.ReadBeside(ctx, f.Pred, keys[0]); err != nil {
			return now, err
		}
	}
	for _, i := range f.KeysRead(keys, beside, a.bid.Own(), b.Now(), b.Instant()) {
		if f.lock != nil {
			f.lock.Track(beside[i].Record)
		}
		a.holderSeen(beside[i])
	}
	return now, nil
}

// mostSlots limits how many slots a waiter reads along with its predecessor's place.
const mostSlots = 16

// chooseSlots chooses the slots to read along with the predecessor's place: several for a waiter near the head, one for
// any other.
func (f *successor) chooseSlots() {
	n, begin := f.a.Req.Permits, rand.IntN(f.a.Req.Permits)
	f.slots = nil
	for i := range min(mostSlots, n) {
		if f.slots = append(f.slots, f.a.Keys.Slot((begin+i)%n)); !f.Near() {
			return
		}
	}
}

// written returns when pred was written, by this client's clock.
func (f *successor) written(pred record.Entry) clock.Instant {
	b := f.a.c.b
	return b.Instant().Add(-max(b.Now().Sub(pred.Time), 0))
}

func (f *successor) watchLock() {
	if w, err := f.a.c.b.Watch(f.a.pattern(), f.freed.deliver); err == nil {
		w.Track(kvstore.Record{})
		f.lock = w
	}
}

// scan reads the lock and the queue, and takes the lock out of turn once it has seen it free for long enough. It
// returns false if nothing is decided yet.
func (f *successor) scan() (result, bool) {
	a, b := f.a, f.a.c.b
	if !f.Scan(f.freed.any()) {
		return result{}, false
	}
	if f.Head.Zero() {
		pause := a.placeTTL() / 3
		ctx, cancel := a.mailbox.untilDeleted(a.ctx)
		defer cancel()
		if !f.Looks(f.short(ctx), b.Instant(), pause) {
			return result{}, false
		}
		f.w.Seek(b.Instant(), pause)
		return result{Outcome: relist}, true
	}
	f.freed.forget()
	v := core.View{Sent: b.Instant()}
	var err error
	v.Keys, v.Queue, err = f.view()
	if err != nil {
		a.RequestAnswered(err)
		f.ScanFailed(b.Instant(), clock.OutageBackoff(f.failed))
		f.failed++
		return result{}, false
	}
	f.failed = 0
	v.Own, v.Server, v.Freed = a.bid.Own(), b.Now(), f.freed.any()
	v.Keys, _ = b.Bury(a.ctx, v.Keys...)
	for _, e := range v.Keys {
		if e.Live() && !a.bid.Mine(e) {
			a.RequestAnswered(nil)
			a.holderSeen(e)
			if f.lock != nil {
				f.lock.Track(e.Record)
			}
		}
	}
	switch d, k, revision := f.LockScanned(v, b.Instant()); d {
	case core.ListAgain:
		return result{Outcome: relist}, true
	case core.Take:
		return f.take(k, revision)
	}
	return result{}, false
}

// view reads the lock, the head of the queue, the predecessor's place and the waiter's own.
func (f *successor) view() (keys, queue []record.Entry, err error) {
	a := f.a
	l, err := a.c.b.ListSoon(a.ctx, f.place.Key, f.place.Ticket(), kvstore.Also(a.pattern(), f.Pred.Key, f.Head.Key), kvstore.Tombstones())
	if errors.Is(err, kvstore.ErrApart) {
		keys, queue, _, err = a.readAll(f.place.Ticket())
	}
	if err != nil || keys != nil {
		return keys, queue, err
	}
	keys = make([]record.Entry, max(a.Req.Permits, 1))
	var places []kvstore.Record
	for _, r := range l.Records {
		switch k, ok := record.ParseKey(r.Key); {
		case r.Key == a.Keys.Gate || ok && k.Prefix == record.SlotPrefix:
			if k.Slot < len(keys) {
				keys[k.Slot] = record.Of(r)
			}
		case !r.Deleted:
			places = append(places, r)
		}
	}
	return keys, record.Queue(places), nil
}

// take claims key k out of turn. It returns false if another client was faster.
func (f *successor) take(k int, revision uint64) (result, bool) {
	a := f.a
	a.aim(k)
	r := a.bid.Offer(a.ctx, revision)
	now := a.c.b.Instant()
	switch r.Outcome {
	case free, busy:
		f.Missed(k, now)
		return r, false
	case granted:
		if head, evicts := f.Evicts(k, now); evicts {
			a.passed = head
		}
	}
	return r, true
}

// evict deletes the place of the head that the call has overtaken, unless the place has changed since it was read.
func (a *Call) evict() {
	head := a.passed
	if a.passed = (record.Entry{}); head.Zero() {
		return
	}
	a.c.s.Work.Go(func(ctx context.Context) {
		err := a.c.b.Delete(ctx, head.Key, head.Revision, head.ID) //safety:evicted-as-read
		if err != nil && !errors.Is(err, kvstore.ErrConflict) {
			a.c.s.Logger.Debug("deleting a passed waiter's place failed", "lock", a.Req.Name, "error", err)
		}
	})
}

// freed is the set of a lock's keys that notifications say are free. Notifications are only hints: they make a waiter
// read.
type freed struct {
	box *mailbox // to be signaled

	mu   sync.Mutex
	keys map[string]bool
}

func (f *freed) deliver(ev kvstore.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case ev.Kind == kvstore.Put:
		delete(f.keys, ev.Record.Key)
	case ev.Kind == kvstore.Recheck: // the predecessor's watch reports it too
	default:
		if f.keys == nil {
			f.keys = make(map[string]bool)
		}
		f.keys[ev.Record.Key] = true
		f.box.signal()
	}
}

func (f *freed) any() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.keys) > 0
}

func (f *freed) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.keys)
}
