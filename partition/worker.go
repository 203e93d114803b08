package partition

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/natslock/locks/internal/again"
	"github.com/natslock/locks/internal/plain"
	"github.com/natslock/locks/natslock"
)

// The pace of a worker. An idle group costs nothing.
const (
	// settle is the time for which the members have to stay the same before a worker reads the group, and settleMax
	// limits the wait for that. So a deployment is one change instead of many.
	settle    = 500 * time.Millisecond
	settleMax = 5 * time.Second
	// lookAfter is the time between a grant and the next read of the group, because the worker's
	// plan is older than the grant.
	lookAfter = time.Second
	// If a worker waits for partitions, or another worker waits for partitions that this one keeps, their plans differ or an owner is slow to
	// give way. The worker then reads the group again, first after minLook and then less and less often.
	minLook = 2 * time.Second
	maxLook = 10 * time.Second
	// handOver limits how long a leaving worker waits for the others to ask for its partitions. They read the group after settle, or settleMax if
	// the members keep changing.
	handOver = settleMax + time.Second
)

// phase is what a worker is doing about a partition.
//
//	free --claim--> claiming --grant--> held --drain--> leaving
//	  ^                 |                 |               |
//	  +----- end -------+------- end -----+----- end -----+
//
// Exclusion does not depend on the phase: the lock of the partition decides.
type phase uint8

const (
	free     phase = iota // nothing
	claiming              // its acquire is in progress
	held                  // it has the lock, and its function runs
	leaving               // its function was asked to return, or its lock was granted when it was no longer wanted
)

// slot is what a worker knows about one partition.
type slot struct {
	phase     phase
	withdrawn bool      // the claim was given up, but its acquire has not returned yet
	contended uint64    // the number of the first look (read of the group) begun after another worker started to wait for it; 0 if none waits
	failed    int       // failures in a row
	retry     time.Time // no claim before this time
	since     time.Time // of the grant
}

// worker is the state machine of one worker of a group: plain data, without locks, clocks or I/O. Each method
// handles an event at a given time. After each event decide returns the actions.
type worker struct {
	id    string
	slots []slot

	member  bool   // the lock of its membership is held
	fresh   bool   // the group was read since that lock was granted
	token   uint64 // of the last membership
	closing bool
	closeBy time.Time // a leaving worker waits for the others until then

	members []Member            // as read last
	known   map[uint64]struct{} // the tokens of all locks of members, as last read
	past    map[uint64]struct{} // the tokens of memberships that were reported as ended but that the last read still showed
	plan    []string            // nil before the first read

	changed, changedFirst time.Time // the last and first change of the members that no look has seen; zero if none
	looking               bool      // a look is in progress
	looks, seen           uint64    // the number of looks begun, and the number of the last one that succeeded
	wanted                uint64    // a look with this number or a later one is to begin at once
	lookAt                time.Time // the latest time for the next look; zero if none is due
	pause                 time.Duration
	failed                int // consecutive failed looks
}

func newWorker(id string, partitions int) *worker {
	return &worker{id: id, slots: make([]slot, partitions), pause: minLook, past: make(map[uint64]struct{})}
}

// action is a step that a worker takes for a partition or for the group.
type action int

const (
	claim    action = iota // acquire its lock
	withdraw               // give up the acquire
	drain                  // ask its function to return
	look                   // read the group
)

// effect is an action and the number of the partition, or -1.
type effect struct {
	action    action
	partition int
}

// decide returns the actions due now.
func (w *worker) decide(now time.Time) (effects []effect) {
	for k := range w.slots {
		switch s := &w.slots[k]; s.phase {
		case free:
			if w.fresh && w.mine(k) && !now.Before(s.retry) {
				*s = slot{phase: claiming, failed: s.failed}
				effects = append(effects, effect{claim, k})
			}
		case claiming:
			if !w.mine(k) && !s.withdrawn {
				s.withdrawn = true
				effects = append(effects, effect{withdraw, k})
			}
		case held:
			if w.givesWay(k, now) {
				s.phase = leaving
				effects = append(effects, effect{drain, k})
			}
		}
	}
	if w.closing && !now.Before(w.closeBy) {
		return effects // another look would change nothing
	}
	if w.lookAt.IsZero() && w.changed.IsZero() && !w.looking && w.unsettled() {
		w.lookAt = now.Add(w.pause)
		w.pause = min(2*w.pause, maxLook)
	}
	if due := w.nextLook(); !w.looking && !due.IsZero() && !now.Before(due) {
		w.looking, w.lookAt, w.changed, w.changedFirst = true, time.Time{}, time.Time{}, time.Time{}
		w.looks++
		effects = append(effects, effect{look, -1})
	}
	return effects
}

// mine reports whether this worker is to own partition k.
func (w *worker) mine(k int) bool {
	return w.member && !w.closing && w.plan != nil && w.plan[k] == w.id
}

// givesWay reports whether the worker gives up a partition that it holds: one that another worker has asked for, and that a
// plan newer than the request gives to another. Without a request the worker keeps it, so that it has an owner meanwhile.
func (w *worker) givesWay(k int, now time.Time) bool {
	switch {
	case w.mine(k):
		return false
	case w.closing && (w.alone() || !now.Before(w.closeBy)):
		return true
	}
	s := w.slots[k]
	if w.seen < s.contended && !w.closing { //safety:partition-fresh-plan
		return false
	}
	return s.contended > 0 //safety:partition-kept-meanwhile
}

// alone reports whether, according to the last look, no other worker is there to take over.
func (w *worker) alone() bool { return w.seen > 0 && len(w.members) == 0 }

// nextLook returns the time of the next read of the group, or zero.
func (w *worker) nextLook() time.Time {
	due := w.lookAt
	earlier := func(t time.Time) {
		if due.IsZero() || t.Before(due) {
			due = t
		}
	}
	if !w.changed.IsZero() {
		at := w.changed.Add(settle)
		if last := w.changedFirst.Add(settleMax); last.Before(at) {
			at = last
		}
		earlier(at)
	}
	if w.wanted > w.looks {
		earlier(time.Unix(0, 0))
	}
	return due
}

// next returns the time of the next decision if no event comes first, or zero.
func (w *worker) next(now time.Time) (at time.Time) {
	earlier := func(t time.Time) {
		if !t.IsZero() && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	if !w.looking && !(w.closing && !now.Before(w.closeBy)) {
		earlier(w.nextLook())
	}
	holds := false
	for k, s := range w.slots {
		holds = holds || s.phase == held
		if s.phase == free && w.fresh && w.mine(k) {
			earlier(s.retry)
		}
	}
	if w.closing && holds && now.Before(w.closeBy) {
		earlier(w.closeBy)
	}
	return at
}

// lookBy makes the worker read the group at time t or earlier.
func (w *worker) lookBy(t time.Time) {
	if w.lookAt.IsZero() || t.Before(w.lookAt) {
		w.lookAt = t
	}
}

// moved: a member has joined or left, or may have.
func (w *worker) moved(now time.Time) {
	if w.changed.IsZero() {
		w.changedFirst = now
	}
	w.changed, w.pause = now, minLook
}

// joined: the worker is a member now.
func (w *worker) joined(token uint64, now time.Time) {
	w.member, w.token, w.fresh = true, token, false
	w.moved(now)
}

// left ends the membership.
func (w *worker) left(now time.Time) {
	w.member = false
	w.moved(now)
}

// gone: a membership has ended. A list that still shows it is out of date.
func (w *worker) gone(token uint64, now time.Time) {
	w.past[token] = struct{}{}
	w.moved(now)
}

// renewed: a member has renewed its lease. If the last look did not show that membership, the notification of its grant was missed. While a look is
// already due, a renewal changes nothing: a worker that has just joined knows no member, and the renewals of many members must not postpone its first
// look.
func (w *worker) renewed(token uint64, now time.Time) {
	delete(w.past, token)
	if _, known := w.known[token]; !known && w.changed.IsZero() {
		w.moved(now)
	}
}

// read: the look in progress has returned the state of the group. The error ends Run.
func (w *worker) read(g State, now time.Time) error {
	w.looking, w.failed = false, 0
	if w.member && !w.closing {
		switch {
		case !g.has(w.token): // the read predates the grant, or the end of the membership has not been reported yet
			w.lookBy(now.Add(settle))
			return nil
		case g.Count != len(w.slots): //safety:partition-one-count
			return fmt.Errorf("%w: the group has %d partitions, and this worker is to work on %d: %s joined first; use one number, or a group of another name", ErrCount, g.Count, len(w.slots), plain.Text(g.Members[0].ID))
		}
	}
	w.seen, w.members, w.known, w.fresh = w.looks, g.Members, g.known, true
	maps.DeleteFunc(w.past, func(token uint64, _ struct{}) bool { return !g.has(token) })
	if w.closing {
		w.members = g.others(w.token)
	}
	if g.Count == len(w.slots) {
		if len(g.Members) > 0 {
			w.plan = make([]string, g.Count)
		}
		for k, p := range g.Partitions {
			if w.plan != nil && len(g.Members) > 0 {
				w.plan[k] = p.Planned
			}
			switch s := &w.slots[k]; {
			case s.phase != held:
			case p.Waiting > 0 && s.contended == 0 && !w.mine(k):
				s.contended = w.seen // the notification of the request was missed, but the list shows it
			case p.Waiting == 0 && s.contended <= w.seen:
				s.contended = 0 // it was withdrawn. The next request is not notified, so the worker has to look: see unsettled
			}
		}
	}
	return nil
}

// unsettled reports whether to read the group again later, because this worker waits for a partition or holds one that another worker waits
// for or is to own, or because the last list still showed a membership that had ended.
func (w *worker) unsettled() bool {
	for k, s := range w.slots {
		if s.phase == claiming || s.phase == held && (s.contended > 0 || !w.mine(k)) {
			return true
		}
	}
	return len(w.past) > 0
}

// unread: the look in progress has failed.
func (w *worker) unread(now time.Time) {
	w.looking = false
	w.lookBy(now.Add(again.Pause(w.failed)))
	w.failed++
}

// granted: a claim got its lock. It reports whether to run the function; otherwise the lock is to
// be released.
func (w *worker) granted(k int, now time.Time) (run bool) {
	s := &w.slots[k]
	if !w.mine(k) { //safety:partition-granted-late
		s.phase = leaving
		return false
	}
	s.phase, s.withdrawn, s.contended, s.since = held, false, 0, now
	w.pause = minLook
	w.lookBy(now.Add(lookAfter))
	return true
}

// asked: another worker waits for a partition.
func (w *worker) asked(k int) {
	if s := &w.slots[k]; s.phase == held && s.contended == 0 {
		if s.contended = w.looks + 1; !w.closing {
			w.wanted = max(w.wanted, s.contended)
		}
	}
}

// returned: the function of a partition has returned. If it ran for long, its next failure counts
// as the first.
func (w *worker) returned(k int, now time.Time) {
	if s := &w.slots[k]; s.phase == held && now.Sub(s.since) >= again.Long {
		s.failed = 0
	}
}

// ended: the worker has released a partition, or its claim has ended without getting it. A failure
// delays the next claim.
func (w *worker) ended(k int, failure bool, now time.Time) {
	next := slot{}
	if failed := w.slots[k].failed; failure {
		next.retry, next.failed = now.Add(again.Pause(failed)), failed+1
	}
	w.slots[k] = next
}

// close: the worker leaves. Until closeBy it gives its partitions to the workers that ask for them,
// and then it releases the rest.
func (w *worker) close(now time.Time) {
	w.closing, w.closeBy = true, now.Add(handOver)
	w.members = slices.DeleteFunc(slices.Clone(w.members), func(m Member) bool { return m.Token == w.token })
	if !w.changed.IsZero() || w.looking || !w.alone() {
		w.seen = 0 // the members have to be read again
		w.moved(now)
	}
}

// abandon makes the worker leave without waiting for the others, from which it hears nothing.
func (w *worker) abandon(now time.Time) {
	if !w.closing {
		w.close(now)
	}
	w.closeBy = now
}

// done reports whether a leaving worker has released its partitions and its membership.
func (w *worker) done() bool {
	for _, s := range w.slots {
		if s.phase != free {
			return false
		}
	}
	return w.closing && !w.member
}

// owned returns the numbers of the partitions that the worker holds.
func (w *worker) owned() (numbers []int) {
	for k, s := range w.slots {
		if s.phase == held || s.phase == leaving && !s.since.IsZero() {
			numbers = append(numbers, k)
		}
	}
	return numbers
}

// ErrCount means that other members of the group use a different number of partitions. It matches
// [natslock.ErrInvalid].
var ErrCount = fmt.Errorf("%w: another number of partitions", natslock.ErrInvalid)
