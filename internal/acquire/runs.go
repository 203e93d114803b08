package acquire

import (
	"cmp"
	"sync"
	"time"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/call"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
)

const (
	// DefaultTurn is for how long after its grant a run serves goroutines that came
	// while other clients were queued.
	DefaultTurn = time.Millisecond
	// DefaultMaxLingering bounds the idle leases of a client.
	DefaultMaxLingering = 10_000
)

// runs are the runs of a client: [core] decides about them, and this file performs what it
// decides. The mutex guards the state of the core, and what this package keeps beside it. It is
// not held across I/O, and it is taken before that of a record.
type runs struct {
	b     *bucket.Bucket
	s     *session.Session
	calls *call.Client

	mu      sync.Mutex
	core    core.Client
	lines   map[string]*line   // by gate
	alone   map[string]*member // holders without a line, by gate
	apart   int                // runs without a line that have a place
	listing bool               // a round lists the queues of idle leases
	alarm   *time.Timer        // of the next round; nil: no lease has been idle
}

// line is the runs of one lock.
type line struct {
	core.Line
	*runs
	keys        record.Keys
	queue, gate kvstore.Watch // nil: not subscribed

	firstRun run // of most lines that is all there is
}

// run is what the client keeps of a run beside its state.
type run struct {
	*core.Run
	line     *line // nil: a single member, which does not wait with others
	place    *session.Place
	lease    *session.Lease
	released <-chan struct{} // closed when the release of its idle lease is over
	*waits                   // nil: nothing of that
}

// waits is what a run needs only while goroutines wait: most leases are held, or idle, without it.
type waits struct {
	settled  chan struct{}   // closed when it has a record, or is over; nil: nobody waits for that
	timer    *time.Timer     // of its turn
	answered bool            // the server's last answer was that the lock is held, or that the run is queued
	trouble  error           // why the last request failed; nil: no answer yet, or answered
	state    *call.LockState // what the driver has seen of the lock; nil: nothing
}

// waiting returns the run's waits, to be changed. Under mu, or on the goroutine that drives the run.
func (r *run) waiting() *waits {
	if r.waits == nil {
		r.waits = new(waits)
	}
	return r.waits
}

// waited returns a copy of the run's waits, to be read.
func (r *run) waited() waits {
	if r.waits == nil {
		return waits{}
	}
	return *r.waits
}

// member is one call of Acquire in its run, and what the call returns.
type member struct {
	session.Holder // once it is served
	core.Member    // under runs.mu
	runs           *runs
	a              *call.Call // nil once it is served

	// The following fields are under runs.mu.
	wake      chan struct{} // its part in the run has changed; nil: it has not waited
	coolsDown bool          // its lease may have a cooldown after it
	turnEnds  clock.Instant // of the run it had
	gate      string        // the key of the lock that it holds without a line; see runs.alone

	released sync.Once
	result   error // of the release
}

// run returns the run of the member; nil: it holds the lock, and has no line. Under mu, or on the
// goroutine that drives the run.
func (m *member) run() *run {
	if m.Run == nil {
		return nil
	}
	return ownerOf(m.Run)
}

// signal wakes the member after a change of its part in the run. Under mu.
func (m *member) signal() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

func ownerOf(r *core.Run) *run { return r.Owner.(*run) }

func memberOf(m *core.Member) *member { return m.Want.Owner.(*member) }

// unlock performs the effects of the events under the mutex, and releases it.
func (rs *runs) unlock() {
	if len(rs.core.Effects) > 0 {
		rs.perform()
	}
	rs.mu.Unlock()
}

// perform performs the effects of the core. Under mu: none waits.
func (rs *runs) perform() {
	for i := 0; i < len(rs.core.Effects); i++ { // performing one may add others
		e := rs.core.Effects[i]
		var r *run
		if e.Run != nil && e.Do != core.Open {
			r = ownerOf(e.Run)
		}
		switch e.Do {
		case core.Open:
			e.Run.Line.Owner.(*line).opened(e.Run)
		case core.Wake:
			memberOf(e.Member).signal()
		case core.Announce:
			r.announce(memberOf(e.Member))
		case core.Size:
			if r.lease != nil {
				r.lease.SetSize(int(e.N))
			} else if r.place != nil {
				r.place.SetSize(int(e.N))
			}
		case core.Settle:
			if r.waits != nil && r.settled != nil {
				close(r.settled)
				r.settled = nil
			}
		case core.OnEnd:
			if !r.lease.OnEnd(r.leaseEnded) {
				r.LeaseEnded(rs.b.Instant())
			}
		case core.EndTurn:
			r.waiting().timer = time.AfterFunc(e.At.Sub(rs.b.Instant()), r.turnOver)
		case core.KeepTurn:
			r.timer.Stop()
		case core.Idle:
			r.lease.Idle()
		case core.Release:
			// An event may ask again before the lease is gone. Nobody may see the channel change.
			if released := r.lease.Drop(); r.released == nil {
				r.released = released
			}
		case core.List:
			rs.s.Background(e.Line.Owner.(*line).refresh)
		case core.Relist:
			rs.s.Background(r.relist)
		case core.Alarm:
			rs.setAlarm(e.At)
		case core.Hint:
			close(e.How.(chan struct{}))
		case core.Close:
			e.Line.Owner.(*line).close()
		}
	}
	clear(rs.core.Effects)
	rs.core.Effects = rs.core.Effects[:0]
}

// opened gives a run of the line what the client keeps of it.
func (l *line) opened(c *core.Run) {
	r := &l.firstRun
	if r.Run != nil {
		r = new(run)
	}
	r.Run, r.line, c.Owner = c, l, r
}

func (r *run) leaseEnded() {
	r.line.mu.Lock()
	defer r.line.unlock()
	r.LeaseEnded(r.line.b.Instant())
}

func (r *run) turnOver() {
	r.line.mu.Lock()
	defer r.line.unlock()
	r.TurnOver(r.line.b.Instant())
}

// announce publishes that a member waits: with the ticket of the place, or behind the
// holder of the lease. Under mu.
func (r *run) announce(m *member) {
	ev := session.Event{Type: session.EventQueued, Kind: m.a.Req.Kind, Name: m.a.Req.Name}
	if r.place != nil {
		ev.ID, ev.Token = r.place.ID(), r.place.Ticket()
	} else {
		ev.ID = r.lease.ID()
	}
	m.runs.s.Notify(m.a.Parent, ev)
}

// close ends the subscriptions of a line without runs, and forgets it. Under mu.
func (l *line) close() {
	if len(l.Runs) > 0 { // since then
		return
	}
	if l.lines[l.keys.Gate] == l {
		delete(l.lines, l.keys.Gate)
	}
	l.unwatch()
}

// updateLeases has the core know until when the leases of the line hold. Under mu.
func (l *line) updateLeases(now clock.Instant) {
	for _, r := range l.Runs {
		if r.Leased() {
			r.Lease.Until, r.MayIdle = ownerOf(r).lease.Validity(now)
		}
	}
}

// ownRun gives a member a run of its own, without a line.
func (m *member) ownRun() *run {
	own := &struct {
		state core.Run
		run   run
	}{}
	own.run.Run, own.state.Owner, own.state.Driver = &own.state, &own.run, &m.Member
	m.Run = &own.state
	return &own.run
}

// ask makes the caller a member of a run of its client.
func (rs *runs) ask(a *call.Call) *member {
	m := &member{runs: rs, a: a, coolsDown: a.Req.MinHold > 0}
	a.In(m)
	a.Want.Owner = m
	m.Want, m.Linger = &a.Want, a.Req.Linger
	rs.mu.Lock()
	defer rs.unlock()
	now := rs.b.Instant()
	l := rs.lines[a.Keys.Gate]
	if a.Counts() || l == nil && a.Req.Once && !a.Reads() { // each by itself
		m.ownRun()
		return m
	}
	if l == nil {
		l = rs.line(a.Keys)
	}
	l.updateLeases(now)
	if !l.Ask(&m.Member, now) {
		m.ownRun()
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
	l.Begin(&rs.core, l)
	if rs.lines == nil {
		rs.lines, rs.alone = make(map[string]*line), make(map[string]*member)
	}
	rs.lines[keys.Gate] = l
	if m := rs.alone[keys.Gate]; m != nil {
		delete(rs.alone, keys.Gate)
		l.head(nil, m)
	}
	return l
}

// head makes the run that m is inside of the first of a line. own is that run; nil: m has none yet. Under mu.
func (l *line) head(own *run, m *member) {
	var state *core.Run
	if own != nil {
		state = own.Run
	}
	state = l.Head(state, &m.Member, m.turnEnds)
	if own == nil {
		own = &l.firstRun
		own.Run, own.lease, state.Owner = state, m.Holder.Lease(), own
		state.Lease.Revision = own.lease.Revision
	}
	own.line = l
	body := &own.lease.Body // a copy would read what a renewal changes
	state.TTL, state.Mode, state.Private = own.lease.Granted.TTL, record.Mode(body.Mode), body.Fixed || m.coolsDown
	if state.Reads() { // the metadata of readers never change
		state.Meta = body.Meta
	}
	l.updateLeases(l.b.Instant())
}

// fold leaves the holder of a run that nobody else waits for without a line. Under mu.
func (r *run) fold(m *member) {
	turnEnds, alone := r.Alone()
	if !alone || m.Linger > 0 {
		return
	}
	rs := r.line.runs
	delete(rs.lines, r.line.keys.Gate)
	rs.alone[r.line.keys.Gate] = m
	m.Run, m.turnEnds, m.gate = nil, turnEnds, r.line.keys.Gate
}

// close gives up all idle leases: the client closes.
func (rs *runs) close() {
	rs.mu.Lock()
	defer rs.unlock()
	rs.core.Close()
	for _, l := range rs.lines {
		l.GiveUpIdle(rs.b.Instant())
	}
}

// counts are of goroutines and leases.
type counts struct {
	waiting int // goroutines that wait
	beside  int // goroutines inside, but for one of each lease
	idle    int // leases without a goroutine inside
}

func (rs *runs) count() (n counts) {
	rs.mu.Lock()
	defer rs.unlock()
	n.idle, n.waiting = rs.core.IdleLeases(), rs.apart
	now := rs.b.Instant()
	for _, l := range rs.lines {
		l.updateLeases(now)
		for _, r := range l.Runs {
			if r.Spare() && !r.Idle() {
				n.idle++
			}
			// A lease that has ended counts for nobody, also before its run ends.
			if r.Leased() && !r.Ended(now) {
				n.beside += int(max(r.Inside-1, 0))
			}
			n.waiting += r.Waiting()
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
	defer c.runs.unlock()
	if l := c.runs.lines[keys.Gate]; l != nil {
		for _, r := range l.Runs {
			n += r.Waiting()
			if r.Leased() && !r.Drained && !r.Reads() && keys.Kind == record.RW {
				n++
			}
		}
	}
	return n
}

// outage is why the server may be unavailable to a member that gives up; nil: the server's last
// answer was that the lock is held or the run queued. A run waits for the runs before it in its
// line: the answers to them count until its own first request has one. Under mu.
func (r *run) outage() error {
	if w := r.waited(); w.answered || w.trouble != nil || r.line == nil {
		return r.said()
	}
	err := error(call.ErrUnanswered)
	for _, x := range r.line.Runs {
		if x == r.Run {
			break
		}
		if err = ownerOf(x).said(); x.Leased() {
			err = nil // this client has the lock
		}
	}
	return err
}

func (r *run) said() error {
	w := r.waited()
	if w.answered {
		return nil
	}
	return cmp.Or(w.trouble, call.ErrUnanswered)
}
