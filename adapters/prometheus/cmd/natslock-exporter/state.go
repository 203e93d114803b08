package main

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	natslockprom "github.com/natslock/locks/adapters/prometheus"
	"github.com/natslock/locks/natslock/admin"
)

// state is what the records of the bucket say, as of the last event. It is also the
// collector of the metrics that come from it.
type state struct {
	label  func(name string) string
	now    func() time.Time
	online func() bool // says whether notifications can come

	mu      sync.Mutex
	current bool                // listed, and no gap since
	gap     uint64              // counts the gaps, so that a list from before one does not end it
	locks   map[lockID]*lock    // that have claims
	claims  map[string]*claim   // by the claim's ID, which is never used again
	groups  map[string]*group   // by label
	changed map[string]struct{} // the claims of events during a list: those are newer than it
	viewed  map[lockID]struct{} // the locks that have changed since the page asked; nil: there is no page
	ahead   time.Duration       // of the server's clock, of this machine's

	counters
}

// lockID names a lock: those of different kinds are different locks.
type lockID struct {
	kind admin.Kind
	name string
}

// lock is a lock that has claims.
type lock struct {
	id    lockID
	group *group
	held  []*claim  // the holders
	queue []*claim  // in the order of the events
	mutex *claim    // the holder, of a mutex
	freed time.Time // the end of the last hold, while a waiter is to follow; zero otherwise
}

// claim is a record in the bucket: that of a holder, or a place in a queue.
type claim struct {
	id     string
	lock   *lock
	holds  bool
	idle   bool // its client keeps it, and nobody is inside
	broken bool
	since  time.Time // by the clock of its client
	until  time.Time // the end of a hold that no event confirms or ends; zero: none
	due    time.Time // when the next renewal of a hold is due; zero: none is to come
	last   uint64    // the revision of its record
	by     identity  // of a place
	listed bool      // in the list that is being applied

	mode   admin.Mode    // of a holder
	holder *admin.Holder // for the page; nil: not known
	waiter *admin.Waiter // for the page
}

// identity is what a place and the lock that it was granted have in common: the two records
// have different IDs, and no event names both.
type identity struct {
	owner, host string
	pid         int
	mode        admin.Mode
}

// group is all locks with one label, with its counters.
type group struct {
	label string

	grants, waited, expiries, breaks, gaveUp prometheus.Counter
	handover                                 prometheus.Observer
}

func newState(label func(string) string, online func() bool) *state {
	return &state{
		label: label, now: time.Now, online: online, counters: newCounters(),
		locks: make(map[lockID]*lock), claims: make(map[string]*claim), groups: make(map[string]*group),
	}
}

// groupOf returns the group of a label. Labels beyond the limit share one, since every
// label is a set of series for ever. Under mu.
func (s *state) groupOf(label string) *group {
	label = strings.ToValidUTF8(label, "\uFFFD") // a name may have any bytes
	if len(s.groups) >= natslockprom.MaxLabels && s.groups[label] == nil {
		label = other
	}
	g := s.groups[label]
	if g == nil {
		g = s.counters.group(label)
		s.groups[label] = g
	}
	return g
}

// register makes the series of a label, at zero.
func (s *state) register(label string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.groupOf(label)
}

// missed notes that events are missed from now on, until the locks are listed.
func (s *state) missed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current {
		s.gaps.Inc()
	}
	s.current = false
	s.gap++
}

// watching says whether the state is that of the bucket.
func (s *state) watching() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current && s.online()
}

// listing precedes a list of the locks. It returns the number of the last gap, for
// [state.listed].
func (s *state) listing() (gap uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed = make(map[string]struct{})
	return s.gap
}

// listed replaces the claims by those of a list that began after a gap, but for those of
// events since. It keeps the counters.
func (s *state) listed(infos []admin.Info, gap uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := s.changed
	s.changed = nil
	for _, info := range infos {
		l := s.lock(lockID{info.Kind, info.Name})
		holders := slices.Concat(info.Permits, info.Readers)
		if info.Holder != nil {
			holders = append(holders, *info.Holder)
		}
		for _, h := range holders {
			_, newer := changed[h.ID]
			switch {
			case newer || h.Overdue:
			default:
				c := s.holds(l, h.ID, &h)
				c.since, c.listed, c.mode = h.Since, true, modeOf(info, h)
			}
		}
		for _, w := range info.Queue {
			if _, newer := changed[w.ID]; !newer && !w.Overdue {
				c := s.waits(l, w.ID, w.Since, identity{w.Owner, w.Host, w.PID, w.Mode})
				c.listed = true
				s.shows(c, w)
			}
		}
		s.drop(l)
	}
	for id, c := range s.claims {
		if _, newer := changed[id]; !newer && !c.listed {
			s.remove(id)
			s.drop(c.lock)
		}
		c.listed = false
	}
	s.current = s.gap == gap
}

// apply follows one event.
func (s *state) apply(ev admin.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lock(lockID{ev.Kind, ev.Name})
	defer s.drop(l)
	if ev.Grants > 0 {
		l.group.grants.Add(float64(ev.Grants))
		l.group.waited.Add(max(ev.Waited, 0).Seconds())
	}
	switch ev.Type {
	case admin.EventQueued:
		s.shows(s.waits(l, ev.ID, sinceOf(ev), identityOf(ev)), waiterOf(ev))
	case admin.EventGranted:
		if !l.freed.IsZero() {
			l.group.handover.Observe(max(ev.Time.Sub(l.freed), 0).Seconds())
			l.freed = time.Time{}
		}
		if ev.Waited > 0 {
			s.leaves(l, identityOf(ev), sinceOf(ev).Add(-ev.Waited))
		}
		s.took(l, ev)
	case admin.EventRenewed:
		s.took(l, ev)
	case admin.EventGaveUp:
		l.group.gaveUp.Inc()
		if s.claims[ev.ID] != nil {
			s.remove(ev.ID)
		} else { // taken for the place of another client in the same process
			s.leaves(l, identityOf(ev), sinceOf(ev))
		}
		if len(l.queue) == 0 {
			l.freed = time.Time{} // nobody is left to hand the lock to
		}
	case admin.EventReleased:
		s.ended(l, ev)
	case admin.EventExpired:
		if c := s.claims[ev.ID]; c == nil || !c.broken { // else the break was its end
			l.group.expiries.Inc()
		}
		s.ended(l, ev)
	case admin.EventBroken:
		c := s.claims[ev.ID]
		if c == nil || !c.broken {
			l.group.breaks.Inc()
		}
		// A broken record keeps others out until its holder has stopped. That of a break
		// that lets the next client in at once is a tombstone, without a TTL.
		if ev.Holder == nil || ev.Holder.TTL == 0 {
			s.ended(l, ev)
		} else {
			s.took(l, ev).broken = true
		}
	}
}

// took makes the claim of an event a holder. Under mu.
func (s *state) took(l *lock, ev admin.Event) *claim {
	c := s.holds(l, ev.ID, ev.Holder)
	c.since, c.mode = sinceOf(ev), ev.Mode
	return c
}

// ended follows the end of a hold. Under mu.
func (s *state) ended(l *lock, ev admin.Event) {
	s.remove(ev.ID)
	if len(l.queue) > 0 && (len(l.held) == 0 || l.id.kind == admin.KindSemaphore) {
		l.freed = ev.Time
	}
}

// sinceOf is when a holder got the lock, or a waiter asked for it.
func sinceOf(ev admin.Event) time.Time {
	if ev.Holder == nil || ev.Holder.Since.IsZero() {
		return ev.Time
	}
	return ev.Holder.Since
}

func identityOf(ev admin.Event) identity {
	if ev.Holder == nil {
		return identity{}
	}
	return identity{ev.Holder.Owner, ev.Holder.Host, ev.Holder.PID, ev.Mode}
}

// lock returns a lock, which drop forgets again if it has no claims. Under mu.
func (s *state) lock(id lockID) *lock {
	l := s.locks[id]
	if l == nil {
		l = &lock{id: id, group: s.groupOf(s.label(id.name))}
		s.locks[id] = l
	}
	s.view(l)
	return l
}

// drop forgets a lock without claims. Under mu.
func (s *state) drop(l *lock) {
	if len(l.held) == 0 && len(l.queue) == 0 {
		delete(s.locks, l.id)
	}
}

// overdue is how long after its TTL a hold without an event of its end is over. A watch
// reports the end before, but for a write that its client gave up and took back.
const overdue = time.Second

// expire forgets the holds that are over without an event. Under mu.
func (s *state) expire() {
	now := s.now()
	for id, c := range s.claims {
		if c.holds && !c.until.IsZero() && now.After(c.until) {
			s.remove(id)
			s.drop(c.lock)
		}
	}
}

// holds makes a claim a holder. h may be nil. Under mu.
func (s *state) holds(l *lock, id string, h *admin.Holder) *claim {
	c := s.claims[id]
	if c == nil || c.lock != l || !c.holds {
		s.remove(id)
		c = &claim{id: id, lock: l, holds: true}
		s.claims[id] = c
		l.held = append(l.held, c)
	}
	if l.id.kind == admin.KindMutex && l.mutex != c {
		if l.mutex != nil { // its end was missed: a mutex has one holder
			s.remove(l.mutex.id)
		}
		l.mutex = c
	}
	if h != nil {
		c.idle, c.broken, c.until = h.Idle, c.broken || h.Broken != nil, time.Time{}
		if h.TTL > 0 {
			c.until = s.now().Add(h.TTL + overdue)
		}
		switch {
		case h.Fixed || h.Unreadable || c.broken || h.TTL == 0:
			c.due = time.Time{}
		case c.last != h.Revision: // else a list shows what an event has shown before
			c.due = s.now().Add(h.TTL / 3)
		}
		c.last = h.Revision
		if s.viewed != nil {
			c.holder = h
		}
	}
	s.note(id)
	return c
}

// waits makes a claim a waiter. Under mu.
func (s *state) waits(l *lock, id string, since time.Time, by identity) *claim {
	c := s.claims[id]
	if c == nil || c.lock != l || c.holds {
		s.remove(id)
		c = &claim{id: id, lock: l}
		s.claims[id] = c
		l.queue = append(l.queue, c)
	}
	c.since, c.by = since, by
	s.note(id)
	return c
}

// near is how much later than the call that is granted a place is written at most, where the
// network is quick.
const near = 10 * time.Millisecond

// leaves removes the place of a client that was granted the lock. If the client has
// several, it is the place whose time is nearest to that of the call. Under mu.
func (s *state) leaves(l *lock, by identity, called time.Time) {
	var found *claim
	var distance time.Duration
	for _, c := range l.queue {
		if c.by != by {
			continue
		}
		if d := c.since.Sub(called).Abs(); found == nil || d < distance {
			found, distance = c, d
		}
		if distance <= near {
			break
		}
	}
	if found != nil {
		s.remove(found.id)
	}
}

// remove forgets a claim, if it is there. Under mu.
func (s *state) remove(id string) {
	s.note(id)
	c := s.claims[id]
	if c == nil {
		return
	}
	delete(s.claims, id)
	l := c.lock
	switch {
	case !c.holds:
		if i := slices.Index(l.queue, c); i >= 0 {
			l.queue = slices.Delete(l.queue, i, i+1)
		}
	default:
		if l.mutex == c {
			l.mutex = nil
		}
		if i := slices.Index(l.held, c); i >= 0 {
			l.held = slices.Delete(l.held, i, i+1)
		}
	}
	s.view(l)
}

// note notes that a claim has changed during a list. Under mu.
func (s *state) note(id string) {
	if s.changed != nil {
		s.changed[id] = struct{}{}
	}
}
