package fleet

import (
	"fmt"
	"slices"
	"strings"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/record"
)

// client is what packages acquire and session keep of a client: it brings events to the core, and performs
// the effects.
type client struct {
	ID      string
	Index   int
	Crashed bool
	Paused  bool
	Lags    bool // its reads are of a server that lags

	Core   core.Client
	Line   *core.Line // nil: nobody wants the lock
	Calls  []*call
	Runs   []*run // those that are driven, or have a lease
	Claims []*claim
	Kept   []*kept
	Lists  []listing
	Alarm  clock.Instant // 0: none

	Known       []string // the ids of places and writers of others that it has been notified of
	Asks, Reads int8
	Permits     int8   // of the semaphore, as it knows
	Highest     uint64 // the highest revision acknowledged

	// What it remembers of the lock that it has left.
	Tombstone  uint64
	LeftAt     clock.Instant
	UnqueuedAt clock.Instant
}

// listing is a list of a queue that the core has asked for.
type listing struct {
	Line *core.Line
	Run  *core.Run // nil: a [core.List]
}

// call is a goroutine that wants the lock, or has it.
type call struct {
	C       *client
	Want    core.Want
	M       core.Member
	Asked   uint64   // the revision of the bucket then
	Known   []string // then, by its client
	Blind   bool     // it has joined a first claim without an answer: nobody knew then who had come since
	Entered bool
	Lease   *kept // of its grant
	Drain   *drain
	Holds   bool      // for a minimum
	Wish    core.Wish // of its lease
}

// run is what a client keeps of a run, and how far the member that drives it has come.
type run struct {
	C *client
	R *core.Run

	At     byte // what it waits for
	Then   byte // what the claim of the lock was made by
	Bid    bid
	Queue  bid   // of the place
	Place  *kept // nil: it has none
	Queues bool  // it has had a place
	Queued bool  // it has a place, or was granted from one
	Lease  *kept
	Claims []core.KeyAt
	Adopts *core.Adopting // nil: it waits for the lock
	Recall *recall        // of a goroutine that asks once; nil: it has met nobody

	Evicted   int // how often others have deleted its place
	Waiter    core.Waiter
	Successor *core.Successor
	First     *core.First
	Mail      []stored      // the newest notification of each key
	Freed     bool          // by notifications
	Tries     int           // reads by the timers
	Since     clock.Instant // when it began to wait for what it waits for, if it is untimed
	Passed    stored        // the head's place that a grant out of turn has passed
	Watched   bool          // the end of its lease
	TurnAt    clock.Instant
}

func ownerOf(r *core.Run) *run { return r.Owner.(*run) }

// line returns the line of the lock. It may be new.
func (c *client) line() *core.Line {
	if c.Line == nil {
		c.Line = &core.Line{}
		c.Line.Begin(&c.Core, nil)
	}
	return c.Line
}

// see has the core know until when leases hold.
func (c *client) see(w *World) {
	if c.Line == nil {
		return
	}
	for _, r := range c.Line.Runs {
		if r.Leased() {
			ownerOf(r).see(w)
		}
	}
}

func (r *run) see(w *World) {
	l := r.Lease
	r.R.Lease.Until, r.R.MayIdle = l.U.Standing(&l.Kept, w.Now)
}

// asks has a goroutine ask for the lock.
func (c *client) asks(w *World, how int) {
	if c.Asks > 0 {
		c.Asks--
	}
	g := &call{C: c, Want: core.Want{TTL: w.Scope.TTL}, Asked: w.Server.Seq, Known: slices.Clone(c.Known)}
	if how&asksReading != 0 && w.Scope.Kind == record.RW {
		g.Want.Mode = record.Shared
		spend(&c.Reads)
	}
	g.Want.Owner, g.M.Want = g, &g.Want
	if how&asksLingering != 0 {
		g.M.Linger = w.Scope.Linger
	}
	if how&asksHolding != 0 && w.Scope.Kind != record.Semaphore && g.Want.Mode != record.Shared {
		g.Holds, g.Want.Private, g.Want.TTL, g.M.Linger = true, true, max(w.Scope.TTL, w.Scope.Least+w.Scope.Margin), 0
	}
	if g.Want.Once = how&asksOnce != 0 && w.Scope.Kind == record.Mutex; g.Want.Once {
		g.M.Linger = 0
		c.readyIdle(w, g)
	}
	c.Calls = append(c.Calls, g)
	if w.Scope.Kind == record.Semaphore || g.Want.Once && c.Line == nil {
		c.alone(g)
		return
	}
	l := c.line()
	c.see(w)
	if !l.Ask(&g.M, w.Now) {
		c.alone(g)
	}
	c.perform(w)
	r := ownerOf(g.M.Run)
	g.Blind = w.Scope.Delayed && r.At == atBid && !r.R.Behind
}

// alone gives a goroutine a run without a line.
func (c *client) alone(g *call) *run {
	r := &run{C: c, R: &core.Run{Driver: &g.M}}
	r.R.Owner, g.M.Run = r, r.R
	c.Runs = append(c.Runs, r)
	return r
}

// forget forgets a goroutine. A run may still have it.
func (c *client) forget(g *call) {
	g.Asked, g.Known, g.Blind, g.Lease, g.Drain, g.Wish = 0, nil, false, nil, nil, core.Wish{}
	c.Calls = slices.DeleteFunc(c.Calls, func(x *call) bool { return x == g })
}

// givesUp takes a goroutine out of its run.
func (g *call) givesUp(w *World) {
	c, r := g.C, ownerOf(g.M.Run)
	c.see(w)
	left, drives := g.M.GiveUp(w.Now)
	switch {
	case left == core.Unused:
		r.Lease.leave(w, record.StatusGone)
	case left == core.Withdrawn:
		r.withdraw(w)
	case drives != nil:
		r.At = atStart
		if r.Reads() {
			r.Bid.close(w)
		}
	}
	c.forget(g)
	c.perform(w)
}

// Reads says whether the run is of readers.
func (r *run) Reads() bool { return r.R.Reads() }

// unlocks ends a goroutine's part in the lease.
func (g *call) unlocks(w *World) {
	c, r := g.C, ownerOf(g.M.Run)
	c.see(w)
	l, wish := r.Lease, g.Wish
	left := g.M.Leave(w.Now)
	c.forget(g)
	if left == core.Nothing {
		c.see(w)
		left = r.R.Next(w.Now)
	}
	if left == core.Unused {
		r.Lease.leave(w, record.StatusGone)
		r.Lease.rests(wish)
	}
	l.wanted(w)
	c.perform(w)
}

// perform performs the effects of the core.
func (c *client) perform(w *World) {
	for i := 0; i < len(c.Core.Effects); i++ {
		e := c.Core.Effects[i]
		var r *run
		if e.Run != nil && e.Do != core.Open {
			r = ownerOf(e.Run)
		}
		switch e.Do {
		case core.Open:
			r = &run{C: c, R: e.Run}
			e.Run.Owner = r
			c.Runs = append(c.Runs, r)
		case core.OnEnd:
			if r.Watched = r.Lease.State == core.StateHeld; !r.Watched {
				e.Run.LeaseEnded(w.Now)
			}
		case core.EndTurn:
			r.TurnAt = e.At
		case core.KeepTurn:
			r.TurnAt = 0
		case core.Release:
			r.Lease.leave(w, record.StatusGone)
		case core.Idle:
			r.Lease.U.Unused(&r.Lease.Kept, w.Now, -1)
		case core.InUse:
			r.Lease.Answer(e.N, w.Now)
		case core.List:
			c.Lists = append(c.Lists, listing{Line: e.Line})
		case core.Relist:
			c.Lists = append(c.Lists, listing{e.Line, e.Run})
			if e.Line == nil {
				c.Lists[len(c.Lists)-1].Line = e.Run.Line
			}
		case core.Alarm:
			c.Alarm = e.At
		case core.Close:
			if len(e.Line.Runs) == 0 {
				e.Line.Others = nil
				if c.Line == e.Line {
					c.Line = nil
				}
			}
		}
	}
	clear(c.Core.Effects)
	c.Core.Effects = c.Core.Effects[:0]
}

// subscribe subscribes to the queue, and to the gate.
func subscribe(l *core.Line, gate bool) {
	if l.Others == nil {
		l.Others = &core.Others{}
		l.Others.Subscribed(false)
	}
	if gate && !l.Others.Gate {
		l.Others.Subscribed(true)
	}
}

// lists performs a list of the queue, from a subscription that a probe proves.
func (c *client) lists(w *World, x listing) {
	l := x.Line
	if x.Run == nil && l.Others == nil || x.Run != nil && x.Run.Over && len(l.Runs) == 0 {
		return
	}
	if x.Run != nil {
		subscribe(l, x.Run.Reads())
	}
	o := l.Others
	if proven, epoch := o.Proven(); !proven {
		o.Prove(w.Now, epoch)
	}
	queue, _, _ := c.queue(w, w.Server.Seq)
	var gate *record.Entry
	if o.Gate {
		e := w.leader(gateKey)
		gate = &e
	}
	l.Listed(queue, 0, gate, w.Now, w.Now, wall(w.Now))
	if x.Run == nil {
		o.Refreshed()
	} else {
		x.Run.Relisted(w.Now)
	}
}

func (w *World) leader(key string) record.Entry {
	r := w.Server.get(key)
	return r.entry()
}

// reads is the server that a read of a client is of, which has to contain a revision.
func (c *client) reads(w *World, asOf uint64) *server {
	if c.Lags && w.Old != nil && w.Old.Seq >= asOf {
		return w.Old
	}
	return &w.Server
}

func (c *client) read(w *World, key string, asOf uint64) record.Entry {
	r := c.reads(w, asOf).get(key)
	return r.entry()
}

// queue lists the queue and the keys of the lock, in one state that contains a revision.
func (c *client) queue(w *World, asOf uint64) (queue, keys []record.Entry, at *server) {
	s := c.reads(w, asOf)
	for _, r := range s.list(placePrefix) {
		if r.live() && r.Status == record.StatusWaiting {
			queue = append(queue, r.entry())
		}
	}
	record.SortByTicket(queue)
	if w.Scope.Kind != record.Semaphore {
		r := s.get(gateKey)
		return queue, []record.Entry{r.entry()}, s
	}
	for k := range int(c.Permits) {
		r := s.get(slotKey(k))
		keys = append(keys, r.entry())
	}
	return queue, keys, s
}

func slotKey(k int) string { return fmt.Sprint(slotPrefix, k) }

// key is key k of the lock.
func (w *World) key(k int) string {
	if w.Scope.Kind == record.Semaphore {
		return slotKey(k)
	}
	return gateKey
}

// slot is the number of a key of the lock.
func slot(key string) int {
	if k, ok := strings.CutPrefix(key, slotPrefix); ok {
		return int(k[0] - '0')
	}
	return 0
}

// clear deletes the places that are overdue by the leader's clock, and returns the others.
func (c *client) clear(w *World, places []record.Entry) (rest []record.Entry) {
	for _, e := range places {
		if !e.OverdueAt(wall(w.Now)) || w.tombstone(e.Key, e.Revision, e.ID, record.StatusGone).Refusal != core.Acknowledged {
			rest = append(rest, e)
		}
	}
	return rest
}

// watches says whether the client is notified of a key.
func (c *client) watches(key string) bool {
	if c.Line != nil && c.Line.Others != nil && (strings.HasPrefix(key, placePrefix) && c.Line.Others.Queue || key == gateKey && c.Line.Others.Gate) {
		return true
	}
	if slices.ContainsFunc(c.Kept, func(k *kept) bool { return k.Key == key && !k.waits() && k.State == core.StateHeld }) {
		return true
	}
	if strings.HasPrefix(key, readPrefix) {
		return slices.ContainsFunc(c.Calls, func(g *call) bool { return g.Drain != nil && g.Drain.Watches })
	}
	return slices.ContainsFunc(c.Runs, func(r *run) bool { return r.watches(key) })
}

func (r *run) watches(key string) bool {
	switch {
	case r.First != nil:
		return isLock(key)
	case r.Successor != nil:
		return key == r.Successor.Pred.Key || isLock(key)
	case r.Recall != nil:
		return key == gateKey
	}
	return false
}

// learns notes a place or a writer of another client, for the check of the order.
func (c *client) learns(w *World, s stored) {
	if !w.Scope.Fifo || w.Failed {
		c.Known = nil
		return
	}
	if o := c.Line; o == nil || o.Others == nil || s.Client == c.ID || s.Deleted || s.Status == record.StatusTrying || s.Key == gateKey && (w.Scope.Kind != record.RW || s.Renewal > 0) {
		return
	}
	if (s.Key == gateKey || strings.HasPrefix(s.Key, placePrefix)) && !slices.Contains(c.Known, s.ID) {
		c.Known = append(c.Known, s.ID)
		slices.Sort(c.Known)
	}
}

// hears takes a notification.
func (c *client) hears(w *World, s stored) {
	e := s.entry()
	c.learns(w, s)
	if l := c.Line; l != nil && l.Others != nil {
		switch o := l.Others; {
		case s.Key == gateKey && o.Gate:
			l.GateSeen(o, e, w.Now)
		case !strings.HasPrefix(s.Key, placePrefix) || !o.Queue:
		case s.Deleted:
			o.PlaceGone(s.Key, s.Revision, w.Now)
		case s.Status == record.StatusTrying:
			l.RecallRequested(e, w.Now)
		case s.Client != c.ID:
			l.PlaceSeen(o, e, w.Now)
		}
		c.perform(w)
	}
	for _, k := range c.Kept {
		if k.Key == s.Key && !k.waits() {
			k.follow(w, k.Notified(e, w.Now))
		}
	}
	s.Attempt, s.Renewal, s.Token, s.Lingers, s.InUse = 0, 0, 0, false, 0 // a waiter does not read them
	for _, r := range c.Runs {
		if r.watches(s.Key) {
			i := slices.IndexFunc(r.Mail, func(x stored) bool { return x.Key == s.Key })
			switch {
			case i < 0:
				r.Mail = append(r.Mail, s)
			case s.Revision >= r.Mail[i].Revision:
				r.Mail[i] = s
			}
		}
	}
	for _, g := range c.Calls {
		if d := g.Drain; d != nil && d.Watches && strings.HasPrefix(s.Key, readPrefix) && s.Deleted {
			d.D.Departed(s.Key, s.Revision)
			d.Woken = true
		}
	}
}

// answered takes an answer, however late.
func (c *client) answered(w *World, m message) {
	if m.Answer.Refusal == core.Acknowledged {
		c.Highest = max(c.Highest, m.Answer.Revision)
	}
	switch m.From {
	case fromClaim:
		for _, cl := range c.Claims {
			if cl.C.ID == m.What.ID {
				cl.answered(w, m)
			}
		}
	case fromRenewal:
		for _, k := range c.Kept {
			if k.Body.ID == m.What.ID {
				k.renewed(w, m.N, m.Answer)
			}
		}
	case fromRemoval:
		for _, k := range c.Kept {
			if k.Body.ID == m.What.ID {
				k.wrote(w, m.N, m.Answer)
			}
		}
	}
}

// step does one thing that the client can do, and says whether there was one.
func (c *client) step(w *World) bool {
	if len(c.Lists) > 0 {
		x := c.Lists[0]
		c.Lists = slices.Delete(c.Lists, 0, 1)
		c.lists(w, x)
		c.perform(w)
		return true
	}
	for _, k := range c.Kept {
		if k.step(w, c) {
			c.perform(w)
			return true
		}
	}
	for _, r := range c.Runs {
		if r.step(w) {
			c.perform(w)
			return true
		}
	}
	for _, g := range c.Calls {
		if g.step(w) {
			c.perform(w)
			return true
		}
	}
	if c.Alarm != 0 && w.Now >= c.Alarm {
		c.Alarm = 0
		for _, r := range c.Core.Sweep(w.Now) {
			c.Lists = append(c.Lists, listing{r.Line, r})
		}
		c.perform(w)
		return true
	}
	return false
}

// sweep forgets what nothing refers to any more.
func (c *client) sweep(w *World) {
	if c.Crashed {
		return
	}
	gone := func(id string) bool { return w.Failed || !w.holds(id) } // and may be used again
	c.Known = slices.DeleteFunc(c.Known, gone)
	for _, g := range c.Calls {
		g.Known = slices.DeleteFunc(g.Known, gone)
	}
	c.Runs = slices.DeleteFunc(c.Runs, func(r *run) bool {
		gone := !(r.R.Driver != nil && !r.R.Over) && (r.R.Over || r.Lease == nil || r.Lease.State != core.StateHeld) &&
			!slices.ContainsFunc(c.Calls, func(g *call) bool { return g.M.Run == r.R })
		if gone { // a line may still have it
			*r = run{C: c, R: r.R, Lease: r.Lease}
			r.R.Lease, r.R.MayIdle = core.Lease{Revision: 1}, false
		}
		return gone
	})
	c.Claims = slices.DeleteFunc(c.Claims, func(cl *claim) bool {
		return cl.C.Over && (cl.C.Settled() || !slices.ContainsFunc(w.Net, func(m message) bool {
			return m.Client == c.Index && m.From == fromClaim && m.What.ID == cl.C.ID
		}))
	})
	c.Kept = slices.DeleteFunc(c.Kept, func(k *kept) bool {
		gone := k.State != core.StateHeld && k.Removal == nil &&
			!slices.ContainsFunc(c.Runs, func(r *run) bool { return r.Lease == k || r.Place == k }) &&
			!slices.ContainsFunc(c.Calls, func(g *call) bool { return g.Lease == k }) &&
			!slices.ContainsFunc(w.Net, func(m message) bool { return m.Client == c.Index && m.From == fromRenewal && m.What.ID == k.Body.ID })
		if gone { // a run may still have it
			*k = kept{}
			k.State = core.StateReleased
		}
		return gone
	})
	if c.Tombstone != 0 && w.Now.Sub(c.LeftAt) >= record.TombstoneLife {
		c.Tombstone, c.LeftAt, c.UnqueuedAt = 0, 0, 0
	}
}

// due is when the client has to do something.
func (c *client) due(w *World) clock.Instant {
	at := never
	if c.Alarm != 0 {
		at = c.Alarm
	}
	for _, k := range c.Kept {
		at = min(at, k.due())
	}
	for _, r := range c.Runs {
		at = min(at, r.due(w))
	}
	for _, g := range c.Calls {
		at = min(at, g.due())
	}
	return at
}

// step lets a goroutine in whose turn it is.
func (g *call) step(w *World) bool {
	if g.Entered || !g.M.Inside {
		return false
	}
	r := ownerOf(g.M.Run)
	l := r.Lease
	l.judgeEnd(w)
	if l.State != core.StateHeld {
		g.again(w, r)
		return true
	}
	if g.Want.Mode != record.Shared && w.Scope.Kind == record.RW && !r.R.Drained {
		return g.drains(w, r)
	}
	g.Drain = nil
	if admission, _ := l.U.Admit(&l.Kept, core.Entrant{Lingers: g.M.Linger > 0}, w.Now, -1); admission != core.Admitted { // it waits for a renewal
		if l.Left == 0 || l.Due() <= w.Now || l.Unanswered() {
			return false
		}
		l.RenewNow(w.Now)
		return true
	}
	if w.Scope.Kind != record.Semaphore { // readers are beside each other
		if token := l.Body.Token; r.Adopts != nil && token != w.Top {
			w.fail("another token than that of the holder who has handed the lock over")
		} else if r.Adopts == nil && token <= w.Top || !l.Shared() && token <= w.TopRead {
			w.fail("fencing tokens do not rise")
		} else if l.Shared() {
			w.TopRead = max(w.TopRead, token)
		} else {
			w.Top = token
		}
	}
	g.Entered, g.Lease = true, l
	if g.Holds {
		g.Wish.Least, g.Wish.Since = w.Scope.Least, w.Now
		if s := w.Server.get(l.Key); s.ID == l.Body.ID && s.Status == record.StatusHeld { // it counts from then, by the server's clock
			w.Rests = s.At.Add(w.Scope.Least - w.Scope.Early)
		}
	}
	l.wanted(w)
	w.entered(g, l)
	return true
}

// again has a goroutine wait on when the lease has ended before it was served.
func (g *call) again(w *World, r *run) {
	g.Drain = nil
	l := r.Lease
	last, opens := g.M.Lost(w.Now)
	if r.R.Line == nil {
		r.Lease, r.At = nil, atStart
	}
	if opens {
		g.C.line().Reopen(&g.M, w.Now)
	}
	if last {
		l.leave(w, record.StatusGone)
	}
}

func (g *call) due() clock.Instant {
	if g.Drain != nil {
		return g.Drain.At
	}
	return never
}

// entered notes that a goroutine is inside, and checks the order of the queue.
func (w *World) entered(g *call, l *kept) {
	w.Grants++
	if !w.Scope.Fifo || w.Failed {
		return
	}
	for _, h := range g.C.Calls {
		if h == g { // those after it have asked later
			break
		}
		if g.M.Run.Line != nil && !h.Entered && !h.M.Inside && !(g.Want.Mode == record.Shared && h.Want.Mode == record.Shared) {
			w.fail("a goroutine passes one of its client that asked before it")
		}
	}
	blind := w.Scope.Slow || g.Blind && !ownerOf(g.M.Run).Queued
	known := func(k *kept) bool { return slices.Contains(g.Known, k.Body.ID) || !blind && g.Asked >= k.Token }
	for _, c := range w.Clients {
		for _, h := range c.Calls {
			if h == g || h.Entered || h.M.Run == nil || g.Want.Mode == record.Shared && h.Want.Mode == record.Shared {
				continue
			}
			r := ownerOf(h.M.Run)
			switch {
			case g.Want.Mode == record.Shared && h.M.Inside && known(r.Lease):
				w.fail("a reader passes a writer that had the gate before it asked")
			case !h.M.Inside && h.M.Run.Ticket != 0 && r.Place != nil && known(r.Place):
				w.fail("a goroutine passes one that had queued before it asked")
			}
		}
	}
}
