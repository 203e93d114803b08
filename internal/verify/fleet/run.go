package fleet

import (
	"slices"
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/record"
)

// what the member that drives a run waits for
const (
	atStart  byte = iota
	atOrder       // the run before has a record
	atBid         // the answer to a claim of the lock
	atQueue       // the answer to a place
	atStand       // a list of the queue
	atFollow      // the predecessor
	atFirst       // the lock
	atAdopt       // the record of a lock that was handed over
	atRecall      // the client of an idle lease
)

// who has made a claim of the lock
const (
	byGuess byte = iota
	bySurvey
	byFollower
	byFirst
	byAdopt
)

// step goes on with a run, or says that it waits.
func (r *run) step(w *World) bool {
	if r.TurnAt != 0 && w.Now >= r.TurnAt {
		r.TurnAt = 0
		r.R.TurnOver(w.Now)
		return true
	}
	if l := r.Lease; r.Watched && l.State != core.StateHeld {
		r.Watched = false
		r.R.LeaseEnded(w.Now)
		return true
	}
	if r.R.Over || r.R.Driver == nil || r.R.Leased() {
		return false
	}
	switch r.At {
	case atStart:
		return r.begin(w)
	case atOrder:
		return r.enqueue(w)
	case atBid:
		res, does := r.Bid.step(w, r.C)
		if res.Outcome != core.Undecided {
			r.claimed(w, res)
		}
		return does
	case atQueue:
		res, does := r.Queue.step(w, r.C)
		if res.Outcome != core.Undecided {
			r.queued(w, res)
		}
		return does
	case atStand:
		r.stand(w)
		return true
	case atFollow:
		return r.follows(w)
	case atAdopt:
		return r.adopts(w)
	case atRecall:
		return r.recalls(w)
	}
	return r.firsts(w)
}

// due is when the run goes on by itself.
func (r *run) due(w *World) clock.Instant {
	at := never
	if r.TurnAt != 0 {
		at = r.TurnAt
	}
	if r.R.Over || r.R.Driver == nil || r.R.Leased() {
		return at
	}
	switch r.At {
	case atBid:
		at = min(at, r.Bid.At)
	case atQueue:
		at = min(at, r.Queue.At)
	case atFollow:
		at = min(at, r.timer(w, r.Successor.At()))
	case atFirst:
		at = min(at, r.timer(w, r.Bid.At))
	case atRecall:
		at = min(at, r.Recall.At)
	}
	return at
}

func (r *run) counts(w *World) bool { return w.Scope.Kind == record.Semaphore }

// begin begins to drive the run, or goes on where the member before has come to.
func (r *run) begin(w *World) bool {
	if x := r.R.Awaits; x != nil {
		if ownerOf(x).Lease.Removal != nil {
			return false
		}
		r.R.Awaits = nil
	}
	r.First, r.Successor, r.Mail = nil, nil, nil
	r.Bid.Joins, r.Bid.B.Guarded, r.Bid.B.Slot = r.Reads(), r.Reads(), r.counts(w)
	l := r.R.Line
	switch {
	case r.Adopts != nil:
		r.At = atAdopt
	case r.Place != nil:
		r.At = atStand
	case r.Queue.Cur != nil:
		r.Queue.offer(w, 0)
		r.At = atQueue
	case r.Queues:
		r.At = atOrder
	case r.R.Behind:
		return r.behind(w)
	default:
		if r.R.Driver.Linger > 0 && l != nil {
			begins := l.Others == nil && r.Bid.Cur == nil
			subscribe(l, r.Reads())
			if begins {
				r.R.Claiming(w.Now)
			}
		}
		r.atOnce(w)
	}
	return true
}

// behind drives a run behind others of its client.
func (r *run) behind(w *World) bool {
	l := r.R.Line
	if r.Reads() {
		if r.R.Before() != nil {
			return false
		}
		want := r.R.Driver.Want
		r.C.see(w)
		if h := r.R.Host(want, w.Now); h != nil && !h.Joinable(w.Now) {
			r.C.lists(w, listing{l, r.R}) //nolint // it subscribes, too
			r.C.perform(w)
		}
		if r.R.Over || r.R.Driver == nil {
			return true
		}
		if h := r.R.Host(want, w.Now); h != nil && h.Joinable(w.Now) {
			r.R.Merge(h)
			return true
		}
	}
	if r.R.Queues || l.Others.Writers(w.Now) {
		r.At = atOrder
	} else {
		r.atOnce(w)
	}
	return true
}

// atOnce tries to take the lock without queueing.
func (r *run) atOnce(w *World) {
	c, until := r.C, clock.Instant(0)
	if r.counts(w) {
		r.survey(w, 0)
		return
	}
	if c.Tombstone != 0 && c.UnqueuedAt != 0 && w.Now.Sub(c.UnqueuedAt) < record.Bypass {
		until = c.UnqueuedAt.Add(record.Bypass)
	}
	if c.Tombstone != 0 && until == 0 {
		r.survey(w, c.Tombstone)
		return
	}
	r.Bid.Blind, r.Bid.B.Until = true, until
	r.claim(w, byGuess, 0, c.Tombstone)
}

// claim claims key k of the lock.
func (r *run) claim(w *World, by byte, k int, expect uint64) {
	b := &r.Bid
	if r.counts(w) {
		if b.Cur != nil && b.Cur.Key != w.key(k) {
			b.close(w)
		}
		b.Slot = k
	}
	r.At, r.Then = atBid, by
	b.TTL, b.Lingers = r.R.Driver.Want.TTL, r.R.Driver.Linger > 0
	b.offer(w, expect)
}

// survey reads the lock and its queue, and claims what is free if nobody is queued.
func (r *run) survey(w *World, asOf uint64) {
	c := r.C
	queue, keys, _ := c.queue(w, asOf)
	queue = c.clear(w, queue)
	v := core.Arrival{Keys: keys, Overdue: make([]bool, len(keys)), Waiting: len(queue), Own: r.own()}
	var holder record.Entry
	r.Claims, holder = v.Claims()
	if len(r.Claims) == 0 && r.R.Driver.Want.Once {
		r.recall(w, holder, queue)
		return
	}
	if len(r.Claims) > 0 {
		if c.Tombstone != 0 {
			c.UnqueuedAt = w.Now
		}
		r.Bid.B.Until = w.Now.Add(record.Bypass)
	}
	r.surveyed(w)
}

// surveyed goes on with the next key that is to be claimed.
func (r *run) surveyed(w *World) {
	if len(r.Claims) == 0 || r.counts(w) && w.Now >= r.Bid.B.Until {
		r.waits()
		return
	}
	next := r.Claims[0]
	r.Claims = slices.Clone(r.Claims[1:])
	r.claim(w, bySurvey, next.K, next.Expect)
}

// own is the id of the claim under way.
func (r *run) own() string {
	if r.Bid.Cur == nil {
		return ""
	}
	return r.Bid.Cur.C.ID
}

// waits has the run queue.
func (r *run) waits() {
	if r.R.Driver.Want.Once { // it reads again
		r.Bid.B.Until, r.At, r.Recall = 0, atRecall, &recall{Again: true}
		return
	}
	r.Claims, r.Bid.B.Until, r.At = nil, 0, atOrder
}

// claimed follows what a claim of the lock has come to.
func (r *run) claimed(w *World, res result) {
	b := &r.Bid
	if b.Blind {
		b.Blind, b.B.Until = false, 0
	}
	nobody := res.Outcome == core.Free || res.Outcome == core.Busy
	switch {
	case res.Outcome == core.Granted:
		r.granted(w, res)
	case res.Outcome == core.Refused:
		r.survey(w, res.Entry.Revision)
	case !nobody:
		w.fail("a claim ends with outcome %d", res.Outcome)
	case r.Then == byAdopt:
		r.At = atAdopt
	case r.Then == byGuess:
		r.waits()
	case r.Then == bySurvey && res.Outcome == core.Free && w.Now < b.B.Until && !(r.counts(w) && w.Scope.Several):
		r.claim(w, bySurvey, b.Slot, res.Entry.Revision)
	case r.Then == bySurvey:
		r.surveyed(w)
	case r.Then == byFollower:
		r.Successor.Missed(b.Slot, w.Now)
		r.At = atFollow
	default:
		r.First.Found(b.Slot, res.Entry, r.overdue(w, res.Entry), "")
		r.At, b.At = atFirst, 0
	}
}

// overdue asks the leader whether the time of a record is over.
func (r *run) overdue(w *World, e record.Entry) bool { return e.OverdueAt(wall(w.Now)) }

// granted makes the record of a claim the lease of the run.
func (r *run) granted(w *World, res result) {
	l := r.Bid.grant(w, res)
	if p := r.Place; p != nil {
		p.leave(w, pick(r.Then == byFollower, record.StatusPassed, record.StatusGranted))
		if x := r.Passed; x.Revision != 0 {
			w.discard(r.C, x.Key, x.ID, x.Revision)
		}
	}
	r.Place, r.Passed, r.Lease, r.First, r.Successor, r.Mail, r.Freed, r.At, r.Tries = nil, stored{}, l, nil, nil, nil, false, atStart, 0
	r.unknock(w)
	l.Body.Lingers = r.R.Driver.Linger > 0
	r.R.MayIdle = l.Body.Lingers
	if !r.R.Granted(r.R.Driver, core.Lease{Revision: l.Token, Until: l.Valid.End}, w.Now) {
		l.leave(w, record.StatusGone)
	}
}

// enqueue writes a place, when the run before has a record.
func (r *run) enqueue(w *World) bool {
	if l := r.R.Line; l != nil {
		if r.R.Before() != nil {
			return false
		}
		if r.R.Several() {
			subscribe(l, false)
		}
		r.R.Queueing(w.Now)
	}
	r.Queue = bid{Waits: true, Evicted: r.Evicted}
	r.Queue.offer(w, 0)
	r.At = atQueue
	return true
}

// queued follows what the write of a place has come to.
func (r *run) queued(w *World, res result) {
	switch res.Outcome {
	case core.Granted:
		p := r.Queue.grant(w, res)
		p.Left = -1
		r.Place, r.Queues, r.Queue, r.At = p, false, bid{}, atStand
		r.Queued = w.Scope.Delayed
		r.Waiter = core.Waiter{ID: p.Body.ID, Ticket: p.Token, Reads: r.Reads()}
		if r.R.Line == nil {
			r.R.Ticket = p.Token
		} else {
			r.R.PlaceAt(p.Token, w.Now)
		}
	case core.Free, core.Busy:
		r.Queue.close(w)
		r.Queue.offer(w, 0)
	default:
		w.fail("a place ends with outcome %d", res.Outcome)
	}
}

// stand lists the queue, to find out whom the run waits for.
func (r *run) stand(w *World) {
	c, p := r.C, r.Place
	asOf := p.Token
	if r.Waiter.Named {
		asOf = w.Server.Seq
	}
	queue, keys, _ := c.queue(w, asOf)
	if l := r.R.Line; l != nil {
		l.Listed(queue, 0, nil, w.Now, w.Now, wall(w.Now))
		r.R.PlaceListed()
	}
	vacant := uint64(0)
	if len(keys) == 1 && keys[0].Deleted {
		vacant = keys[0].Revision
	}
	before, over, there := r.Waiter.Listed(queue, vacant, wall(w.Now))
	if !there {
		r.requeue(w)
		return
	}
	before = append(slices.Clone(before[:over]), c.clear(w, before[over:])...)
	r.First, r.Successor, r.Mail, r.Freed = nil, nil, nil, false
	switch standing, pred, second := r.Waiter.Judge(before, 0, !w.Scope.Several); standing {
	case core.Behind:
		r.Successor = &core.Successor{ID: p.Body.ID, Pred: pred, Second: second, Reads: w.Scope.Kind == record.RW, Counts: r.counts(w)}
		if !second {
			r.Successor.Jitter = core.ScanJitter / 2
		}
		r.Successor.Begin(max(int(r.C.Permits), 1), written(pred), w.Now)
		r.At, r.Since = atFollow, w.Now
	case core.Foremost:
		r.foremost(w, r.Waiter.Vacant)
	}
}

// foremost makes the run the first waiter.
func (r *run) foremost(w *World, vacant uint64) {
	r.Successor, r.Mail, r.Freed = nil, nil, false
	r.First = &core.First{Counts: r.counts(w)}
	r.First.Begin(max(int(r.C.Permits), 1), vacant, w.Now)
	r.At, r.Bid.At, r.Since = atFirst, 0, w.Now
}

// requeue has the run queue again: its place has gone.
func (r *run) requeue(w *World) {
	if p := r.Place; p.State == core.StateHeld || p.State == core.StateLost && p.Why != core.Unconfirmed {
		r.Evicted++
	}
	r.Place.leave(w, record.StatusGone)
	r.Place, r.Queues, r.First, r.Successor, r.Mail, r.At = nil, true, nil, nil, nil, atOrder
	if r.R.Line == nil {
		r.R.Ticket = 0
	} else {
		r.R.PlaceLost()
	}
}

// gone says whether the place has ended.
func (r *run) gone() bool { return r.Place.State != core.StateHeld }

// pause is the time to the next read by the timers.
func (r *run) pause(w *World) time.Duration {
	early := [...]time.Duration{20 * time.Millisecond, 100 * time.Millisecond, 500 * time.Millisecond}
	if r.Tries < len(early) {
		r.Tries++
		return early[r.Tries-1]
	}
	return w.Scope.Place / 3
}

func written(e record.Entry) clock.Instant { return clock.Instant(e.Time.UnixNano()) }

// timer is when the run goes on by a timer that is due at an instant.
func (r *run) timer(w *World, at clock.Instant) clock.Instant {
	if w.Scope.Untimed && at > r.Since {
		return never
	}
	return at
}

// follows goes on behind the predecessor.
func (r *run) follows(w *World) bool {
	f := r.Successor
	mail := r.Mail
	r.Mail = nil
	if len(mail) == 0 && w.Now < r.timer(w, f.At()) && !r.gone() {
		return false
	}
	if r.gone() {
		r.requeue(w)
		return true
	}
	for _, s := range mail {
		switch {
		case isLock(s.Key):
			r.Freed = s.Deleted
		case s.Deleted && f.First(record.Body{Status: s.Status, ID: s.ID}):
			r.foremost(w, 0)
			return true
		case s.Deleted || s.ID != f.Pred.ID:
			r.At = atStand
			return true
		default:
			f.Wrote(w.Now)
		}
	}
	if r.Freed {
		f.Freed(w.Now)
	}
	if w.Now < r.timer(w, f.At()) {
		return true
	}
	reads, _ := f.Due(w.Now)
	if reads && !r.readPred(w) {
		r.At = atStand
		return true
	}
	if f.Scans(w.Now) {
		r.looks(w)
	}
	return true
}

// readPred reads the predecessor's place, and says whether it is there.
func (r *run) readPred(w *World) bool {
	c, f := r.C, r.Successor
	e := f.Pred
	if f.Proven {
		e = c.read(w, f.Pred.Key, f.Pred.Revision)
		_, keys, _ := c.queue(w, f.Pred.Revision)
		names := make([]string, len(keys))
		for k := range keys {
			names[k] = w.key(k)
		}
		f.ReadBeside(names, keys, r.own(), wall(w.Now), w.Now)
	} else if f.Proven = true; w.Server.get(f.Pred.Key).Revision != f.Pred.Revision {
		e = c.read(w, f.Pred.Key, w.Server.get(f.Pred.Key).Revision)
	}
	at := clock.Instant(0)
	if !e.Zero() {
		at = written(e)
	}
	there, over := f.Read(e, at, w.Now, e.Remaining(wall(w.Now)), r.pause(w))
	if over {
		return len(c.clear(w, []record.Entry{e})) > 0
	}
	return there
}

// looks reads the lock and the queue, and claims the lock out of turn when its window is over.
func (r *run) looks(w *World) {
	c, f := r.C, r.Successor
	if !f.Scan(r.Freed) {
		return
	}
	r.Freed = false
	queue, keys, _ := c.queue(w, r.Place.Token)
	v := core.View{Keys: keys, Overdue: make([]bool, len(keys)), Queue: queue, Sent: w.Now, Server: wall(w.Now), Own: r.own()}
	for k, e := range keys {
		v.Overdue[k] = r.overdue(w, e)
	}
	switch d, k, revision := f.Scanned(v, w.Now); d {
	case core.ListAgain:
		r.At = atStand
	case core.Take:
		if head, evicts := f.Evicts(k, w.Now); evicts {
			r.Passed = stored{Key: head.Key, ID: head.ID, Revision: head.Revision}
		}
		r.claim(w, byFollower, k, revision)
	}
}

// firsts goes on at the head of the queue.
func (r *run) firsts(w *World) bool {
	c, f := r.C, r.First
	if r.gone() {
		r.requeue(w)
		return true
	}
	switch do, k, revision := f.Next(); do {
	case core.Reclaim, core.Take:
		r.claim(w, byFirst, k, revision)
	case core.Verify:
		e := c.read(w, w.key(k), revision)
		f.Found(k, e, r.overdue(w, e), r.own())
		r.Bid.At = 0
	case core.Prove:
		f.Proved(w.Server.Seq)
	case core.ReadAll:
		_, keys, _ := c.queue(w, revision)
		f.FoundAll()
		for k, e := range keys {
			f.Found(k, e, r.overdue(w, e), r.own())
		}
		r.Bid.At = 0
	default:
		return r.stays(w)
	}
	return true
}

// stays waits at the head of the queue for a notification, or for the next read.
func (r *run) stays(w *World) bool {
	f := r.First
	if len(r.Mail) > 0 {
		for _, s := range r.Mail {
			switch k := slot(s.Key); {
			case !f.Has(k):
			case s.Deleted:
				f.Deleted(k, s.Revision)
			default:
				f.Put(k, s.entry(), r.own())
			}
		}
		r.Mail, r.Bid.At = nil, 0
		return true
	}
	if r.Bid.At == 0 {
		r.Bid.At = f.At(w.Now, wall(w.Now), func() time.Duration { return r.pause(w) })
	}
	if w.Now < r.timer(w, r.Bid.At) {
		return false
	}
	f.Due(wall(w.Now))
	r.Bid.At = 0
	return true
}

// withdraw gives up what the run has come to.
func (r *run) withdraw(w *World) {
	r.Bid.close(w)
	r.Queue.close(w)
	if r.Place != nil {
		r.Place.leave(w, record.StatusGone)
		r.Place = nil
	}
	r.unknock(w)
	if r.R.Line == nil { // nobody else is there to drive it
		r.R.Driver = nil
	}
}
