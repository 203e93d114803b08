package cohort

import (
	"maps"
	"slices"
	"time"

	"github.com/natslock/locks/internal/call"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
)

// lock is what a client knows about a lock that its goroutines hold or want. It is guarded by Client.mu.
type lock struct {
	c       *Client
	keys    record.Keys
	cohorts []*cohort
	others  *others       // nil until the client watches or lists the queue
	queue   kvstore.Watch // nil if not watched
	gate    kvstore.Watch // nil if not watched
	blocked *time.Timer   // lists the queue again for waiting readers; nil if not set

	// Inline storage, because most locks have one cohort with one lease.
	firsts [1]*cohort
	first  cohort
}

// group is what the goroutines of a cohort have in common. They share a record, which has one mode, one TTL and one
// end, and readers that are inside together also share its metadata.
type group struct {
	mode    record.Mode
	ttl     time.Duration
	permits int
	meta    map[string]string // only for readers
}

func (g *group) equal(h *group) bool {
	return g.mode == h.mode && g.ttl == h.ttl && g.permits == h.permits && maps.Equal(g.meta, h.meta)
}

// cohort is a set of a client's goroutines that can share one record; see the package comment.
type cohort struct {
	lock     *lock
	group    group
	private  bool // serves only one goroutine
	fifo     fifo
	asked    uint64  // number of the last goroutine that has asked
	clear    uint64  // value of asked when the client last knew that no one else was waiting
	founder  bool    // a founder's first write is under way
	oneShots int     // number of one-shot acquires under way
	seeker   *seeker // nil if there is none
	tenures  []*tenure
	known    *known    // nil if nothing is known
	hinted   []*holder // holders to notify when the lock becomes contended

	firsts [1]*tenure
	first  tenure
}

// known is what the client has learned while trying to get the lock. Error messages include it.
type known struct {
	answered bool  // the server's last answer was that the lock is held or the cohort is queued
	trouble  error // why the last request failed; nil if it was answered or is still pending
	state    call.LockState
}

// tenure is one of a cohort's leases.
type tenure struct {
	cohort   *cohort
	lease    *session.Lease
	inside   int    // number of holders, including goroutines about to become holders
	over     bool   // no more goroutines may enter, because the lease has ended, is being released, or ends with its current holders
	drained  bool   // all readers ahead of the gate have left
	listened bool   // ended will be called
	deciding bool   // no holder is inside, and the client has yet to decide who gets the lease
	idle     bool   // no holder is inside, and the lease lingers
	marked   bool   // mark is final
	mark     uint64 // number of the last goroutine that is owed the lease
	turnEnds clock.Instant

	idleSince, idleEnds clock.Instant
	older, newer        *tenure // links in the client's list of idle tenures
}

// fifo is a list of waiting goroutines, in the order in which they asked.
type fifo struct {
	first, last *holder
	n           int
}

// insert adds h behind all goroutines that asked before it.
func (f *fifo) insert(h *holder) {
	after := f.last
	for after != nil && after.number > h.number {
		after = after.prev
	}
	h.prev, h.next = after, f.first
	if after != nil {
		h.next, after.next = after.next, h
	} else {
		f.first = h
	}
	if h.next != nil {
		h.next.prev = h
	} else {
		f.last = h
	}
	f.n++
	h.waits = true
}

func (f *fifo) remove(h *holder) {
	if h.prev == nil {
		f.first = h.next
	} else {
		h.prev.next = h.next
	}
	if h.next == nil {
		f.last = h.prev
	} else {
		h.next.prev = h.prev
	}
	h.prev, h.next, h.waits = nil, nil, false
	f.n--
}

func (k *cohort) reads() bool { return k.group.mode == record.Shared }

// limit returns how many leases the cohort can have.
func (k *cohort) limit() int { return max(k.group.permits, 1) }

// waiting returns how many of the cohort's goroutines are waiting behind a holder or in the queue.
func (k *cohort) waiting() int {
	if len(k.tenures) > 0 || k.seeker != nil && k.seeker.place != nil {
		return k.fifo.n
	}
	return 0
}

// lockOf returns the lock with the given keys, creating it if necessary.
func (c *Client) lockOf(keys record.Keys) *lock {
	l := c.locks[keys.Gate]
	if l == nil {
		l = &lock{c: c, keys: keys}
		l.cohorts = l.firsts[:0]
		c.locks[keys.Gate] = l
		if h := c.lone[keys.Gate]; h != nil {
			l.unfold(h)
		}
	}
	return l
}

// fold forgets the lock and the cohort of a holder if no other goroutine of the client wants the lock. Most locks are
// held this way, and a client may hold a great many of them. [lock.unfold] restores both when another goroutine asks
// for the lock.
func (h *holder) fold() {
	k, t := h.cohort, h.tenure
	l := k.lock
	if k.private || k.reads() || k.group.permits > 0 || h.linger > 0 || t.over || t.listened || t.inside > 1 ||
		len(l.cohorts) > 1 || len(k.tenures) > 1 || k.fifo.n > 0 || k.founder || k.oneShots > 0 || k.seeker != nil || l.others != nil {
		return
	}
	delete(l.c.locks, l.keys.Gate)
	l.c.lone[l.keys.Gate] = h
	h.gate, h.turnEnds, h.cohort, h.tenure = l.keys.Gate, t.turnEnds, nil, nil
}

func (l *lock) unfold(h *holder) {
	delete(l.c.lone, h.gate)
	lease := h.Holder.Lease()
	k := l.open(group{mode: record.Exclusive, ttl: lease.Granted.TTL}, false)
	t := k.hold(lease, l.c.b.Instant())
	t.turnEnds, t.drained, t.inside = h.turnEnds, true, 1
	h.cohort, h.tenure = k, t
}

// find returns the cohort that a goroutine with the given group can join, or nil if there is none.
func (l *lock) find(g *group) *cohort {
	for _, k := range l.cohorts {
		if !k.private && k.group.equal(g) {
			return k
		}
	}
	return nil
}

func (l *lock) open(g group, private bool) *cohort {
	k := &l.first
	if k.lock != nil {
		k = new(cohort)
	}
	k.lock, k.group, k.private = l, g, private
	k.tenures = k.firsts[:0]
	l.cohorts = append(l.cohorts, k)
	return k
}

// settle forgets the cohort if it has nothing left, and also the lock if it has no other cohort.
func (k *cohort) settle() {
	l := k.lock
	if k.fifo.n > 0 || k.founder || k.oneShots > 0 || k.seeker != nil || len(k.tenures) > 0 {
		return
	}
	i := slices.Index(l.cohorts, k)
	if i < 0 {
		return
	}
	l.cohorts = slices.Delete(l.cohorts, i, i+1)
	if len(l.cohorts) == 0 {
		l.unwatch()
		delete(l.c.locks, l.keys.Gate)
	}
}

// role is the next step of a goroutine that wants a lock.
type role uint8

const (
	waits role = iota
	founds
	enters
	informs // lists the queue, then asks again
)

// ask assigns h to a cohort and returns what h does next.
func (c *Client) ask(h *holder) (does role) {
	c.mu.Lock()
	defer c.unlock()
	a, now := h.a, c.b.Instant()
	l := c.lockOf(a.Keys)
	g := group{mode: a.Req.Mode, ttl: a.TTL(), permits: a.Req.Permits}
	if a.Reads() {
		g.meta = a.Req.Meta
	}
	private := a.Private() || a.Req.Patient || c.turn < 0 && !a.Reads() && !a.Counts() //safety:cohort-apart
	var k *cohort
	if !private {
		k = l.find(&g)
	}
	if k == nil {
		k = l.open(g, private)
	}
	h.cohort = k
	k.asked++
	h.number = k.asked
	k.oneShots++ // keeps the cohort from being forgotten during this call
	defer func() {
		switch {
		case does != founds:
			k.oneShots--
			k.seek(now)
		case !a.Req.Once:
			k.oneShots--
			k.founder, k.known = true, nil
		}
	}()
	h.awaits = l.recallFor(h)
	for i := len(k.tenures) - 1; i >= 0; i-- {
		if t := k.tenures[i]; t.lease.Ended(now) { // but its holder has not released it yet
			if t.inside == 0 {
				t.recall()
			} else {
				t.drop()
			}
		}
	}
	if t := k.idleTenure(); t != nil {
		return t.take(h, now)
	}
	if t := k.shared(); t != nil && k.judge(t, nil, now) == handOn {
		t.admit(h)
		return enters
	}
	if a.Req.Once || k.fifo.n == 0 && !k.founder && len(k.tenures) < k.limit() && l.standing(k, now) != somebody {
		return founds
	}
	k.push(h, now)
	return waits
}

// recallFor gives up the idle leases whose records would make the server refuse h's claim. It returns the last of them,
// or nil if there are none.
func (l *lock) recallFor(h *holder) (recalled *session.Lease) {
	for i := len(l.cohorts) - 1; i >= 0; i-- { //safety:idle-before
		x := l.cohorts[i]
		if t := x.idleTenure(); t != nil && x != h.cohort && !(x.reads() && h.cohort.reads()) {
			recalled = t.recall()
		}
	}
	return recalled
}

// shared returns the lease that another reader can join, or nil if there is none.
func (k *cohort) shared() *tenure {
	if !k.reads() || len(k.tenures) == 0 || k.tenures[0].inside == 0 || k.fifo.n > 0 {
		return nil
	}
	return k.tenures[0]
}

// push makes h wait in the FIFO.
func (k *cohort) push(h *holder, now clock.Instant) {
	if k.lock.standing(k, now) == nobody {
		k.clear = h.number
	}
	k.fifo.insert(h)
	k.joined(h, now)
}

// joined must be called after h has joined the FIFO.
func (k *cohort) joined(h *holder, now clock.Instant) {
	if h.wake == nil {
		h.wake = make(chan struct{}, 1)
	}
	k.seek(now)
	k.resize()
	for _, t := range k.tenures {
		t.listen()
	}
	// If the cohort has neither a place nor all the leases it can have, h is announced when the cohort gets one.
	if len(k.tenures) >= k.limit() || k.seeker != nil && k.seeker.place != nil {
		k.announce(h)
	}
	if len(k.tenures) > 0 {
		k.lock.refresh(now)
	}
	k.lock.contend(now)
	if k.reads() && len(k.tenures) > 0 && k.fifo.first == h {
		k.serve(k.tenures[0], nil, now)
	}
}

// announce publishes that h is waiting. The event carries the id and ticket of the cohort's place or, if the cohort has
// no place, the id of the lease that h waits behind.
func (k *cohort) announce(h *holder) {
	h.queued = true
	ev := session.Event{Type: session.EventQueued, Kind: h.a.Req.Kind, Name: h.a.Req.Name}
	switch {
	case k.seeker != nil && k.seeker.place != nil:
		ev.ID, ev.Token = k.seeker.place.ID(), k.seeker.place.Ticket()
	case len(k.tenures) > 0:
		ev.ID = k.tenures[0].lease.ID()
	}
	k.lock.c.s.Notify(h.a.Parent, ev)
}

// announceAll announces the goroutines in the FIFO: all of them if the cohort has a new place, but behind a holder only
// those that have not been announced before.
func (k *cohort) announceAll(placed bool) {
	for h := k.fifo.first; h != nil; h = h.next {
		if placed || !h.queued && len(k.tenures) >= k.limit() {
			k.announce(h)
		}
	}
}

// resize sets the number of goroutines that the next renewal will write to the record.
func (k *cohort) resize() {
	switch {
	case k.seeker != nil && k.seeker.place != nil:
		k.seeker.place.SetSize(k.fifo.n)
	case len(k.tenures) > 0:
		k.tenures[0].lease.SetSize(k.fifo.n + 1)
	}
}

// hold makes l a tenure of the cohort.
func (k *cohort) hold(l *session.Lease, now clock.Instant) *tenure {
	t := &k.first
	if t.cohort != nil {
		t = new(tenure)
	}
	*t = tenure{cohort: k, lease: l, turnEnds: now.Add(max(k.lock.c.turn, 0))} //safety:turn-bounded
	k.tenures = append(k.tenures, t)
	return t
}

// admit counts h as inside. h then enters the lease on its own goroutine.
func (t *tenure) admit(h *holder) {
	t.inside++
	t.deciding = false
	h.tenure = t
}

// listen arranges for ended to be called when the lease ends.
func (t *tenure) listen() {
	if t.listened || t.over {
		return
	}
	t.listened = true
	if !t.lease.OnEnd(t.ended) {
		t.cohort.lock.c.later(t.ended)
	}
}

// ended handles the end of the lease.
func (t *tenure) ended() {
	c := t.cohort.lock.c
	c.mu.Lock()
	defer c.unlock()
	switch {
	case t.over:
	case t.inside == 0: // the record may be broken, in which case it keeps others out until it is deleted
		t.recall()
	default:
		t.drop()
	}
}

// drop removes the tenure from its cohort, so that no more goroutines enter it and the FIFO seeks another lease.
func (t *tenure) drop() {
	k := t.cohort
	if t.idle {
		k.lock.c.idle.remove(t)
	}
	if t.over {
		return
	}
	t.over = true
	k.tenures = slices.DeleteFunc(k.tenures, func(x *tenure) bool { return x == t })
	k.seek(k.lock.c.b.Instant())
	k.settle()
}

// verdict is what happens to a lease that the first goroutine in the FIFO could get.
type verdict uint8

const (
	handOn   verdict = iota // the goroutine gets it
	askFirst                // list the queue to learn whether others are waiting
	release                 // others go first
)

// judge decides whether a goroutine may enter the lease. h is the first goroutine in the FIFO, or nil for a reader that
// has just arrived.
func (k *cohort) judge(t *tenure, h *holder, now clock.Instant) verdict {
	if h != nil && t.marked && h.number <= t.mark { //safety:owed-bounded
		return handOn
	}
	standing, inTurn := k.lock.standing(k, now), now < t.turnEnds //safety:turn-ends
	switch {
	case standing == nobody, inTurn && !k.reads():
		return handOn
	case standing == unknown:
		return askFirst
	}
	return release
}

// serve decides what happens to a lease that a goroutine in the FIFO could get. It is called when a holder has left the
// lease, when readers are waiting alongside it, and when the client learns more about others that want the lock. If the
// lease is to be released, serve leaves that to by, the holder that has just left the lease, or to the client if by is
// nil.
func (k *cohort) serve(t *tenure, by *holder, now clock.Instant) {
	for !t.over && (t.inside == 0 || k.reads()) {
		h := k.fifo.first
		if h == nil {
			break
		}
		if t.idle {
			k.lock.c.idle.remove(t)
		}
		if k.founder && t.inside == 0 { // the founder asked earlier and joins the FIFO if it is refused
			t.deciding = true
			return
		}
		switch k.judge(t, h, now) {
		case handOn:
			k.fifo.remove(h)
			t.admit(h)
			h.signal()
			k.resize()
			continue
		case askFirst:
			t.deciding = t.inside == 0
			k.lock.list()
			if t.inside > 0 {
				k.lock.wakeReaders(now)
			}
			return
		case release:
			if t.inside > 0 {
				k.lock.wakeReaders(now)
				return
			}
			t.giveUp(by)
			return
		}
	}
	k.unqueued()
	switch {
	case t.inside > 0:
	case !t.over && by != nil && t.lingers(by.linger, now):
		t.idles(by.linger, now)
	default:
		t.giveUp(by)
	}
}

// giveUp releases a lease that has no holder inside, or leaves its release to by if by is not nil.
func (t *tenure) giveUp(by *holder) {
	t.drop()
	if by != nil {
		by.releases = true
		return
	}
	t.leave()
}

// leave deletes the tenure's record once Client.mu is released, because ending the lease acquires the mutex again.
func (t *tenure) leave() {
	l := t.lease
	t.cohort.lock.c.later(func() { l.Leave(record.StatusGone) })
}

// unqueued ends the cohort's seeker if no goroutine is waiting.
func (k *cohort) unqueued() {
	if k.fifo.n == 0 && k.seeker != nil {
		k.seeker.cancel()
		k.seeker = nil
		k.settle()
	}
}

// lost returns what h does next when its lease has ended before h could enter. h goes ahead of the goroutines that
// waited behind it. If no other goroutine is inside the lease, lost deletes the record.
func (h *holder) lost() (does role) {
	k, t := h.cohort, h.tenure
	c := k.lock.c
	c.mu.Lock()
	h.tenure = nil
	t.inside--
	again := false
	switch {
	case !slices.Contains(k.lock.cohorts, k): // forgotten, because no other goroutine was waiting
		again = true
	case h.a.Req.Once:
		k.oneShots++
		does = founds
	default:
		k.fifo.insert(h)
	}
	t.drop()
	if does == waits && !again {
		k.joined(h, c.b.Instant())
	}
	last := t.inside == 0 //safety:last-again
	c.unlock()
	if last {
		t.lease.Leave(record.StatusGone) // the record may be broken, in which case it keeps others out until it is deleted
	}
	if again {
		return c.ask(h)
	}
	return does
}
