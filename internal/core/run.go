package core

import (
	"maps"
	"slices"
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
)

// Line is the runs of one lock. Most locks have none: one goroutine holds them, and no other one
// wants them. A line exists while goroutines wait, a lease lingers, or a holder wants a [Hint].
type Line struct {
	Runs   []*Run  // in the order of their opening
	Others *Others // nil: not subscribed to the queue
	Owner  any     // the caller's

	c      *Client
	hinted *[]hint // holders that are to be notified of goroutines that wait; nil: none wants that

	// Most lines need only one run.
	firstRun  Run
	firstRuns [1]*Run
}

// Begin makes the line one of a client. owner is the caller's.
func (l *Line) Begin(c *Client, owner any) { l.c, l.Owner, l.Runs = c, owner, l.firstRuns[:0] }

// Want is what a goroutine asks for.
type Want struct {
	TTL     time.Duration
	Mode    record.Mode
	Meta    map[string]string
	Private bool // the lease is for this goroutine only
	Once    bool // it does not wait
	Patient bool // it passes no other client
	Owner   any  // the caller's
}

// Member is a goroutine in its run: one that waits, or one that is inside.
//
// It is in one run at a time: in Run.Members while it waits, and counted in Run.Inside from then
// on. Its own Inside is true once it may use the lease, even before it has entered.
type Member struct {
	Want   *Want // nil once it is served
	Run    *Run  // nil: it holds the lock, and has no line
	Linger time.Duration

	Inside bool // it is the holder, or is to be
	Queued bool // announced as such
	late   bool // it passes other clients: it joined in the turn, or too late for the claim
	early  bool // it was there before the run wrote a place
}

// Run is one or more goroutines that wait together; see the package's comment. A run without a line
// has a single member, which does not wait with others.
type Run struct {
	Line  *Line
	Owner any // what the caller keeps of it; see [Open]

	TTL     time.Duration
	Meta    map[string]string // of the readers
	Mode    record.Mode
	Private bool // nobody joins it
	Behind  bool // it was not the first of its line
	Queues  bool // it was opened behind a run that is exclusive, or has no lease yet: it queues before it claims
	Over    bool
	Drained bool  // no reader is left behind its gate
	MayIdle bool  // the record says that its lease lingers, for other clients to see
	Inside  int32 // of its members: one at a time, but for readers

	Members []*Member // that wait, in order
	Driver  *Member   // one of them; nil: the run has its lease
	Ticket  uint64    // of its place; 0: it has none
	Lease   Lease
	Awaits  *Run // whose lease is being released, which a claim has to wait for; nil: none
	MovedTo *Run // where its members went when the lease had ended

	placed   bool // it has written a place
	watched  bool // the end of its lease
	timed    bool // its turn: a goroutine has joined in it
	writing  writing
	turnEnds clock.Instant
	spare    spare

	firstMember [1]*Member
}

// Lease is what the core knows of the lease of a run. Renewals move Until, and MayIdle of the run, so
// the caller sets them before [Line.Ask], [Run.Host], [Member.Leave], [Run.Next] and [Member.GiveUp].
type Lease struct {
	Revision uint64        // 0: there is none
	Until    clock.Instant // it is valid until then
}

// writing is the first write of a record of a run, without an answer yet, or without the
// list of the queue that follows the answer.
type writing struct {
	begun  clock.Instant // 0: none
	news   uint32        // Others.count by then
	epoch  uint32        // Others.epoch by then
	place  bool          // not a claim
	proves bool          // the subscription is older
}

// Reads says whether the members of the run are inside together.
func (r *Run) Reads() bool { return r.Mode == record.Shared }

// Leased says whether the run has its lease.
func (r *Run) Leased() bool { return r.Lease.Revision != 0 }

// Ended says whether the run has a lease that is not valid any more.
func (r *Run) Ended(now clock.Instant) bool { return r.Leased() && now >= r.Lease.Until }

// Takes says whether the run's record can serve a goroutine with these wants too. A record has
// one TTL and one end, and readers who are inside together share its metadata.
func (r *Run) Takes(w *Want) bool {
	return !r.Private && !w.Private && r.TTL == w.TTL && //safety:run-own-record
		r.Mode == w.Mode && (!r.Reads() || maps.Equal(r.Meta, w.Meta))
}

// Joinable says whether a goroutine that joins the run passes no other client that this
// one knows of.
func (r *Run) Joinable(now clock.Instant) bool {
	o := r.Line.Others
	switch {
	case r.Spare(): // or it would have been recalled
		return true
	case r.writing.place && !r.writing.proves: //safety:run-unsubscribed
		return false // other clients may have queued behind it, unnoticed
	case r.writing.begun != 0 && now.Sub(r.writing.begun) < unanswered && o.news() == r.writing.news: //safety:run-unanswered
		return true
	case r.Leased() && r.Reads():
		return o.unwritten(r.Lease.Revision, now)
	case r.Leased():
		// A client that was passed while it was paused may be queued with any ticket.
		return o.known(0, now) && !o.after(0, now, false) //safety:run-grows
	case r.Ticket != 0:
		return o.known(r.Ticket, now) && !o.after(r.Ticket, now, r.Reads()) //safety:run-joined
	}
	return false
}

// Ask makes a goroutine a member of the last run, if it may join that, or of a new one. joined is
// false for a one-shot acquire that does not read and found no idle lease to use: it gets no run here.
//
// A goroutine that would pass another client joins the run all the same in its turn, which ends
// at an instant after the grant: then those that are not served go to a run behind the others.
func (l *Line) Ask(m *Member, now clock.Instant) (joined bool) {
	w := m.Want
	var recalled *Run
	spare := l.Spare()
	if r := spare; r != nil {
		switch takes := r.Takes(w); {
		case r.Idle() && r.Ended(now) || !takes && !w.Once:
			r.recall(now)
			recalled = r
		case r.Idle() && w.Once && takes && r.Informed(now):
			r.join(m, false, now)
			return true
		}
	}
	if w.Once && w.Mode != record.Shared {
		return false
	}
	for i := 0; i < len(l.Runs); {
		if r := l.Runs[i]; r.Ended(now) { // and its holder has not released it yet
			r.end(now)
		} else {
			i++
		}
	}
	if n := len(l.Runs); n > 0 {
		r := l.Runs[n-1]
		joins := r.Joinable(now) && !(w.Once && r.Inside == 0)
		passes := !joins && !r.Reads() && r.Leased() && now < r.turnEnds
		if w.Patient { //safety:patient-turn
			passes = false
		}
		if (joins || passes) && r.Takes(w) {
			r.join(m, passes, now)
			if spare == nil { // else the run lists the queue now and then
				l.refresh(now)
			}
			return true
		}
		if !w.Once {
			r.turnEnds = now
			r.cut(now) // its late members are before this one //safety:turn-ended-early
		}
	}
	if r := l.open([]*Member{m}, now); recalled != nil {
		r.Awaits = recalled
	}
	return true
}

// join adds a member, which may pass other clients in the turn of the run.
func (r *Run) join(m *Member, passes bool, now clock.Instant) {
	m.Run, m.late = r, passes
	switch {
	case r.Idle():
		r.take(m, now)
		return
	case r.spare.waits:
		r.Members = append(r.Members, m)
		return
	case r.Leased() && r.Reads():
		r.letIn(m)
		r.listen()
		return
	}
	if !passes { // nor do those before it, any more
		r.punctual()
	}
	r.Members = append(r.Members, m)
	r.resize()
	r.Line.contend(now)
	if passes && !r.timed {
		r.timed = true
		r.Line.c.do(Effect{Do: EndTurn, Run: r, At: r.turnEnds})
	}
	r.listen()
	if r.Ticket != 0 || r.Leased() { // else when it has one of them
		r.announce(m)
	}
}

// open adds a run of members that wait and want the same lease.
func (l *Line) open(members []*Member, now clock.Instant) *Run {
	r := &l.firstRun
	if r.Line != nil {
		r = new(Run)
	}
	w := members[0].Want
	*r = Run{Line: l, TTL: w.TTL, Behind: len(l.Runs) > 0, Mode: w.Mode, Meta: w.Meta, Private: w.Private || w.Once}
	r.Queues = slices.ContainsFunc(l.Runs, func(x *Run) bool { return !x.Reads() || !x.Leased() })
	r.Members = append(r.firstMember[:0], members...)
	for _, m := range members {
		m.Run, m.late, m.early = r, false, false
	}
	l.Runs = append(l.Runs, r)
	l.c.do(Effect{Do: Open, Run: r})
	r.begin(now)
	r.Driver = r.Members[0]
	r.wake(r.Driver)
	l.contend(now)
	if x := l.Spare(); x != nil && x.Idle() { // or the run would wait for its end //safety:idle-before
		x.recall(now)
		r.Awaits = x
	}
	return r
}

// Head puts a run into a line that has none. Member m is inside the run's lease. If r is nil, Head makes
// a new run, without an [Open]. The caller sets the run's Lease.
func (l *Line) Head(r *Run, m *Member, turnEnds clock.Instant) *Run {
	if r == nil {
		r = &l.firstRun
		r.Inside, r.Drained = 1, true
	}
	r.turnEnds = turnEnds
	r.Line, m.Run = l, r
	l.Runs = append(l.Runs, r)
	return r
}

// Alone returns whether the holder of the run is the only one that the line is for, and the end
// of its turn: then the line can be forgotten, and [Line.Head] makes it again.
func (r *Run) Alone() (turnEnds clock.Instant, alone bool) {
	l := r.Line
	alone = l != nil && !r.Over && !r.watched && !r.timed && len(r.Members) == 0 && r.Inside <= 1 && len(l.Runs) == 1 && l.Others == nil
	return r.turnEnds, alone
}

// punctual notes that no member passes another client any more.
func (r *Run) punctual() {
	for _, m := range r.Members {
		m.late = false
	}
}

// TurnOver sends the members that have joined in the turn, and are not served, to a run
// behind the other clients.
func (r *Run) TurnOver(now clock.Instant) { r.cut(now) }

// cut opens a new run for the members that would pass other clients. Where nobody is
// queued any more they pass nobody, and clients that come now are behind them.
func (r *Run) cut(now clock.Instant) {
	i := len(r.Members)
	for i > 0 && r.Members[i-1].late { // they joined last
		i--
	}
	if r.Over || i == len(r.Members) {
		return
	}
	if r.Joinable(now) { //safety:turn-cut
		r.punctual()
		return
	}
	late := r.Members[i:]
	r.Members = slices.Clone(r.Members[:i])
	r.resize()
	r.Line.open(late, now)
}

// listen has the caller report the end of the lease, which ends the run: see [OnEnd].
func (r *Run) listen() {
	if r.Leased() && !r.watched {
		r.watched = true
		r.Line.c.do(Effect{Do: OnEnd, Run: r})
	}
}

// Listen is listen for a holder that wants to know of waiters.
func (r *Run) Listen() { r.listen() }

// LeaseEnded ends a run whose lease has ended. Its members wait on, in a new run.
func (r *Run) LeaseEnded(now clock.Instant) {
	if r.Spare() {
		r.recall(now) // a broken record keeps others out until it is deleted
		return
	}
	r.end(now)
}

func (r *Run) end(now clock.Instant) {
	if r.Over {
		return
	}
	if len(r.Members) > 0 {
		r.MovedTo = r.Line.open(r.Members, now)
	}
	r.close()
}

// close removes the run, which has no members any more.
func (r *Run) close() {
	if r.Over {
		return
	}
	r.Over, r.Members, r.Driver = true, nil, nil
	l := r.Line
	l.c.do(Effect{Do: Settle, Run: r})
	if r.timed {
		l.c.do(Effect{Do: KeepTurn, Run: r})
	}
	if r.Idle() {
		r.use()
	}
	l.Runs = slices.DeleteFunc(l.Runs, func(x *Run) bool { return x == r })
	if len(l.Runs) == 0 {
		l.c.do(Effect{Do: Close, Line: l})
	}
}

// Several says whether other goroutines of the client wait, or hold the lock, besides the driver. Then
// the client subscribes to the queue before it writes a place: the answer proves the subscription.
func (r *Run) Several() bool { return r.Behind || len(r.Line.Runs) > 1 || len(r.Members) > 1 }

// begin notes that a first write of a record is sent now.
func (r *Run) begin(now clock.Instant) {
	o := r.Line.Others
	r.writing = writing{begun: now, news: o.news()}
	if o != nil && o.Queue {
		r.writing.proves, r.writing.epoch = true, o.epoch
	}
}

// Claiming notes that a claim is sent now, after a subscription that its answer proves.
func (r *Run) Claiming(now clock.Instant) { r.begin(now) }

// Queueing notes that the run is about to write a place: its first one, or another after that was lost.
func (r *Run) Queueing(now clock.Instant) {
	r.begin(now)
	r.writing.place = true
	for _, m := range r.Members {
		m.early = m.early || !r.placed
	}
	r.placed = true
}

// Before returns the run that has to have a record before this one writes a place: a place that is
// sent while the claim of an earlier run is not answered may get the earlier ticket. nil: none.
func (r *Run) Before() *Run {
	i := slices.Index(r.Line.Runs, r)
	if i < 1 {
		return nil
	}
	if before := r.Line.Runs[i-1]; before.Ticket == 0 && !before.Leased() { //safety:run-in-order
		return before
	}
	return nil
}

// PlaceAt notes that the run has a place.
func (r *Run) PlaceAt(ticket uint64, now clock.Instant) {
	r.Ticket = ticket
	for _, m := range r.Members {
		r.announce(m)
	}
	// The first list is still to come: see PlaceListed.
	r.prove(now)
	r.Line.c.do(Effect{Do: Settle, Run: r})
	r.resize()
}

// PlaceLost notes that the place of the run has gone. It queues again behind the others.
func (r *Run) PlaceLost() {
	r.Ticket, r.writing = 0, writing{}
	if l := r.Line; !r.Over {
		l.Runs = append(slices.DeleteFunc(l.Runs, func(x *Run) bool { return x == r }), r) //safety:requeued-behind
	}
}

// PlaceListed notes that a list of the queue contains the place of the run: see [Line.Listed].
func (r *Run) PlaceListed() { r.writing = writing{} }

// prove notes the answer to the first write of a record.
func (r *Run) prove(now clock.Instant) {
	if w, o := r.writing, r.Line.Others; o != nil && w.proves {
		o.Prove(now, w.epoch)
	}
}

// Granted gives the run its lease, and admits its first member, or all of them if they read. m drove the
// run. It returns false if no member is left to use the lease.
func (r *Run) Granted(m *Member, lease Lease, now clock.Instant) bool {
	// A claim whose answer was lost is found late. The goroutines that joined the place of
	// the run began after other clients had queued behind the claim.
	found := r.Ticket != 0 && lease.Revision < r.Ticket
	r.Ticket, r.Lease, r.Driver, r.Drained = 0, lease, nil, false
	if r.Line == nil {
		r.letIn(m)
		return true
	}
	r.prove(now)
	r.writing, r.Private = writing{}, m.Want.Private
	r.Line.c.do(Effect{Do: Settle, Run: r})
	if !r.Reads() {
		r.turnEnds = now.Add(r.Line.c.Turn) //safety:turn-bounded
	}
	if found { //safety:claim-found
		for _, m := range r.Members {
			m.late = !m.early
		}
		r.cut(now)
	}
	if len(r.Members) == 0 {
		r.close()
		return false
	}
	r.serve(m)
	return true
}

// serve admits the first member that waits, or all that read, and wakes all but the driver.
func (r *Run) serve(driver *Member) {
	for first := true; len(r.Members) > 0 && (first || r.Reads()); first = false {
		if next := r.admit(); next != driver {
			r.wake(next)
		}
	}
	for _, m := range r.Members {
		if !m.Queued {
			r.announce(m)
		}
	}
}

// admit takes the first member out of those that wait: it is the next holder.
func (r *Run) admit() *Member {
	m := r.Members[0]
	r.Members = slices.Delete(r.Members, 0, 1)
	r.letIn(m)
	r.resize()
	if len(r.Members) > 0 {
		r.listen()
	}
	return m
}

// letIn counts a member among those inside, which may still have to enter.
func (r *Run) letIn(m *Member) {
	m.Inside = true
	r.Inside++
}

// Host returns the run before, if its lease can be that of the members of this run too:
// both read.
func (r *Run) Host(w *Want, now clock.Instant) *Run {
	i := slices.Index(r.Line.Runs, r)
	if i < 1 || !r.Reads() {
		return nil
	}
	h := r.Line.Runs[i-1]
	if !h.Reads() || !h.Leased() || h.Inside == 0 || h.Ended(now) || !h.Takes(w) {
		return nil
	}
	return h
}

// Merge has the members of the run join those of another one, which are inside.
func (r *Run) Merge(host *Run) {
	for _, m := range r.Members {
		m.Run = host
		host.letIn(m)
		r.wake(m)
	}
	r.close()
	host.listen()
}

// Lost has a member wait on because the lease ended before the member had entered. last says that its
// caller has to delete the record. opens says that it needs a new run, which [Line.Reopen] opens.
func (m *Member) Lost(now clock.Instant) (last, opens bool) {
	r := m.Run
	m.Inside = false
	r.Inside--
	last = r.Inside == 0 //safety:last-again
	switch {
	case r.Line == nil:
		r.Lease, r.Driver = Lease{}, m
	case !r.Over:
		r.Members = slices.Insert(r.Members, 0, m)
		r.end(now)
	// Ahead of those that waited behind it. A one-shot acquire does not wait with others.
	case r.MovedTo != nil && !r.MovedTo.Over && !r.MovedTo.Leased() && !m.Want.Once && r.MovedTo.Takes(m.Want):
		n := r.MovedTo
		m.Run, m.late, m.early = n, false, true
		n.Members = slices.Insert(n.Members, 0, m)
		n.resize()
		if n.Ticket != 0 {
			n.announce(m)
		}
	default:
		opens = true
	}
	return last, opens
}

// Reopen opens a new run for a member whose run is over. Readers that were to enter with that member
// follow it there.
func (l *Line) Reopen(m *Member, now clock.Instant) {
	over := m.Run
	over.MovedTo = l.open([]*Member{m}, now)
}

// Left says what a member leaves behind.
type Left uint8

const (
	// Nothing is left to the caller: others go on with what it has, or its lease is idle.
	Nothing Left = iota
	// Unused is a lease, whose release the caller of the member waits for.
	Unused
	// Withdrawn is a run without a lease, whose claim and place are to be withdrawn.
	Withdrawn
)

// GiveUp takes a member that is not served out of its run. If it has driven the run, the first
// of the others drives on, and is returned.
func (m *Member) GiveUp(now clock.Instant) (left Left, drives *Member) {
	r := m.Run
	if m.Inside {
		return r.Next(now), nil
	}
	if r.Line == nil {
		return Withdrawn, nil
	}
	r.Members = slices.DeleteFunc(r.Members, func(x *Member) bool { return x == m })
	r.resize()
	switch {
	case r.Driver != m:
		return Nothing, nil
	case len(r.Members) == 0:
		r.close()
		return Withdrawn, nil //safety:run-withdrawn
	}
	r.Driver = r.Members[0]
	r.wake(r.Driver)
	return Nothing, r.Driver
}

// Leave is called before a holder leaves. It returns Nothing if the run goes on: a member waits for its
// lease, or reads beside others, or the lease lingers. Then [Run.Next] is called when it has left.
func (m *Member) Leave(now clock.Instant) Left {
	r := m.Run
	r.spare.linger = m.Linger
	r.Line.unhint(m)
	if r.goesOn(now) {
		return Nothing
	}
	return Unused
}

func (r *Run) goesOn(now clock.Instant) bool {
	switch {
	// Also when the lease has ended: the last reader that leaves deletes a broken record.
	case r.Reads() && r.Inside > 0: //safety:last-leaves
		return true
	case r.Line == nil || r.Over:
		return false
	}
	if now >= r.turnEnds { //safety:turn-ends
		r.cut(now)
	}
	if len(r.Members) == 0 && !r.lingers(now) {
		r.close()
	}
	return !r.Over
}

// Next admits the member after one that has left ([Member.Leave]), where one is inside at a time. Those
// that waited may have gone meanwhile, or the lease has ended: then it is left Unused, as by the last
// reader. A lease that is idle is released by its own effect, also if that is at once.
func (r *Run) Next(now clock.Instant) Left {
	r.Inside--
	if !r.goesOn(now) {
		return Unused //safety:run-unused-released
	}
	switch {
	case len(r.Members) == 0 && r.Inside == 0:
		r.idles(now)
	case !r.Reads():
		r.wake(r.admit())
	}
	return Nothing
}

// Part ends the run of a member whose lease nobody else is to get.
func (m *Member) Part(now clock.Instant) {
	if r := m.Run; r.Line != nil {
		r.Line.unhint(m)
		r.end(now)
	}
}

func (r *Run) wake(m *Member) { r.Line.c.do(Effect{Do: Wake, Member: m}) }

// announce publishes that a member waits.
func (r *Run) announce(m *Member) {
	m.Queued = true
	r.Line.c.do(Effect{Do: Announce, Run: r, Member: m})
}

// resize notes the number of members in the record, for its next renewal.
func (r *Run) resize() {
	switch {
	case r.Leased():
		r.Line.c.do(Effect{Do: Size, Run: r, N: uint64(len(r.Members) + 1)})
	case r.Ticket != 0:
		r.Line.c.do(Effect{Do: Size, Run: r, N: uint64(len(r.Members))})
	}
}

// Waiting is how many members of the run wait behind others.
func (r *Run) Waiting() int {
	if r.Ticket != 0 || r.Leased() || r.Behind {
		return len(r.Members)
	}
	return 0
}

// Contended says whether a goroutine or another client waits for the lease of the run.
// Readers keep only writers waiting.
func (r *Run) Contended(now clock.Instant) bool {
	return r.othersWait(now) || slices.ContainsFunc(r.Line.Runs, func(x *Run) bool { //safety:contended-asked
		return len(x.Members) > 0 && !(r.Reads() && x.Reads())
	})
}

// hint is a holder that is to be notified, with what the caller needs for that.
type hint struct {
	m   *Member
	how any
}

// WantHint has a holder notified when its lease is contended. The [Hint] then carries how.
func (m *Member) WantHint(how any) {
	l := m.Run.Line
	if l.hinted == nil {
		l.hinted = new([]hint)
	}
	*l.hinted = append(*l.hinted, hint{m, how})
}

// contend notifies the holders that want to know whether a goroutine waits.
func (l *Line) contend(now clock.Instant) {
	if l.hinted == nil {
		return
	}
	*l.hinted = slices.DeleteFunc(*l.hinted, func(h hint) bool {
		if !h.m.Run.Contended(now) {
			return false
		}
		l.c.do(Effect{Do: Hint, Member: h.m, How: h.how})
		return true
	})
}

// unhint has the member notified no more.
func (l *Line) unhint(m *Member) {
	if l != nil && l.hinted != nil {
		*l.hinted = slices.DeleteFunc(*l.hinted, func(h hint) bool { return h.m == m })
	}
}
