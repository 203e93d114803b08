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

// These constants determine when a worker reads the group. A group in which nothing changes is not
// read.
const (
	// A worker reads the group once its members have not changed for settle, but no later than
	// settleMax after the first change. That way a deployment is treated as one change instead of
	// many.
	settle    = 500 * time.Millisecond
	settleMax = 5 * time.Second
	// lookAfter is the delay between a grant and the next read of the group. The worker has to
	// read again because its plan is older than the grant.
	lookAfter = time.Second
	// While this worker waits for partitions, or another worker waits for partitions that this
	// worker keeps, their plans differ or an owner is slow to give way. So this worker keeps
	// reading the group, first after minLook and then at growing intervals of up to maxLook.
	minLook = 2 * time.Second
	maxLook = 10 * time.Second
	// handOver limits how long a leaving worker waits for other workers to queue for its
	// partitions. They read the group after settle, or after settleMax if its members keep
	// changing.
	handOver = settleMax + time.Second
)

// phase is the state of one partition from a worker's point of view.
//
//	free --claim--> claiming --grant--> held --drain--> leaving
//	  ^                 |                 |               |
//	  +----- end -------+------- end -----+----- end -----+
//
// Exclusion depends only on the partition's lock, not on its phase.
type phase uint8

const (
	free     phase = iota // not involved
	claiming              // acquiring its lock
	held                  // its lock is held, and its function is running
	leaving               // its function was asked to return, or its lock was granted too late
)

// slot is what a worker knows about one partition.
type slot struct {
	phase     phase
	withdrawn bool      // the claim was canceled, but its acquire has not returned yet
	contended uint64    // number of the first look (group read) begun after another worker began to wait, or 0
	failed    int       // consecutive failures
	retry     time.Time // do not claim it before this time
	since     time.Time // when it was granted
}

// worker is the state machine of one worker in a group: plain data, without locks, clocks or I/O.
// Events are recorded with the time at which they happened, and after each event decide returns
// the actions to take.
type worker struct {
	id    string
	slots []slot

	member  bool   // its membership lock is held
	fresh   bool   // the group has been read since that lock was granted
	token   uint64 // token of its latest membership
	closing bool
	closeBy time.Time // until then a leaving worker waits for the others

	members []Member            // as last read
	known   map[uint64]struct{} // tokens of all membership locks, as last read
	past    map[uint64]struct{} // tokens of ended memberships that a read may still show
	plan    []string            // nil before the first read

	changed, changedFirst time.Time // last and first change of the members since the last look began
	looking               bool      // a look is in progress
	looks, seen           uint64    // number of looks begun, and number of the last one that succeeded
	wanted                uint64    // a look with at least this number must begin immediately
	lookAt                time.Time // when the next look is due at the latest; zero if none is
	pause                 time.Duration
	failed                int // consecutive failed looks
}

func newWorker(id string, partitions int) *worker {
	return &worker{id: id, slots: make([]slot, partitions), pause: minLook, past: make(map[uint64]struct{})}
}

// action is something for the runner to do about a partition or the group.
type action int

const (
	claim    action = iota // acquire the partition's lock
	withdraw               // cancel the acquire
	drain                  // ask the partition's function to return
	look                   // read the group
)

// effect is an action and the partition it concerns, or -1 for the group.
type effect struct {
	action    action
	partition int
}

// decide returns the actions that are due now, and marks them as begun.
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

// mine reports whether this worker should own partition k.
func (w *worker) mine(k int) bool {
	return w.member && !w.closing && w.plan != nil && w.plan[k] == w.id
}

// givesWay reports whether the worker should give up partition k, which it holds. It does so only
// once another worker is waiting for the partition and a plan made since then assigns it to
// someone else. Until then it keeps the partition, so that there is always an owner. A leaving
// worker does not wait for a new plan, and gives up everything once it is alone or its time is up.
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

// alone reports whether the last look showed no other worker that could take over.
func (w *worker) alone() bool { return w.seen > 0 && len(w.members) == 0 }

// nextLook returns when the group is to be read next, or zero if no read is due.
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

// next returns when to call decide again if no event comes first, or zero if there is no need.
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

// lookBy makes the worker read the group no later than t.
func (w *worker) lookBy(t time.Time) {
	if w.lookAt.IsZero() || t.Before(w.lookAt) {
		w.lookAt = t
	}
}

// moved records that a member has joined or left, or may have.
func (w *worker) moved(now time.Time) {
	if w.changed.IsZero() {
		w.changedFirst = now
	}
	w.changed, w.pause = now, minLook
}

// joined records that the worker has become a member.
func (w *worker) joined(token uint64, now time.Time) {
	w.member, w.token, w.fresh = true, token, false
	w.moved(now)
}

// left records that the worker's own membership has ended.
func (w *worker) left(now time.Time) {
	w.member = false
	w.moved(now)
}

// gone records that the membership with this token has ended. A list that still shows it is out
// of date.
func (w *worker) gone(token uint64, now time.Time) {
	w.past[token] = struct{}{}
	w.moved(now)
}

// renewed records that a member has renewed its lease. If the last look did not show that
// membership, the notification of its grant was missed. But once a change has made a look due,
// renewals have no effect: a worker that has just joined does not know any members yet, and the
// renewals of many members must not keep postponing its first look.
func (w *worker) renewed(token uint64, now time.Time) {
	delete(w.past, token)
	if _, known := w.known[token]; !known && w.changed.IsZero() {
		w.moved(now)
	}
}

// read records the result of the look in progress. If it returns an error, that error ends Run.
func (w *worker) read(g State, now time.Time) error {
	w.looking, w.failed = false, 0
	if w.member && !w.closing {
		switch {
		case !g.has(w.token): // the read predates the grant, or the membership has ended unnoticed
			w.lookBy(now.Add(settle))
			return nil
		case g.Count != len(w.slots): //safety:partition-one-count
			return fmt.Errorf("%w: the group has %d partitions, but this worker was started with %d; %s joined first, so use the same number or another group name", ErrCount, g.Count, len(w.slots), plain.Text(g.Members[0].ID))
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
				s.contended = w.seen // the list shows a waiter whose notification was missed
			case p.Waiting == 0 && s.contended <= w.seen:
				// The waiter gave up. The next waiter causes no notification, so unsettled keeps
				// the worker looking.
				s.contended = 0
			}
		}
	}
	return nil
}

// unsettled reports whether the group must be read again later. It must if this worker is waiting
// for a partition, if it holds a partition that another worker is waiting for or should own, or
// if the last list still showed a membership that had ended.
func (w *worker) unsettled() bool {
	for k, s := range w.slots {
		if s.phase == claiming || s.phase == held && (s.contended > 0 || !w.mine(k)) {
			return true
		}
	}
	return len(w.past) > 0
}

// unread records that the look in progress has failed.
func (w *worker) unread(now time.Time) {
	w.looking = false
	w.lookBy(now.Add(again.Pause(w.failed)))
	w.failed++
}

// granted records that a claim has acquired its lock, and reports whether to run the function. If
// not, the lock must be released.
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

// asked records that another worker is waiting for partition k.
func (w *worker) asked(k int) {
	if s := &w.slots[k]; s.phase == held && s.contended == 0 {
		if s.contended = w.looks + 1; !w.closing {
			w.wanted = max(w.wanted, s.contended)
		}
	}
}

// returned records that the function of partition k has returned. If it ran for long enough,
// earlier failures no longer count.
func (w *worker) returned(k int, now time.Time) {
	if s := &w.slots[k]; s.phase == held && now.Sub(s.since) >= again.Long {
		s.failed = 0
	}
}

// ended records that the worker has released partition k, or that its claim has ended without a
// grant. A failure delays the next claim.
func (w *worker) ended(k int, failure bool, now time.Time) {
	next := slot{}
	if failed := w.slots[k].failed; failure {
		next.retry, next.failed = now.Add(again.Pause(failed)), failed+1
	}
	w.slots[k] = next
}

// close makes the worker leave. Until closeBy it hands its partitions to workers that are waiting
// for them. After that it releases the rest.
func (w *worker) close(now time.Time) {
	w.closing, w.closeBy = true, now.Add(handOver)
	w.members = slices.DeleteFunc(slices.Clone(w.members), func(m Member) bool { return m.Token == w.token })
	if !w.changed.IsZero() || w.looking || !w.alone() {
		w.seen = 0 // the members must be read again
		w.moved(now)
	}
}

// abandon makes the worker leave without waiting for the others, because it can no longer hear
// from them.
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

// ErrCount means that the group was started with a different number of partitions. It matches
// [natslock.ErrInvalid].
var ErrCount = fmt.Errorf("%w: different number of partitions", natslock.ErrInvalid)
