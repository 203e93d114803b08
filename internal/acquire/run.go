package acquire

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
)

// run is one or more goroutines that wait together. A run without a line has a single
// member, which does not wait.
type run struct {
	line    *line
	ttl     time.Duration
	meta    map[string]string // of the readers
	inside  int32             // of its members: one at a time, but for readers
	mode    record.Mode
	private bool // nobody joins it
	behind  bool // it was not the first of its line
	queues  bool // a run before it waits or writes: it tries nothing before it has queued
	over    bool
	drained bool // no reader is left behind its gate
	listens bool // to the end of the lease
	placed  bool // it has written a place
	heard   bool // the server has said last that the lock is held, or the run queued

	members []*member // that wait, in order
	driver  *member   // one of them; nil: the run has its lease
	place   *session.Place
	lease   *session.Lease
	settled chan struct{} // closed when it has a record, or is over; nil: nobody waits for that
	shown   *shown        // nil: nothing
	writing writing       // the write of its record
	trouble error         // what the last request has come to instead; nil: no answer, or heard

	turnEnds clock.Instant
	timer    *time.Timer // of that; nil: nobody has joined in the turn
	rest     rest
	recalled <-chan struct{} // of the idle lease before; nil: there was none
	next     *run            // where its members went when the lease had ended

	firstMember [1]*member
}

// shown is what the driver has seen of the lock.
type shown struct {
	holder record.Entry // zero: not known
	ahead  int          // goroutines in the queue before the run, and 1; 0: not known
}

// errUnheard says that the server has given no usable answer to a call.
var errUnheard = fmt.Errorf("%w: no usable answer by then", bucket.ErrUnavailable)

// outage is why the server may be unavailable to a member that gives up; nil: it has said
// last that the lock is held or the run queued. A run waits for those before it in its line:
// what they have heard counts until it has asked for itself. Under mu.
func (r *run) outage() error {
	if r.heard || r.trouble != nil || r.line == nil {
		return r.said()
	}
	err := error(errUnheard)
	for _, x := range r.line.all {
		if x == r {
			break
		}
		if err = x.said(); x.lease != nil {
			err = nil // this client has the lock
		}
	}
	return err
}

func (r *run) said() error {
	if r.heard {
		return nil
	}
	return cmp.Or(r.trouble, errUnheard)
}

// joinable says whether a goroutine that joins the run passes no other client that this
// one knows of. Under mu.
func (r *run) joinable(now clock.Instant) bool {
	o := r.line.others
	switch {
	case r.rest.idle != nil || r.rest.waits: // or it would have been recalled
		return true
	case r.writing.place && !r.writing.proves: //safety:run-unsubscribed
		return false // other clients may have queued behind it, unnoticed
	case r.writing.begun != 0 && now.Sub(r.writing.begun) < unanswered && o.news() == r.writing.news: //safety:run-unanswered
		return true
	case r.lease != nil && r.reads():
		return o.unwritten(r.lease.Revision, now)
	case r.lease != nil:
		// A client that was passed while it was paused may be queued with any ticket.
		return o.known(0, now) && !o.after(0, now, false) //safety:run-grows
	case r.place != nil:
		return o.known(r.place.Ticket(), now) && !o.after(r.place.Ticket(), now, r.reads()) //safety:run-joined
	}
	return false
}

// join adds a member, which may pass other clients in the turn of the run. Under mu.
func (r *run) join(m *member, passes bool, now clock.Instant) {
	m.run, m.late = r, passes
	switch {
	case r.rest.idle != nil:
		r.take(m, now)
		return
	case r.rest.waits:
		r.members = append(r.members, m)
		return
	case r.lease != nil && r.reads():
		r.letIn(m)
		r.listen()
		return
	}
	if !passes { // nor do those before it, any more
		r.punctual()
	}
	r.members = append(r.members, m)
	r.resize()
	r.line.contend(now)
	if passes && r.timer == nil {
		r.timer = time.AfterFunc(r.turnEnds.Sub(now), r.turnOver)
	}
	r.listen()
	if r.place != nil || r.lease != nil { // else when it has one of them
		r.announce(m)
	}
}

// punctual notes that no member passes another client any more. Under mu.
func (r *run) punctual() {
	for _, m := range r.members {
		m.late = false
	}
}

// turnOver sends the members that have joined in the turn, and are not served, to a run
// behind the other clients.
func (r *run) turnOver() {
	r.line.mu.Lock()
	defer r.line.mu.Unlock()
	r.cut()
}

// cut opens a new run for the members that would pass other clients. Where nobody is
// queued any more they pass nobody, and clients that come now are behind them. Under mu.
func (r *run) cut() {
	i := slices.IndexFunc(r.members, func(m *member) bool { return m.late })
	if r.over || i < 0 {
		return
	}
	if r.joinable(r.line.c.b.Instant()) { //safety:turn-cut
		r.punctual()
		return
	}
	late := r.members[i:]
	r.members = slices.Clone(r.members[:i])
	r.resize()
	r.line.open(late)
}

// listen has the run end with its lease. Under mu.
func (r *run) listen() {
	if r.lease == nil || r.listens {
		return
	}
	r.listens = true
	if !r.lease.OnEnd(r.leaseEnded) {
		r.end()
	}
}

func (r *run) leaseEnded() {
	r.line.mu.Lock()
	defer r.line.mu.Unlock()
	if r.rest.idle != nil || r.rest.waits {
		r.recall() // a broken record keeps others out until it is deleted
		return
	}
	r.end()
}

// end ends a run whose lease has ended. Its members wait on, in a new run. Under mu.
func (r *run) end() {
	if r.over {
		return
	}
	if len(r.members) > 0 {
		r.next = r.line.open(r.members)
	}
	r.close()
}

// close removes the run, which has no members any more. Under mu.
func (r *run) close() {
	if r.over {
		return
	}
	r.over, r.members, r.driver = true, nil, nil
	r.settle()
	if r.timer != nil {
		r.timer.Stop()
	}
	l := r.line
	if r.rest.idle != nil {
		r.use()
	}
	l.all = slices.DeleteFunc(l.all, func(x *run) bool { return x == r })
	if len(l.all) > 0 {
		return
	}
	delete(l.lines, l.keys.Gate)
	if l.others != nil {
		l.others.stop(l.c.s)
	}
}

// granted makes l the lease of the run, and admits its first member, or all that read. m
// has driven it. It returns false if nobody is left that the claim was for.
func (r *run) granted(m *member, l *session.Lease) bool {
	m.runs.mu.Lock()
	defer m.runs.mu.Unlock()
	// A claim whose answer was lost is found late. The goroutines that joined the place of
	// the run asked after other clients had queued behind the claim.
	found := r.place != nil && l.Revision < r.place.Ticket()
	m.runs.setPlace(r, nil)
	r.lease, r.driver, r.drained = l, nil, false
	r.rest.linger = 0
	if r.line == nil {
		if m.linger > 0 {
			m.runs.keeps(r, m)
		}
		r.letIn(m)
		return true
	}
	if w, o := r.writing, r.line.others; o != nil && w.proves {
		o.prove(r.line.c.b.Instant(), w.epoch)
	}
	r.writing, r.private = writing{}, m.a.private()
	r.settle()
	if !r.reads() {
		r.turnEnds = r.line.c.b.Instant().Add(r.line.turn) //safety:turn-bounded
	}
	if found { //safety:claim-found
		for _, m := range r.members {
			m.late = !m.early
		}
		r.cut()
	}
	if len(r.members) == 0 {
		r.close()
		return false
	}
	r.serve(m)
	return true
}

// serve admits the first member that waits, or all that read, and wakes all but the
// driver. Under mu.
func (r *run) serve(driver *member) {
	for first := true; len(r.members) > 0 && (first || r.reads()); first = false {
		if next := r.admit(); next != driver {
			next.poke()
		}
	}
	for _, m := range r.members {
		if !m.queued {
			r.announce(m)
		}
	}
}

// admit takes the first member out of those that wait: it is the next holder. Under mu.
func (r *run) admit() *member {
	m := r.members[0]
	r.members = slices.Delete(r.members, 0, 1)
	r.letIn(m)
	r.resize()
	if len(r.members) > 0 {
		r.listen()
	}
	return m
}

// goesOn says whether a member waits for the lease of the run, or reads beside others.
// Otherwise the run is over, and its lease is to be released. Under mu.
func (r *run) goesOn(now clock.Instant) bool {
	switch {
	// After the end of the lease too: the last one deletes a broken record.
	case r.reads() && r.inside > 0: //safety:last-leaves
		return true
	case r.line == nil || r.over:
		return false
	}
	if len(r.members) > 0 && r.members[0].late && now >= r.turnEnds { //safety:turn-ends
		r.cut()
	}
	if len(r.members) == 0 && !r.lingers(now) {
		r.close()
	}
	return !r.over
}

// follow admits the member after one that has left, where one is inside at a time. It
// says whether the run goes on. Under mu.
func (r *run) follow(now clock.Instant) bool {
	r.inside--
	if !r.goesOn(now) {
		return false
	}
	switch {
	case len(r.members) == 0 && r.inside == 0:
		r.idles(now)
		return !r.over
	case !r.reads():
		r.admit().poke()
	}
	return true
}

// resize notes the number of members in the record, for its next renewal. Under mu.
func (r *run) resize() {
	switch {
	case r.lease != nil:
		r.lease.SetSize(len(r.members) + 1)
	case r.place != nil:
		r.place.SetSize(len(r.members))
	}
}
