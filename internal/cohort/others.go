package cohort

import (
	"cmp"
	"context"
	"errors"
	"math"
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
)

const (
	// silence limits the age of a list that showed no waiters, because the notification of a place may be lost.
	silence = time.Second
	// idleSilence is the same limit for entering an idle lease. Waiters renew their places at least this often, and
	// each renewal triggers another notification.
	idleSilence = 5 * time.Second
)

// standing is what a client knows about whether anyone outside a cohort wants the cohort's lock. A mistake costs
// fairness for a moment, but never exclusion.
type standing uint8

const (
	unknown standing = iota
	nobody
	somebody
)

// others is what a client knows about other clients' places in the queue of a lock. A lock usually has no others while
// only one of the client's goroutines wants it.
//
// A list shows what happened before it was read, and the subscription shows what happens later. So a list is valid only
// if the subscription was in place when the list was requested, which is proven by the leader's answer to a write or
// probe sent after subscribing. The proof ends when another server takes over the subscription.
//
// others is plain data, guarded by Client.mu.
type others struct {
	queueIn, gateIn bool          // the client has subscribed to the queue and to the gate, respectively
	asked           [2]bool       // for the queue and the gate: the client has subscribed or is about to
	proven          clock.Instant // since when the subscriptions are known to be in place; 0 if not known
	epoch           uint32        // how many times the proof has ended
	listedAt        clock.Instant // when the last list of the whole queue was requested; 0 if never
	listing         bool          // a list is under way
	gate            gateSeen

	places map[string]seat
	gone   map[string]departure
	swept  clock.Instant
}

// seat is another client's place.
type seat struct {
	reads bool
	at    clock.Instant // when it was last seen
	until clock.Instant // upper bound on the end of its TTL
}

// departure is the tombstone of a place, which an older list may still show.
type departure struct {
	revision uint64
	at       clock.Instant
}

// gateSeen is the last known record of the gate of a lock for which the client has readers.
type gateSeen struct {
	entry    *record.Entry // the last live record; nil if there is none
	live     bool          // the last record is not a tombstone
	listedAt clock.Instant // when the gate was last read along with the queue; 0 if never
	revision uint64
	at       clock.Instant // when the last record became known
	until    clock.Instant // upper bound on the end of its TTL
}

func (g *gateSeen) inPlace(now clock.Instant) bool { return g.live && now < g.until }

// subscribed records a new subscription to the gate or the queue.
func (o *others) subscribed(gate bool) {
	if gate {
		o.gateIn = true
	} else {
		o.queueIn = true
	}
	o.moved() // the answer to an earlier write does not prove this subscription //safety:gate-subscribed
}

// moved ends the proof of the subscriptions, because one of them is new or is served by another server.
func (o *others) moved() {
	o.proven = 0 //safety:queue-recheck
	o.epoch++
}

// prove records that the subscriptions have been in place at least since the given time, unless their proof has ended
// since epoch.
func (o *others) prove(since clock.Instant, epoch uint32) {
	if o.proven == 0 && o.epoch == epoch {
		o.proven = since
	}
}

// proves reports whether the client would learn of a new waiter.
func (o *others) proves(reads bool) bool {
	return o != nil && o.proven != 0 && o.queueIn && (!reads || o.gateIn)
}

// fresh reports whether a list that was requested at time at is still valid.
func (o *others) fresh(at, now clock.Instant) bool {
	// A list from before the subscription misses what happened in between.
	return o.proven != 0 && at != 0 && at >= o.proven && now.Sub(at) < silence //safety:silence-bounded
}

// quiet reports whether a goroutine may enter an idle lease as far as other clients are concerned.
func (o *others) quiet(reads bool, now clock.Instant) bool {
	at := o.heardAt(reads)
	return o.proves(reads) && at != 0 && at >= o.proven && now.Sub(at) < idleSilence //safety:linger-informed
}

// heardAt returns when the queue, and for readers also the gate, was last listed, or 0 if it never was.
func (o *others) heardAt(reads bool) clock.Instant {
	if o == nil {
		return 0
	}
	if !reads {
		return o.listedAt
	}
	if o.listedAt == 0 || o.gate.listedAt == 0 {
		return 0
	}
	return min(o.listedAt, o.gate.listedAt)
}

// standing judges by the known places and, for readers, by the gate. Readers do not block readers.
func (o *others) standing(reads bool, now clock.Instant) standing {
	switch {
	case o == nil:
		return unknown
	case o.earliest(reads, now) != 0:
		return somebody
	case o.proves(reads) && o.fresh(o.heardAt(reads), now):
		return nobody
	}
	return unknown
}

// earliest returns when the first of the records that keep goroutines out ends, or 0 if there is none. It forgets
// places whose TTL has expired.
func (o *others) earliest(reads bool, now clock.Instant) (until clock.Instant) {
	note := func(end clock.Instant) {
		if until == 0 || end < until {
			until = end
		}
	}
	for key, s := range o.places {
		switch {
		case now >= s.until:
			delete(o.places, key)
		case !(reads && s.reads):
			note(s.until)
		}
	}
	if reads && o.gate.inPlace(now) {
		note(o.gate.until)
	}
	return until
}

// placeSeen records another client's place, from a notification or from a list that was requested at listedAt. For a
// notification, listedAt is 0. A list overrides a tombstone that was known before the list was requested, because a
// notification may be forged.
func (o *others) placeSeen(e record.Entry, listedAt, now clock.Instant) {
	if e.Unreadable || e.Status != record.StatusWaiting {
		return
	}
	if d := o.gone[e.Key]; d.revision > e.Revision && (listedAt == 0 || listedAt < d.at) { //safety:departure-listed
		return
	}
	if o.places == nil {
		o.places = make(map[string]seat)
	}
	o.places[e.Key] = seat{record.Mode(e.Mode) == record.Shared, now, now.Add(e.Record.TTL + record.OverdueSlack)}
}

// listed completes a list of the whole queue that was requested at time at, after its places have been recorded. It
// forgets any place that was last seen before the request and is not in the list. Either the place's TTL has expired,
// which triggers no notification, or the place never existed, because its notification was forged.
func (o *others) listed(at clock.Instant) {
	o.listedAt = at
	for key, s := range o.places {
		if s.at < at { //safety:ended-place-forgotten
			delete(o.places, key)
		}
	}
}

// placeGone records the tombstone of a place and forgets old tombstones.
func (o *others) placeGone(key string, revision uint64, now clock.Instant) {
	delete(o.places, key)
	if o.gone == nil {
		o.gone = make(map[string]departure)
	}
	o.gone[key] = departure{revision, now}
	if o.swept == 0 || now.Sub(o.swept) > record.TombstoneLife {
		o.swept = now
		for key, d := range o.gone {
			if now.Sub(d.at) > 2*record.TombstoneLife {
				delete(o.gone, key)
			}
		}
	}
}

// gateSeen records the gate, from a notification or from a list that was requested at listedAt. For a notification,
// listedAt is 0. A list overrides anything that was known before the list was requested, because a notification may be
// forged.
func (o *others) gateSeen(e record.Entry, listedAt, now clock.Instant) {
	g := &o.gate
	if e.Revision < g.revision && (listedAt == 0 || listedAt < g.at) {
		return
	}
	switch {
	case listedAt != 0:
		g.listedAt = listedAt
	case !e.Live(): // the notification may be forged, so a list has to show that the gate is gone
		g.listedAt = 0
	}
	g.revision, g.live, g.at = e.Revision, e.Live(), now
	if g.live {
		g.entry = &e
	}
	if g.until = now.Add(e.Record.TTL + record.OverdueSlack); e.Record.TTL == 0 {
		g.until = math.MaxInt64
	}
}

// standing returns what is known about others, outside the cohort, that want the lock: other clients, and goroutines of
// this client that the cohort's record cannot serve.
func (l *lock) standing(k *cohort, now clock.Instant) standing {
	for _, x := range l.cohorts {
		switch {
		case x == k || x.reads() && k.reads():
		case x.fifo.n > 0, k.reads() && (x.founder || len(x.tenures) > 0):
			return somebody
		}
	}
	return l.others.standing(k.reads(), now)
}

// anyReads reports whether any of the lock's cohorts is for readers, which makes the gate relevant.
func (l *lock) anyReads() bool {
	for _, k := range l.cohorts {
		if k.reads() {
			return true
		}
	}
	return false
}

// changed must be called when the client has learned more about others that want the lock.
func (l *lock) changed(now clock.Instant) {
	for i := len(l.cohorts) - 1; i >= 0; i-- {
		k := l.cohorts[i]
		standing := l.standing(k, now)
		if standing == nobody {
			k.clear = k.asked
		}
		waits := standing == somebody
		for j := len(k.tenures) - 1; j >= 0; j-- {
			t := k.tenures[j]
			switch {
			case waits && t.idle: //safety:place-recalls
				t.recall()
			case waits && !t.marked: //safety:mark-once
				// Goroutines that asked after k.clear may have come after the first of the others.
				t.marked, t.mark = true, k.clear
			}
		}
		if k.reads() && k.fifo.n > 0 && len(k.tenures) > 0 && k.tenures[0].inside > 0 {
			k.serve(k.tenures[0], nil, now)
		}
	}
	l.contend(now)
}

// wakeReaders schedules a list for readers that are waiting alongside a lease, in case no notification comes first. The
// queue is listed when the first record that keeps the readers out ends, or after a while, because the client may miss
// that end.
func (l *lock) wakeReaders(now clock.Instant) {
	if l.blocked != nil {
		return
	}
	until := now.Add(silence) // used if the last list failed
	if l.others != nil {
		until = min(cmp.Or(l.others.earliest(true, now), until), now.Add(2*silence))
	}
	l.blocked = time.AfterFunc(until.Sub(now), func() {
		l.c.mu.Lock()
		defer l.c.unlock()
		l.blocked = nil
		if len(l.cohorts) > 0 {
			l.list()
		}
	})
}

// refresh lists the queue before the last list becomes too old.
func (l *lock) refresh(now clock.Instant) {
	if o := l.others; o != nil && o.fresh(o.listedAt, now) && now.Sub(o.listedAt) < silence/2 {
		return
	}
	l.list()
}

// list subscribes to the queue and lists it, in the background.
func (l *lock) list() {
	o := l.others
	if o == nil {
		o = &others{}
		l.others = o
	}
	if o.listing {
		return
	}
	o.listing = true
	l.c.s.Work.Go(func(ctx context.Context) {
		err := l.inform(ctx, o)
		if err != nil {
			l.c.s.Logger.Debug("listing the queue failed", "key", l.keys.Gate, "error", err)
		}
		l.c.mu.Lock()
		defer l.c.unlock()
		l.listed(l.c.b.Instant())
		o.listing = false // last, so that whatever the list did not show cannot trigger another list immediately
	})
}

// listed must be called after each list, whether or not the list succeeded.
func (l *lock) listed(now clock.Instant) {
	l.changed(now)
	for i := len(l.cohorts) - 1; i >= 0; i-- {
		k := l.cohorts[i]
		for j := len(k.tenures) - 1; j >= 0; j-- {
			if t, h := k.tenures[j], k.fifo.first; t.deciding && !k.founder && (h == nil || k.judge(t, h, now) == askFirst) {
				t.giveUp(nil) // the server is not answering, so others go first
			}
		}
		k.decide(now)
	}
}

// decide serves the undecided leases, which have no holder inside but may have goroutines waiting for them.
func (k *cohort) decide(now clock.Instant) {
	for j := len(k.tenures) - 1; j >= 0; j-- {
		if t := k.tenures[j]; t.deciding {
			t.deciding = false
			k.serve(t, nil, now)
		}
	}
}

// inform subscribes to the queue and lists it, together with the gate if the client has readers. It waits for the
// server.
func (l *lock) inform(ctx context.Context, o *others) error {
	c := l.c
	l.subscribe()
	c.mu.Lock()
	proven, epoch, reads := o.proven != 0, o.epoch, l.anyReads()
	subscribed := o.queueIn && (o.gateIn || !reads)
	c.mu.Unlock()
	switch {
	case !subscribed: // a list would not be valid
		return errNoWatch
	case !proven:
		if _, err := c.b.Probe(ctx, l.probed()); err != nil {
			return err
		}
		c.mu.Lock()
		o.prove(c.b.Instant(), epoch)
		c.mu.Unlock()
	}
	at, revision, err := c.calls.AsOf(ctx)
	if err != nil {
		return err
	}
	var opts []kvstore.ListOption
	if reads {
		opts = append(opts, kvstore.Beside(l.keys.Gate))
	}
	got, err := c.b.ListSoon(ctx, l.keys.Place("*"), revision, opts...)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	l.noteList(o, record.Queue(got.Records), at)
	if reads {
		o.gateSeen(record.Of(got.Beside), at, c.b.Instant())
	}
	return nil
}

// probed returns the key for a probe, which is a write that is refused and thereby proves a subscription. Every user of
// the lock is allowed to write this key.
func (l *lock) probed() string {
	if l.keys.Kind == record.Semaphore {
		return l.keys.Slot(0)
	}
	return l.keys.Gate
}

var errNoWatch = errors.New("cannot watch the queue")

// noteList records a list of the whole queue that was requested at time at.
func (l *lock) noteList(o *others, queue []record.Entry, at clock.Instant) {
	l.notePlaces(o, queue, at)
	o.listed(at)
}

func (l *lock) notePlaces(o *others, queue []record.Entry, at clock.Instant) {
	now, server := l.c.b.Instant(), l.c.b.Now()
	for _, e := range queue {
		if e.Client != l.c.b.Client && !e.OverdueAt(server) {
			o.placeSeen(e, at, now)
		}
	}
}

// subscribe starts watching the queue, and the gate if the client has readers. The answer to a later write proves the
// subscriptions. subscribe returns what is known about others, and the current epoch.
func (l *lock) subscribe() (o *others, epoch uint32) {
	c := l.c
	c.mu.Lock()
	if l.others == nil {
		l.others = &others{}
	}
	o = l.others
	wanted := [2]bool{true, l.keys.Kind == record.RW && l.anyReads()}
	if c.locks[l.keys.Gate] != l { // no goroutine wants the lock anymore
		wanted = [2]bool{}
	}
	for i := range wanted {
		wanted[i] = wanted[i] && !o.asked[i]
		o.asked[i] = o.asked[i] || wanted[i]
	}
	c.mu.Unlock()
	for i, pattern := range [2]string{l.keys.Place("*"), l.keys.Gate} {
		if !wanted[i] {
			continue
		}
		w, err := c.b.Watch(pattern, func(ev kvstore.Event) { l.notified(o, ev) })
		c.mu.Lock()
		switch {
		case err != nil:
			o.asked[i] = false
		case l.others != o: // unwatched in the meantime
			c.s.Send(w.Stop)
		default:
			*[2]*kvstore.Watch{&l.queue, &l.gate}[i] = w
			o.subscribed(i == 1)
		}
		c.mu.Unlock()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return o, o.epoch
}

// silenced gives up the idle leases and the subscriptions, because the bucket no longer publishes its changes.
func (l *lock) silenced() {
	for i := len(l.cohorts) - 1; i >= 0; i-- {
		if t := l.cohorts[i].idleTenure(); t != nil {
			defer t.recall()
		}
	}
	l.unwatch()
}

// unwatch ends the subscriptions and forgets what they have delivered.
func (l *lock) unwatch() {
	for _, w := range []*kvstore.Watch{&l.queue, &l.gate} {
		if *w != nil {
			l.c.s.Send((*w).Stop)
			*w = nil
		}
	}
	if l.blocked != nil {
		l.blocked.Stop()
		l.blocked = nil
	}
	l.others = nil
}

// notified handles a notification of a change to the queue or the gate.
func (l *lock) notified(o *others, ev kvstore.Event) {
	now := l.c.b.Instant()
	var e record.Entry
	if ev.Kind == kvstore.Put || ev.Record.Key == l.keys.Gate {
		if e = record.Of(ev.Record); ev.Kind == kvstore.Put && e.Client == l.c.b.Client && e.Key != l.keys.Gate {
			return // the lock itself knows more about this client's cohorts
		}
	}
	l.c.mu.Lock()
	defer l.c.unlock()
	if l.others != o {
		return
	}
	switch {
	case ev.Kind == kvstore.Recheck: // another server serves the subscription now
		o.moved()
		for _, k := range l.cohorts {
			if k.reads() && k.fifo.n > 0 && len(k.tenures) > 0 { // whatever keeps the readers waiting may be over
				defer l.list()
				break
			}
		}
		if ev.Silent {
			l.silenced()
		}
		return
	case ev.Record.Key == l.keys.Gate:
		o.gateSeen(e, 0, now)
	case ev.Kind == kvstore.Put:
		o.placeSeen(e, 0, now)
	case ev.Kind == kvstore.Deleted:
		o.placeGone(ev.Record.Key, ev.Record.Revision, now)
	default:
		return
	}
	l.changed(now)
}

// contended reports whether anyone is waiting for a lease of the cohort. Readers keep only writers waiting.
func (k *cohort) contended(now clock.Instant) bool {
	return k.fifo.n > 0 && !k.reads() || k.lock.standing(k, now) == somebody //safety:contended-asked
}

// contend notifies the holders that have called Contended if anyone is waiting for what they hold.
func (l *lock) contend(now clock.Instant) {
	for _, k := range l.cohorts {
		if len(k.hinted) > 0 && k.contended(now) {
			for _, h := range k.hinted {
				close(h.hint)
			}
			k.hinted = nil
		}
	}
}
