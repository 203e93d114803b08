package acquire

import (
	"slices"
	"sync"
	"time"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/record"
)

// The goroutines of a client that want one lock wait together at their client. A run is
// one or more of them that asked one after the other, with no other client's place
// between them as far as the client knows. A run has one record at the server: a place
// while it waits, and then the lease. Its members are served in order, by the client,
// without a message.
//
// Those of a run that reads are inside together: see readers.go.
//
// One member drives the run: it waits for answers and notifications on its own goroutine.
// When it gives up, the first of the others drives on from there. The lease goes from
// member to member. It is released when no member is left, or when the rest of them has
// to let another client in first.

const (
	// DefaultTurn is for how long after its grant a run serves goroutines that came
	// while other clients were queued.
	DefaultTurn = time.Millisecond
	// silence is for how long a list counts that has shown no other client's place:
	// a notification of one may be lost.
	silence = time.Second
	// unanswered is for how long a first write without an answer is joined. The read of
	// the queue that a claim rests on may be older than the claim.
	unanswered = silence - bucket.Bypass
)

// runs are the runs of a client. The mutex guards its lines, their runs and their
// members. It is not held across I/O, and it is taken before that of a record.
type runs struct {
	c    *Client
	turn time.Duration

	mu    sync.Mutex
	idle  lingering
	lines map[string]*line   // by gate
	alone map[string]*member // holders without a line, by gate
	apart int                // runs without a line that have a place
}

// line is the runs of one lock. It exists while a goroutine waits: most locks are held by
// one goroutine, and no other one wants them.
type line struct {
	*runs
	keys   record.Keys
	all    []*run                    // in the order of their opening
	others *others                   // nil: not subscribed to the queue
	hints  map[*member]chan struct{} // holders that are to be notified of goroutines that wait

	// Of most lines that is all there is.
	firstRun  run
	firstRuns [1]*run
}

// ask makes the caller a member: of the last run of its client, where it may join that,
// or of a new one.
func (rs *runs) ask(a *acquisition) *member {
	m := &member{runs: rs, a: a, linger: a.req.Linger, rests: a.req.MinHold > 0}
	a.member = m
	now := a.begun
	if a.req.Once { // which may have waited for an idle lease
		now = rs.c.b.Instant()
	}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if a.counts() { // each goroutine queues by itself
		m.run = &run{driver: m}
		return m
	}
	var recalled <-chan struct{}
	rests := rs.lines[a.keys.Gate].resting()
	if rests != nil {
		switch idle := rests.rest.idle != nil; {
		case idle && rests.lease.Ended(now) || !rests.takes(a) && !a.req.Once:
			recalled = rests.recall()
		case idle && a.req.Once && rests.takes(a) && rests.informed(now):
			rests.join(m, false, now)
			return m
		}
	}
	if a.req.Once && !a.reads() {
		m.run = &run{driver: m}
		return m
	}
	l := rs.line(a.keys)
	for i := 0; i < len(l.all); {
		if r := l.all[i]; r.lease != nil && r.lease.Ended(now) { // and its holder has not released it yet
			r.end()
		} else {
			i++
		}
	}
	l = rs.line(a.keys)
	if n := len(l.all); n > 0 {
		r := l.all[n-1]
		joins := r.joinable(now) && !(a.req.Once && (r.lease == nil || r.inside == 0))
		passes := !joins && !r.reads() && r.lease != nil && now < r.turnEnds
		if a.req.Patient { //safety:patient-turn
			passes = false
		}
		if (joins || passes) && r.takes(a) {
			r.join(m, passes, now)
			if rests == nil { // else the run lists the queue now and then
				l.refresh(now)
			}
			return m
		}
		if !a.req.Once {
			r.turnEnds = now
			r.cut() // its late members are before this one //safety:turn-ended-early
		}
	}
	if r := l.open([]*member{m}); recalled != nil {
		r.recalled = recalled
	}
	return m
}

// line returns the line of a lock. It may be new. Under mu.
func (rs *runs) line(keys record.Keys) *line {
	l := rs.lines[keys.Gate]
	if l != nil {
		return l
	}
	l = &line{runs: rs, keys: keys}
	l.all = l.firstRuns[:0]
	if rs.lines == nil {
		rs.lines, rs.alone = make(map[string]*line), make(map[string]*member)
	}
	rs.lines[keys.Gate] = l
	if m := rs.alone[keys.Gate]; m != nil {
		delete(rs.alone, keys.Gate)
		m.run = &l.firstRun
		m.run.lease, m.run.turnEnds, m.run.inside, m.run.drained = m.Lease(), m.turnEnds, 1, true
		m.run.heads(l, m)
	}
	return l
}

// heads makes the run, which m is inside of, the first of a line. Under mu.
func (r *run) heads(l *line, m *member) {
	r.line, r.ttl, r.mode = l, r.lease.Terms.TTL, record.Mode(r.lease.Body.Mode)
	r.private = r.lease.Body.Fixed || m.rests
	if r.reads() { // it stays as it is
		r.meta = r.lease.Body.Meta
	}
	l.all = append(l.all, r)
}

// fold leaves the holder of a run that nobody else waits for without a line. Under mu.
func (r *run) fold(m *member) {
	l := r.line
	if l == nil || m.linger > 0 || r.over || r.listens || r.timer != nil || len(r.members) > 0 || r.inside > 1 || len(l.all) > 1 || l.others != nil {
		return
	}
	rs := l.runs
	delete(rs.lines, l.keys.Gate)
	rs.alone[l.keys.Gate] = m
	m.run, m.turnEnds, m.gate = nil, r.turnEnds, l.keys.Gate
}

// open adds a run of members that wait and want the same lease. Under mu.
func (l *line) open(members []*member) *run {
	r := &l.firstRun
	if r.line != nil {
		r = new(run)
	}
	a := members[0].a
	r.line, r.ttl, r.behind = l, a.ttl, len(l.all) > 0
	r.queues = slices.ContainsFunc(l.all, func(x *run) bool { return !x.reads() || x.lease == nil })
	r.mode, r.meta, r.private = a.req.Mode, a.req.Meta, a.private() || a.req.Once
	r.members = append(r.firstMember[:0], members...)
	for _, m := range members {
		m.run, m.late, m.early = r, false, false
	}
	l.all = append(l.all, r)
	r.begin()
	r.driver = r.members[0]
	r.driver.poke()
	l.contend(l.c.b.Instant())
	if x := l.resting(); x != nil && x.rest.idle != nil { // or the run would wait for its end //safety:idle-before
		r.recalled = x.recall()
	}
	return r
}

// counts are of goroutines and leases.
type counts struct {
	waiting int // goroutines that wait
	beside  int // goroutines inside, but for one of each lease
	idle    int // leases without a goroutine inside
}

func (rs *runs) count() (n counts) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	n.idle, n.waiting = rs.idle.idle.Len(), rs.apart
	now := rs.c.b.Instant()
	for _, l := range rs.lines {
		for _, r := range l.all {
			if r.rest.waits {
				n.idle++
			}
			// A lease that has ended counts for nobody, also before its run ends.
			if r.lease != nil && !r.lease.Ended(now) {
				n.beside += int(max(r.inside-1, 0))
			}
			n.waiting += r.waiting()
		}
	}
	return n
}

// WaitingFor returns how many goroutines of the client wait for a lock: in its queue, or
// behind a gate that readers have to leave.
func (c *Client) WaitingFor(keys record.Keys) (n int) {
	if keys.Kind == record.Semaphore { // each goroutine has a place of its own, and no run
		return c.s.Places(keys)
	}
	c.runs.mu.Lock()
	defer c.runs.mu.Unlock()
	if l := c.runs.lines[keys.Gate]; l != nil {
		for _, r := range l.all {
			n += r.waiting()
			if r.lease != nil && !r.drained && !r.reads() && keys.Kind == record.RW {
				n++
			}
		}
	}
	return n
}

// waiting is how many members of the run wait behind others. Under mu.
func (r *run) waiting() int {
	if r.place != nil || r.lease != nil || r.behind {
		return len(r.members)
	}
	return 0
}
