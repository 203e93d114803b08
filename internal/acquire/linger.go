package acquire

import (
	"container/list"
	"context"
	"time"

	"github.com/natslock/locks/internal/clock"
)

// A run lingers when its last member has left and has asked for that: the client keeps the
// lease, which is idle then. The next goroutine of the client that asks for the lock is
// inside without a message. The client gives an idle lease up when anything asks that
// cannot join it: another client, which queues, or a goroutine that wants another lease.
//
// A goroutine uses an idle lease only while a list of the queue counts, which has shown no
// other client. Without one it waits for a list, and so do those that ask after it.
//
// An idle lease is never used again once its release is sent: recall closes its run first.
// A lease that the server has just granted is used once before it is given up, because a
// run is idle only after a member has left it.

const (
	// DefaultMaxLingering bounds the idle leases of a client.
	DefaultMaxLingering = 10_000
	// rouseFor bounds how long a one-shot acquire waits for such a list.
	rouseFor = 250 * time.Millisecond
)

// lingering are the idle leases of a client. Under runs.mu.
type lingering struct {
	most    int
	closed  bool
	idle    list.List     // of runs, the least recently used first
	listing bool          // a round lists their queues
	alarm   *time.Timer   // of the next round; nil: no lease has been idle
	rings   clock.Instant // when the alarm does; 0: it is not set
}

// rest is what a run has that lingers, or has done so.
type rest struct {
	idle    *list.Element // among those of the client; nil: it is not idle
	waits   bool          // nobody is inside: its members wait for a list
	listing bool          // a list of its own is under way
	linger  time.Duration // of the member that left last; 0: none has left
	ends    clock.Instant // of an idle run
}

// lingersNext is called before the claim of a run that is to linger. Its client subscribes
// first: the answer to the claim proves the subscription. Then a TryLock of another client
// has an answer from the first hold on. A member that goes on with the claim of another
// one begins nothing: what has become known since that claim stays news.
func (r *run) lingersNext(a *acquisition) {
	l := r.line
	if l == nil || a.req.Linger == 0 {
		return
	}
	l.mu.Lock()
	begins := l.others == nil && a.bid.cur == nil
	l.mu.Unlock()
	l.listen(r.reads())
	l.mu.Lock()
	defer l.mu.Unlock()
	if begins { //safety:linger-begun
		r.begin()
	}
}

// lingers says whether the run keeps its lease although no member is left. Under mu.
func (r *run) lingers(now clock.Instant) bool {
	l := r.line
	return r.rest.linger > 0 && !l.idle.closed && len(l.all) == 1 &&
		!r.asked(now) && r.lease.MayIdle(now)
}

// informed says whether the client would know of another client that waits. Under mu.
func (r *run) informed(now clock.Instant) bool {
	o := r.line.others
	return o != nil && o.watch != nil && o.from == 0 && o.fresh(o.listed, now, freshFor) && //safety:linger-informed
		(!r.reads() || o.gate.watch != nil && o.fresh(o.gate.listed, now, freshFor))
}

// listedAt is when the client asked for the list that [run.informed] judges. It is 0 without
// one. Under mu.
func (r *run) listedAt() clock.Instant {
	o := r.line.others
	switch {
	case o == nil:
		return 0
	case r.reads():
		return min(o.listed, o.gate.listed)
	}
	return o.listed
}

// asked says whether another client is known to wait for the lease. Under mu.
func (r *run) asked(now clock.Instant) bool {
	o := r.line.others
	if o == nil {
		return false
	}
	if r.reads() && o.gate.revision > r.lease.Revision && o.gate.stands(now) { //safety:gate-recalls
		return true
	}
	return o.after(0, now, r.reads()) //safety:place-recalls
}

// idles makes the run idle. Under mu.
func (r *run) idles(now clock.Instant) {
	l := r.line
	r.rest.ends = now.Add(r.rest.linger)
	r.rest.idle = l.idle.idle.PushBack(r)
	if r.listen(); r.over { // the lease has ended
		return
	}
	r.lease.Idle()
	relistAt := now.Add(listEvery)
	if r.informed(now) {
		relistAt = r.listedAt().Add(listEvery) //safety:linger-relisted
	} else {
		r.relist()
	}
	l.tendAt(min(r.rest.ends, relistAt), now)
	if l.idle.idle.Len() > l.idle.most {
		l.idle.idle.Front().Value.(*run).recall()
	}
}

// tendAt sets the alarm of the next round through the idle leases. Under mu.
func (rs *runs) tendAt(at, now clock.Instant) {
	i := &rs.idle
	switch {
	case i.rings != 0 && i.rings <= at:
		return
	case i.alarm == nil:
		i.alarm = time.AfterFunc(at.Sub(now), rs.tend)
	default:
		i.alarm.Reset(at.Sub(now))
	}
	i.rings = at
}

// keeps gives a run that did not wait a line, so that it can linger. It cannot while other
// goroutines of the client wait. Under mu.
func (rs *runs) keeps(r *run, m *member) {
	if l := rs.line(m.a.keys); len(l.all) == 0 {
		r.turnEnds = rs.c.b.Instant()
		r.heads(l, m)
		r.relist() // its subscription shows a TryLock elsewhere //safety:try-subscribed
	}
}

// use takes an idle run for a goroutine that asks. Under mu.
func (r *run) use() {
	r.line.idle.idle.Remove(r.rest.idle)
	r.rest.idle = nil
}

// take lets a goroutine that asks into an idle run, or has it wait for a list. Under mu.
func (r *run) take(m *member, now clock.Instant) {
	r.use()
	if !r.informed(now) { //safety:idle-informed
		r.rest.waits = true
		r.relist()
		r.members = append(r.members, m)
		return
	}
	if now.Sub(r.listedAt()) >= listEvery {
		r.relist() // before the list is too old
	}
	r.letIn(m)
}

// recall gives up a lease that nobody uses. Members that wait do so in a new run. Released
// is closed when the release is over. Under mu.
func (r *run) recall() (released <-chan struct{}) {
	r.end() //safety:recall-closes
	return r.lease.Drop()
}

// rouse says whether the client has an idle lease that a one-shot acquire can use at once.
// It gives up one that the acquire cannot use, and waits for that. It waits for a list
// where one is still to come.
func (rs *runs) rouse(a *acquisition) bool {
	rs.mu.Lock()
	r := rs.lines[a.keys.Gate].resting()
	if r == nil || r.rest.idle == nil {
		rs.mu.Unlock()
		return false
	}
	takes, informed := r.takes(a), r.informed(rs.c.b.Instant())
	var released <-chan struct{}
	if !takes {
		released = r.recall()
	}
	rs.mu.Unlock()
	ctx, cancel := context.WithTimeout(a.ctx, rouseFor)
	defer cancel()
	switch {
	case !takes:
		select {
		case <-released:
		case <-ctx.Done():
		}
	case !informed:
		r.line.inform(ctx, r.reads()) //safety:rouse-listed
	}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return r.rest.idle != nil
}

// afterRecall waits for the release of the idle lease before the run: its record would
// refuse the claim.
func (r *run) afterRecall(a *acquisition) result {
	if r.recalled == nil {
		return result{}
	}
	select {
	case <-r.recalled:
		return result{}
	case <-a.ctx.Done():
	case <-a.c.b.Granting().Done():
	}
	return result{outcome: ended, err: a.over()}
}

// resting returns the run of the line whose lease nobody uses, if there is one. Under mu.
func (l *line) resting() *run {
	if l == nil {
		return nil
	}
	for _, r := range l.all {
		if r.rest.idle != nil || r.rest.waits {
			return r
		}
	}
	return nil
}

// asked follows news of other clients: the idle lease of the line is given up when one
// asks, and the holders are notified that want that. Under mu.
func (l *line) asked(now clock.Instant) {
	if r := l.resting(); r != nil && r.asked(now) {
		r.recall()
	}
	l.contend(now)
}

// recallAll gives up all idle leases: the client closes.
func (rs *runs) recallAll() {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.idle.closed = true
	for _, l := range rs.lines {
		if r := l.resting(); r != nil {
			r.recall()
		}
	}
}
