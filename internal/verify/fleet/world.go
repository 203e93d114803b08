package fleet

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/verify/explore"
)

// Scope is how much of the world is played, and what may go wrong in it.
type Scope struct {
	Name    string
	Kind    record.Kind
	Permits [4]int8 // of a semaphore, as each client knows
	Clients int
	Asks    [4]int8 // of each client; -1: for ever
	Reads   [4]int8 // so many of its asks are of readers, before the others
	Most    int     // goroutines of a client at a time
	Linger  time.Duration
	Turn    time.Duration
	Least   time.Duration // the minimum hold of those who ask for one
	Extend  time.Duration // the TTL that an Extend asks for

	TTL, Margin time.Duration
	Early       time.Duration // by how much a server removes records too early
	Place       time.Duration // the TTL of a place
	Tick        time.Duration // time passes to multiples of it; 0: to any instant
	// Prompt: whatever can be done is done before time passes, unless a fault delays it. A write is
	// answered, and notified, as soon as it is stored.
	Prompt   bool
	Ways     int  // goroutines act only while fewer writes are on their way; 0: always
	Renewals int8 // of each lease; -1: for ever
	Several  bool // servers
	Slow     bool // notifications come later
	Delayed  bool // answers do
	Untimed  bool // waiters read by notifications only
	Fifo     bool // the order of the queue is checked, as long as nothing has gone wrong

	Faults Faults
}

// like says whether client i is like an earlier one.
func (s *Scope) like(i int) bool {
	return i > 0 && s.Asks[i] == s.Asks[i-1] && s.Reads[i] == s.Reads[i-1]
}

// Forever is for how long an idle lease is kept where only others end that.
const Forever = 10_000 * time.Hour

// Faults are how often what may still go wrong, or be done.
type Faults struct {
	All                                                   int8 // of any kind
	Lost, Unanswered, Late, Missed                        int8 // a write, an answer, either; a notification
	Expiries                                              int8 // a renewal is lost
	Crashes, Pauses, Breaks, GiveUps, Forgets, Lags, Cuts int8
	Refused                                               int8 // by a leader that was deposed

	Tries, Holds           int8 // asks once, asks with a minimum hold
	Extends, Hands, Adopts int8 // of holders: for another TTL, to others; of others
}

// World is everything that there is: plain data.
type World struct {
	Scope   Scope
	Now     clock.Instant
	Server  server
	Old     *server // what a replica shows that lags, or a leader that was deposed; nil: there is none
	Deposed bool
	Net     []message
	Clients []*client
	Left    Faults
	Wrong   string // the first invariant that was violated

	Granted uint64 // the highest revision of a grant that excludes others
	Top     uint64 // the highest fencing token of those that exclude others
	TopRead uint64 // and of readers
	Broken  []uint64
	Rests   clock.Instant // until then nobody else gets in
	Failed  bool          // something has gone wrong
	Grants  int
}

// server is a sequence, and the newest record of each key.
type server struct {
	Seq     uint64
	Records []stored // by key
}

// stored is a record, or a write on its way.
type stored struct {
	Key, ID, Client string
	Status          record.Status
	Mode            record.Mode
	Attempt         int
	Renewal         uint64
	Token           uint64
	Evictions       uint16
	Permits         uint16
	Lingers         bool
	InUse           uint64
	Revision        uint64
	At              clock.Instant
	TTL             time.Duration
	Deleted         bool
	Forgotten       bool // the server never removes it
}

func (s *stored) live() bool { return s.Revision != 0 && !s.Deleted }

// tokenOf is the token or the ticket of a record that was not renewed.
func (w *World) tokenOf(s *stored) uint64 {
	return pick(isLock(s.Key) && w.Scope.travels(), record.Token(s.Revision, 0), s.Revision)
}

// holds says whether the record keeps others out, and is not broken.
func (s *stored) holds() bool {
	return s.Status == record.StatusHeld || s.Status == record.StatusHanded || s.Status == record.StatusCooldown
}

func (s *stored) entry() (e record.Entry) {
	if s.Revision == 0 {
		return e
	}
	e.Record = kvstore.Record{Key: s.Key, Revision: s.Revision, Time: wall(s.At), TTL: s.TTL, Deleted: s.Deleted}
	e.Body = record.Body{
		Status: s.Status, Mode: uint8(s.Mode), ID: s.ID, Client: s.Client, Attempt: s.Attempt, Renewal: s.Renewal,
		Token: s.Token, Evictions: s.Evictions, Permits: record.Permits(s.Permits), TTL: int64(s.TTL / time.Second),
		Lingers: s.Lingers, InUse: s.InUse,
	}
	return e
}

// wall is the servers' clock at an instant.
func wall(at clock.Instant) time.Time { return time.Unix(0, int64(at)).UTC() }

func (s *server) find(key string) (int, bool) {
	return slices.BinarySearchFunc(s.Records, key, func(r stored, key string) int { return strings.Compare(r.Key, key) })
}

// get returns the record under a key; zero: there is none.
func (s *server) get(key string) stored {
	if i, ok := s.find(key); ok {
		return s.Records[i]
	}
	return stored{}
}

// expire removes what has ended.
func (s *server) expire(now clock.Instant, early time.Duration) {
	s.Records = slices.DeleteFunc(s.Records, func(r stored) bool { return !r.Forgotten && now >= r.ends(early) })
}

// ends is when the server removes the record.
func (s *stored) ends(early time.Duration) clock.Instant {
	if s.Deleted {
		early = 0
	}
	return s.At.Add(s.TTL - early)
}

// list returns the records under a prefix, tombstones included.
func (s *server) list(prefix string) (all []stored) {
	for _, r := range s.Records {
		if strings.HasPrefix(r.Key, prefix) {
			all = append(all, r)
		}
	}
	return all
}

// message is on its way.
type message struct {
	To     byte // toServer, toClient, toWatch
	Late   bool // time may pass before it arrives
	Client int  // who has sent it, or gets it
	What   stored
	Expect uint64
	Guard  string // the key that Expect is about; "": that of the record
	From   byte   // who waits for the answer
	N      uint64 // of the attempt or the renewal
	Answer core.Answer
}

const (
	toServer byte = iota + 1
	toClient
	toWatch
)

const (
	fromNobody byte = iota
	fromClaim
	fromRenewal
	fromRemoval
)

const (
	gateKey     = "lock"
	placePrefix = "wait."
	readPrefix  = "read."
	slotPrefix  = "slot."
)

func isLock(key string) bool { return key == gateKey || strings.HasPrefix(key, slotPrefix) }

// kinds of moves
const (
	mvDeliver uint8 = iota
	mvLose
	mvExpire
	mvUnanswered // stored, and the answer is lost
	mvLateAnswer // stored, and the answer is late
	mvLate
	mvMissed // stored, and client B misses the notification
	mvRepeat
	mvDeposed // the leader that was deposed answers
	mvAsk
	mvUnlock
	mvGiveUp
	mvPass
	mvBreak
	mvCrash
	mvPause
	mvResume
	mvForget
	mvLag
	mvCatchUp
	mvCut
	mvExtend
	mvHandOff
	mvAdopt
)

// how a goroutine asks
const (
	asksLingering = 1 << iota
	asksReading
	asksOnce
	asksHolding
)

// New makes the world of a scope.
func New(s Scope) *World {
	w := &World{Scope: s, Now: clock.Instant(100 * time.Second), Left: s.Faults, Server: server{Seq: 100}}
	for i := range s.Clients {
		c := &client{Index: i, ID: string(rune('A' + i)), Asks: s.Asks[i], Reads: s.Reads[i], Permits: s.Permits[i]}
		c.Core = core.Client{ID: c.ID, Turn: s.Turn, Most: 2}
		w.Clients = append(w.Clients, c)
	}
	return w
}

// Moves appends what may happen next.
func Moves(w *World, to []explore.Move) []explore.Move {
	if w.Wrong != "" {
		return to
	}
	add := func(fault bool, left int8, kind uint8, a, b int) {
		if !fault || left != 0 && w.Left.All != 0 {
			to = append(to, explore.Move{Kind: kind, Fault: fault, A: int32(a), B: int32(b)})
		}
	}
	f, ways, waits := &w.Left, 0, false
	for i := range w.Net {
		m := &w.Net[i]
		if m.To != toServer && w.Clients[m.Client].Crashed {
			continue
		}
		waits = waits || !m.Late
		if !m.Late && m.To != toWatch {
			ways++
		}
		add(false, 0, mvDeliver, i, 0)
		add(true, f.Lost, mvLose, i, 0)
		if m.To == toServer && m.From == fromRenewal {
			add(true, f.Expiries, mvExpire, i, 0)
		}
		if !m.Late {
			add(true, f.Late, mvLate, i, 0)
		}
		if m.To == toServer {
			if m.From != fromNobody && w.Scope.Prompt {
				if m.From != fromRenewal { // that is an expiry
					add(true, f.Unanswered, mvUnanswered, i, 0)
				}
				add(true, f.Late, mvLateAnswer, i, 0)
			}
			if w.Deposed && m.From != fromNobody {
				add(true, f.Refused, mvDeposed, i, 0)
			}
			for j, c := range w.Clients {
				if w.Scope.Prompt && c.watches(m.What.Key) {
					add(true, f.Missed, mvMissed, i, j)
				}
			}
		}
	}
	acts := w.Scope.Ways == 0 || ways < w.Scope.Ways
	asked := slices.ContainsFunc(w.Clients, func(c *client) bool { return c.Crashed || c.Asks != w.Scope.Asks[c.Index] || c.Asks < 0 })
	for i, c := range w.Clients {
		if c.Crashed {
			continue
		}
		if c.Paused {
			add(false, 0, mvResume, i, 0)
			continue
		}
		// The first one who asks is client A: others that are like it only have another name.
		if acts && c.Asks != 0 && len(c.Calls) < w.Scope.Most && (asked || !w.Scope.Prompt || !w.Scope.like(i)) {
			lingers := pick(w.Scope.Linger > 0, asksLingering, 0)
			if c.Reads != c.Asks {
				add(false, 0, mvAsk, i, lingers)
				add(true, f.Tries, mvAsk, i, asksOnce)
				add(true, f.Holds, mvAsk, i, asksHolding)
			}
			if c.Reads > 0 {
				add(false, 0, mvAsk, i, lingers|asksReading)
			}
		}
		for j, g := range c.Calls {
			if g.Entered {
				if !acts {
					continue
				}
				add(false, 0, mvUnlock, i, j)
				add(true, f.Extends, mvExtend, i, j)
				if g.hands(w) {
					add(true, f.Hands, mvHandOff, i, j)
				}
			} else {
				add(true, f.GiveUps, mvGiveUp, i, j)
			}
		}
		add(true, f.Crashes, mvCrash, i, 0)
		add(true, f.Pauses, mvPause, i, 0)
		switch {
		case c.Lags:
			add(false, 0, mvCatchUp, i, 0)
		default:
			add(true, f.Lags, mvLag, i, 0)
		}
	}
	for i := range w.Server.Records {
		r := &w.Server.Records[i]
		if r.live() && r.holds() {
			add(true, f.Breaks, mvBreak, i, 0)
			for j, c := range w.Clients {
				if acts && !c.Crashed && !c.Paused && r.Key == gateKey && len(c.Calls) < w.Scope.Most {
					add(true, f.Adopts, mvAdopt, i, j)
				}
			}
		}
		if r.live() && !r.Forgotten {
			add(true, f.Forgets, mvForget, i, 0)
		}
	}
	if w.Scope.Several && w.Old == nil {
		add(true, f.Cuts, mvCut, 0, 0)
	}
	if !w.Scope.Prompt || !waits {
		if at := w.next(); at != never {
			add(false, 0, mvPass, int(at.Sub(w.Now)/time.Millisecond), 0)
		}
	}
	return to
}

const never = core.Unbounded

// next is when time is to pass to.
func (w *World) next() clock.Instant {
	at := never
	for _, r := range w.Server.Records {
		switch end := r.ends(w.Scope.Early); {
		case !r.Forgotten:
			at = min(at, end)
		case end.Add(record.OverdueSlack) > w.Now:
			at = min(at, end.Add(record.OverdueSlack))
		}
	}
	for _, c := range w.Clients {
		if !c.Crashed {
			at = min(at, c.due(w))
		}
	}
	if at == never {
		return at
	}
	if t := clock.Instant(w.Scope.Tick); t > 0 {
		at = (at + t - 1) / t * t
		return max(at, (w.Now/t+1)*t)
	}
	return max(at, w.Now.Add(time.Millisecond))
}

// Take makes a move.
func Take(w *World, m explore.Move) {
	a, b := int(m.A), int(m.B)
	if m.Fault {
		spend(&w.Left.All)
		w.Failed = w.Failed || m.Kind != mvAsk || m.B&asksOnce == 0
	}
	switch m.Kind {
	case mvDeliver:
		w.deliver(a, 0, -1)
	case mvUnanswered, mvLateAnswer:
		spend(pick(m.Kind == mvUnanswered, &w.Left.Unanswered, &w.Left.Late))
		w.deliver(a, m.Kind, -1)
	case mvMissed:
		w.deliver(a, 0, b)
	case mvDeposed:
		spend(&w.Left.Refused)
		w.deposedAnswers(w.Net[a])
	case mvLose:
		spend(&w.Left.Lost)
		w.remove(a)
	case mvExpire:
		spend(&w.Left.Expiries)
		w.remove(a)
	case mvLate:
		spend(&w.Left.Late)
		w.Net[a].Late = true
	case mvRepeat:
		w.Net = append(w.Net, w.Net[a])
	case mvAsk:
		spend(pick(b&asksOnce != 0, &w.Left.Tries, new(int8)))
		spend(pick(b&asksHolding != 0, &w.Left.Holds, new(int8)))
		w.Clients[a].asks(w, b)
	case mvUnlock:
		w.Clients[a].Calls[b].unlocks(w)
	case mvGiveUp:
		spend(&w.Left.GiveUps)
		w.Clients[a].Calls[b].givesUp(w)
	case mvPass:
		w.Now = w.Now.Add(time.Duration(m.A) * time.Millisecond)
		w.Server.expire(w.Now, w.Scope.Early)
		if w.Old != nil && w.Deposed {
			w.Old.expire(w.Now, w.Scope.Early)
		}
	case mvBreak:
		spend(&w.Left.Breaks)
		w.breaks(w.Server.Records[a])
	case mvCrash:
		spend(&w.Left.Crashes)
		w.crash(w.Clients[a])
	case mvPause:
		spend(&w.Left.Pauses)
		w.Clients[a].Paused = true
	case mvResume:
		w.Clients[a].Paused = false
	case mvForget:
		spend(&w.Left.Forgets)
		w.Server.Records[a].Forgotten = true
	case mvLag:
		spend(&w.Left.Lags)
		w.Clients[a].Lags = true
		if w.Old == nil {
			w.Old = w.Server.copy()
		}
	case mvCatchUp:
		w.Clients[a].Lags = false
		if !w.Deposed && !slices.ContainsFunc(w.Clients, func(c *client) bool { return c.Lags }) {
			w.Old = nil
		}
	case mvCut:
		spend(&w.Left.Cuts)
		w.Old, w.Deposed = w.Server.copy(), true
	case mvExtend:
		spend(&w.Left.Extends)
		w.Clients[a].Calls[b].extends(w)
	case mvHandOff:
		spend(&w.Left.Hands)
		w.Clients[a].Calls[b].handsOff(w)
	case mvAdopt:
		spend(&w.Left.Adopts)
		w.Clients[b].adopts(w, w.Server.Records[a])
	}
	w.settle()
}

func (s *server) copy() *server { return &server{s.Seq, slices.Clone(s.Records)} }

func spend(n *int8) {
	if *n > 0 {
		*n--
	}
}

func pick[T any](first bool, a, b T) T {
	if first {
		return a
	}
	return b
}

// settle lets each client do what it can.
func (w *World) settle() {
	for i, again := 0, true; again && w.Wrong == ""; i++ {
		again = false
		for _, c := range w.Clients {
			for !c.Crashed && !c.Paused && c.step(w) {
				if i > 100 { // a client that reads again and again meets a replica that has caught up
					c.Lags = false
				}
				if again = true; i > 300 {
					w.fail("a client does something for ever")
					return
				}
				i++
			}
		}
	}
	for _, c := range w.Clients {
		c.sweep(w)
	}
	w.check()
}

func (w *World) fail(format string, args ...any) {
	if w.Wrong == "" {
		w.Wrong = fmt.Sprintf(format, args...)
	}
}

func (w *World) remove(i int) message {
	m := w.Net[i]
	w.Net = slices.Delete(w.Net, i, i+1)
	return m
}

func (w *World) send(m message) { w.Net = append(w.Net, m) }

// deliver delivers a message. how says what becomes of the answer to a write, and missed is a client that
// gets no notification of it; negative: none.
func (w *World) deliver(i int, how uint8, missed int) {
	m := w.remove(i)
	c := w.Clients[m.Client]
	switch m.To {
	case toServer:
		a := w.write(m.What, m.Expect, m.Guard, missed)
		if m.From == fromClaim && m.What.Status == record.StatusHeld && a.Refusal == core.Acknowledged && w.Now < w.Rests {
			w.fail("a claim is stored before a minimum hold is over")
		}
		if m.From == fromNobody {
			return
		}
		m.To, m.Answer, m.Late = toClient, a, how == mvLateAnswer
		switch {
		case how == mvUnanswered || c.Crashed:
		case how == mvLateAnswer || !w.Scope.Prompt || w.Scope.Delayed:
			w.send(m)
		default:
			c.answered(w, m)
		}
	case toClient:
		c.answered(w, m)
	case toWatch:
		c.hears(w, m.What)
	}
}

// deposedAnswers has a leader answer a write that was deposed and does not know it: it can store nothing.
func (w *World) deposedAnswers(m message) {
	if a, stores := w.Old.judge(m.What, m.Expect, m.Guard); !stores {
		m.To, m.Answer = toClient, a
		w.Clients[m.Client].answered(w, m)
	}
}

// judge compares the expectation of a write.
func (s *server) judge(r stored, expect uint64, guard string) (a core.Answer, stores bool) {
	key := r.Key
	if guard != "" {
		key = guard
	}
	if last := s.get(key).Revision; last != expect {
		return core.Answer{Refusal: core.Conflict, Last: last}, false
	}
	return a, true
}

// write has the leader judge a write, and store it.
func (w *World) write(r stored, expect uint64, guard string, missed int) core.Answer {
	s := &w.Server
	a, stores := s.judge(r, expect, guard)
	if !stores {
		return a
	}
	s.Seq++
	if r.Revision, r.At = s.Seq, w.Now; r.Token == 0 && w.Scope.travels() {
		r.Token = w.tokenOf(&r)
	}
	i, there := s.find(r.Key)
	if there {
		s.Records[i] = r
	} else {
		s.Records = slices.Insert(s.Records, i, r)
	}
	note := r // nobody reads more of it
	if note.Attempt, note.Renewal = 0, min(r.Renewal, 1); note.Token == 0 {
		note.Token = w.tokenOf(&r)
	}
	for j, c := range w.Clients {
		switch {
		case j == missed:
			spend(&w.Left.Missed)
		case c.Crashed || !c.watches(r.Key):
		case w.Scope.Prompt && !w.Scope.Slow:
			c.hears(w, note)
		default:
			w.send(message{To: toWatch, Client: j, What: note, Late: !w.Scope.Slow})
		}
	}
	return core.Answer{Revision: s.Seq}
}

// tombstone has the leader put a tombstone.
func (w *World) tombstone(key string, expect uint64, id string, status record.Status) core.Answer {
	return w.write(stored{Key: key, ID: id, Status: status, Deleted: true, TTL: record.TombstoneLife}, expect, "", -1)
}

// breaks has an operator break a holder, or free what one has left.
func (w *World) breaks(r stored) {
	expect := r.Revision
	r.TTL = (&core.Break{ID: r.ID}).BrokenFor(r.entry(), wall(w.Now), w.Scope.TTL)
	if r.Token == 0 {
		r.Token = w.tokenOf(&r)
	}
	r.Attempt, r.Renewal = 0, 0 // nobody reads them of a broken record
	if r.Status = record.StatusBroken; r.TTL == 0 {
		r.Deleted, r.TTL = true, record.TombstoneLife
	}
	if isLock(r.Key) {
		w.Rests = 0 // the operator has decided
	}
	if a := w.write(r, expect, "", -1); a.Refusal == core.Acknowledged {
		w.Broken = append(w.Broken, a.Revision)
	}
}

// crash ends a client. What it has sent is still on its way.
func (w *World) crash(c *client) {
	w.Clients[c.Index] = &client{Index: c.Index, ID: c.ID, Crashed: true}
	w.Net = slices.DeleteFunc(w.Net, func(m message) bool { return m.To != toServer && m.Client == c.Index })
}

// check holds the promises.
func (w *World) check() {
	var inside []*call
	for _, c := range w.Clients {
		for _, g := range c.Calls {
			if l := g.Lease; g.Entered && l != nil && l.holds(w.Now) {
				inside = append(inside, g)
			}
			if l := g.Lease; g.Entered && l != nil {
				if l.Seen && l.holds(w.Now) {
					w.fail("a lease that has ended is valid again")
				}
				l.Seen = l.Seen || !l.holds(w.Now)
			}
		}
	}
	leases := 0
	for i, g := range inside {
		if i == 0 || !slices.ContainsFunc(inside[:i], func(x *call) bool { return x.Lease == g.Lease }) {
			leases++
		}
		for _, h := range inside[:i] {
			switch {
			case w.Scope.Kind == record.Semaphore:
			case g.Want.Mode == record.Shared && h.Want.Mode == record.Shared:
			default:
				w.fail("two goroutines are inside")
			}
		}
	}
	if w.Scope.Kind == record.Semaphore && leases > int(slices.Max(w.Scope.Permits[:])) {
		w.fail("more goroutines are inside than there are permits")
	}
}

// Goal says whether nobody waits.
func Goal(w *World) bool {
	for _, c := range w.Clients {
		for _, g := range c.Calls {
			if !g.Entered {
				return false
			}
		}
	}
	return true
}
