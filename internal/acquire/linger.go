package acquire

import (
	"container/list"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/kvstore"
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
	// heardFor is for how long a list of the queue counts that has shown no other client: a
	// lost notification keeps that one waiting no longer.
	heardFor = 5 * time.Second
	// lookEvery is how often the client lists the queues of its idle leases, so many of
	// them with one request.
	lookEvery    = 4 * time.Second
	lookTogether = 128
	// tendAgain is the shortest time between two rounds through the idle leases.
	tendAgain = 10 * time.Millisecond
	// rouseFor bounds how long a one-shot acquire waits for such a list.
	rouseFor = 250 * time.Millisecond
)

// lingering are the idle leases of a client. Under runs.mu.
type lingering struct {
	most   int
	closed bool
	idle   list.List     // of runs, the least recently used first
	looked clock.Instant // when their queues were last listed, or the first one became idle
	alarm  *time.Timer   // of the next round; nil: no lease has been idle
	rings  clock.Instant // when the alarm does; 0: it is not set
}

// rest is what a run has that lingers, or has done so.
type rest struct {
	idle    *list.Element // among those of the client; nil: it is not idle
	waits   bool          // nobody is inside: its members wait for a list
	looking bool          // a list is under way
	linger  time.Duration // of the member that left last; 0: none has left
	ends    clock.Instant // of an idle run
}

// lingersNext is called before the claim of a run that is to linger. Its client subscribes
// first: the answer to the claim proves the subscription. Then a TryLock of another client
// has an answer from the first hold on.
func (r *run) lingersNext() {
	if r.line == nil || r.driver.linger == 0 {
		return
	}
	r.line.listen(r.reads())
	r.line.mu.Lock()
	defer r.line.mu.Unlock()
	r.begin()
}

// lingers says whether the run keeps its lease although no member is left. Under mu.
func (r *run) lingers(now clock.Instant) bool {
	l := r.line
	return r.rest.linger > 0 && !l.idle.closed && len(l.all) == 1 && l.idle.most > 0 &&
		!r.asked(now) && r.lease.MayIdle(now)
}

// hears says whether the client would know of another one that waits. Under mu.
func (r *run) hears(now clock.Instant) bool {
	o := r.line.others
	return o != nil && o.watch != nil && o.from == 0 && o.fresh(o.listed, now, heardFor) && //safety:linger-heard
		(!r.reads() || o.gate.watch != nil && o.fresh(o.gate.listed, now, heardFor))
}

// asked says whether another client is known to wait for the lease. Under mu.
func (r *run) asked(now clock.Instant) bool {
	o := r.line.others
	if o == nil {
		return false
	}
	return o.after(0, now, r.reads()) || //safety:place-recalls
		r.reads() && o.gate.revision > r.lease.Revision && o.gate.stands(now) //safety:gate-recalls
}

// idles makes the run idle. Under mu.
func (r *run) idles(now clock.Instant) {
	l := r.line
	r.rest.ends = now.Add(r.rest.linger)
	r.rest.idle = l.idle.idle.PushBack(r)
	if r.listen(); r.over { // the lease has ended
		return
	}
	if !r.hears(now) {
		r.look()
	}
	if l.idle.idle.Len() == 1 {
		l.idle.looked = now
	}
	l.tendAt(min(r.rest.ends, l.idle.looked.Add(lookEvery)), now)
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

// tend gives up the idle leases whose time is over. Now and then it lists the queues of
// the others.
func (rs *runs) tend() {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	i, now := &rs.idle, rs.c.b.Instant()
	i.rings = 0
	looks := now >= i.looked.Add(lookEvery)
	if looks {
		i.looked = now
	}
	next := i.looked.Add(lookEvery)
	var due []*run
	for e := i.idle.Front(); e != nil; {
		r := e.Value.(*run)
		e = e.Next()
		if now >= r.rest.ends {
			r.recall()
			continue
		}
		next = min(next, r.rest.ends)
		if looks && !r.rest.looking {
			r.rest.looking = true
			due = append(due, r)
		}
	}
	if i.idle.Len() > 0 {
		rs.tendAt(max(next, now.Add(tendAgain)), now)
	}
	if len(due) > 0 {
		rs.c.s.Background(func(ctx context.Context) {
			for due := range slices.Chunk(due, lookTogether) {
				rs.lookAt(ctx, due)
			}
		})
	}
}

// look lists the queue in the background, from a subscription. Under mu.
func (r *run) look() {
	if !r.rest.looking {
		r.rest.looking = true
		r.line.c.s.Background(func(ctx context.Context) { r.line.lookAt(ctx, []*run{r}) })
	}
}

// lookAt lists the queues of runs: with one request, if that can answer.
func (rs *runs) lookAt(ctx context.Context, due []*run) {
	if len(due) == 1 || !rs.listTogether(ctx, due) {
		for _, r := range due {
			r.line.look(ctx, r.reads())
		}
	}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	now := rs.c.b.Instant()
	for _, r := range due {
		r.rest.looking = false
		r.looked(now)
	}
}

// listTogether lists the queues of several locks, with their gates. It says whether it has
// done so for all of them.
func (rs *runs) listTogether(ctx context.Context, due []*run) bool {
	b := rs.c.b
	queues, gates := make(map[string]*line, len(due)), make(map[string]*kvstore.Record, len(due))
	var patterns []string
	rs.mu.Lock()
	for _, r := range due {
		if o := r.line.others; !r.over && (o == nil || o.proven == 0) { // each list is from a subscription in place
			rs.mu.Unlock()
			return false
		}
		queues[r.line.keys.Place("")], gates[r.line.keys.Gate] = r.line, new(kvstore.Record)
		patterns = append(patterns, r.line.keys.Place("*"), r.line.keys.Gate)
	}
	rs.mu.Unlock()
	at, revision, err := rs.asOf(ctx)
	if err != nil {
		return false
	}
	got, err := b.ListSoon(ctx, patterns[0], revision, kvstore.Also(patterns[1:]...))
	if err != nil {
		rs.c.s.Logger.Debug("list the queues of idle locks", "locks", len(due), "error", err)
		return false
	}
	places := make(map[*line][]kvstore.Record)
	for _, rec := range got.Records {
		if g := gates[rec.Key]; g != nil {
			*g = rec
		} else if l := queues[rec.Key[:strings.LastIndexByte(rec.Key, '.')+1]]; l != nil {
			places[l] = append(places[l], rec)
		}
	}
	for _, r := range due {
		r.line.listed(record.Queue(places[r.line]), 0, at)
		rs.mu.Lock()
		if o := r.line.others; o.gate.watch != nil {
			r.line.gateSeen(o, *gates[r.line.keys.Gate], at, b.Instant())
		}
		rs.mu.Unlock()
	}
	return true
}

// looked follows a list of the queue. Under mu.
func (r *run) looked(now clock.Instant) {
	switch {
	case r.over || r.rest.idle == nil && !r.rest.waits:
	case !r.hears(now) || r.asked(now): //safety:linger-listed
		r.recall()
	case !r.rest.waits:
	case len(r.members) > 0:
		r.rest.waits = false
		r.serve(nil)
	default: // they have given up
		r.recall()
	}
}

// keeps gives a run that did not wait a line, so that it can linger. It cannot while other
// goroutines of the client wait. Under mu.
func (rs *runs) keeps(r *run, a *acquisition) {
	l := rs.line(a)
	if len(l.all) == 0 {
		r.line, r.ttl, r.mode, r.meta, r.turnEnds = l, a.ttl, a.req.Mode, a.req.Meta, rs.c.b.Instant()
		l.all = append(l.all, r)
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
	if !r.hears(now) { //safety:idle-heard
		r.rest.waits = true
		r.look()
		r.members = append(r.members, m)
		return
	}
	if now.Sub(r.line.others.listed) >= lookEvery {
		r.look() // before the list is too old
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
// It gives up one that the acquire cannot use, and waits for that.
func (rs *runs) rouse(a *acquisition) bool {
	idle := func() *run {
		rs.mu.Lock()
		defer rs.mu.Unlock()
		if r := rs.lines[a.keys.Gate].resting(); r != nil && r.rest.idle != nil {
			return r
		}
		return nil
	}
	r := idle()
	if r == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(a.ctx, rouseFor)
	defer cancel()
	rs.mu.Lock()
	now := rs.c.b.Instant()
	switch {
	case r.over || r.rest.idle == nil:
		rs.mu.Unlock()
		return false
	case !r.takes(a):
		released := r.recall()
		rs.mu.Unlock()
		select {
		case <-released:
		case <-ctx.Done():
		}
		return false
	case r.hears(now):
		rs.mu.Unlock()
		return true
	}
	rs.mu.Unlock()
	rs.lookAt(ctx, []*run{r}) //safety:rouse-listed
	return idle() == r
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
	case <-a.c.b.Life().Done():
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

// recallIdle gives up the idle lease of the line when another client asks. Under mu.
func (l *line) recallIdle(now clock.Instant) {
	if r := l.resting(); r != nil && r.asked(now) {
		r.recall()
	}
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
