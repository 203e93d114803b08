package core

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
)

// script plays the events of one lock of one client. A test is a list of them, in the order in which
// they happen:
//
//	s := begin(t)
//	s.asks("A").then("open 1", "wake A").is("A")
//	s.granted("A", 10).is("[A]")
//	s.asks("B").is("[A] B")
//	s.leaves("A").then("wake B", "size 1 is 1").is("[B]")
//
// Capital letters are goroutines of the client, and small ones are other clients. [script.then] has
// the effects of the event before it, and what the core has returned to its caller. [script.is]
// shows the runs of the line: in brackets who is inside, behind them who waits, in order. Runs are
// numbered as they open. An idle one is "idle", and "idle?" while its members wait for a list.
//
// The script keeps the queue of the server and the gate: a list shows what is there by then.
type script struct {
	*world
	line  Line
	queue []record.Entry
	door  record.Entry // the gate
}

// world is what the locks of a client have in common.
type world struct {
	t       *testing.T
	client  Client
	now     clock.Instant
	runs    map[*Run]int
	members map[string]*Member
	asked   []string // names of the members in the order in which they asked
	said    []string // what the core has returned for the last event
}

const (
	ms     = time.Millisecond
	start  = clock.Instant(ms) // early: 0 stands for none
	turn   = ms                // of the client
	ttl    = 15 * time.Second
	margin = time.Second
)

func begin(t *testing.T) *script {
	w := &world{t: t, now: start, runs: map[*Run]int{}, members: map[string]*Member{}}
	w.client = Client{ID: "me", Turn: turn, Most: 10}
	return w.lock()
}

// lock is another lock of the client.
func (w *world) lock() *script {
	s := &script{world: w}
	s.line.Begin(&w.client, nil)
	return s
}

// event begins an event: the effects of the one before it are performed.
func (s *script) event() *script {
	s.number()
	s.client.Effects, s.said = nil, nil
	return s
}

func (s *script) says(format string, args ...any) {
	s.said = append(s.said, fmt.Sprintf(format, args...))
}

func (s *script) server() time.Time { return time.Unix(0, 0).Add(s.now.Sub(start)) }

// passes lets time pass.
func (s *script) passes(d time.Duration) *script {
	s.now = s.now.Add(d)
	return s.event()
}

// Options of a goroutine that asks.
type option func(*Member)

func reads(m *Member)   { m.Want.Mode = record.Shared }
func once(m *Member)    { m.Want.Once = true }
func patient(m *Member) { m.Want.Patient = true }
func private(m *Member) { m.Want.Private = true }

func wants(ttl time.Duration) option { return func(m *Member) { m.Want.TTL = ttl } }
func meta(v string) option {
	return func(m *Member) { m.Want.Meta = map[string]string{"m": v} }
}

// lingers is for a member whose lease is kept for some time when it has left.
func lingers(d time.Duration) option { return func(m *Member) { m.Linger = d } }

// asks has a goroutine ask for the lock. The core returns "apart" for one that waits with nobody.
func (s *script) asks(name string, options ...option) *script {
	s.event()
	m := &Member{Want: &Want{TTL: ttl}}
	for _, o := range options {
		o(m)
	}
	require.NotContains(s.t, s.members, name)
	s.members[name], s.asked = m, append(s.asked, name)
	if !s.line.Ask(m, s.now) {
		m.Run = &Run{Driver: m, TTL: m.Want.TTL, Mode: m.Want.Mode, Private: true}
		s.says("apart")
	}
	return s
}

// granted: the claim of the goroutine's run has been stored. The core returns "nobody" if nobody is
// left that it was for.
func (s *script) granted(name string, revision uint64) *script {
	m := s.event().members[name]
	lease := Lease{Revision: revision, Until: s.now.Add(m.Run.TTL - margin)}
	m.Run.MayIdle = m.Linger > 0
	if !m.Run.Granted(m, lease, s.now) {
		s.says("nobody")
	}
	return s
}

// heads: a holder without a line gets one, when another goroutine asks.
func (s *script) heads(name string, turnEnds clock.Instant) *script {
	s.event()
	r := s.line.Head(nil, s.members[name], turnEnds)
	r.TTL, r.Lease = ttl, Lease{Revision: 10, Until: s.now.Add(ttl - margin)}
	s.runs[r] = len(s.runs) + 1
	return s
}

// keeps: a holder that has waited with nobody gets a line, so that its lease can linger.
func (s *script) keeps(name string) *script {
	s.event()
	m := s.members[name]
	r := s.line.Head(m.Run, m, s.now)
	s.runs[r] = len(s.runs) + 1
	r.Keep()
	return s
}

// claims: the claim is sent after a subscription.
func (s *script) claims(name string) *script {
	s.event().members[name].Run.Claiming(s.now)
	return s
}

// writes: the place of the goroutine's run is sent.
func (s *script) writes(name string) *script {
	s.event().members[name].Run.Queueing(s.now)
	return s
}

// queued: it is stored.
func (s *script) queued(name string, ticket uint64) *script {
	s.event().members[name].Run.PlaceAt(ticket, s.now)
	return s
}

// shown: a list has shown it, and what else is queued.
func (s *script) shown(name string) *script {
	s.lists()
	s.members[name].Run.PlaceListed()
	return s
}

// unqueued: it has gone.
func (s *script) unqueued(name string) *script {
	s.event().members[name].Run.PlaceLost()
	return s
}

// waitsFor returns the run that has to have a record before the goroutine's writes a place.
func (s *script) waitsFor(name string) *script {
	if r := s.event().members[name].Run.Before(); r != nil {
		s.says("after %d", s.runs[r])
	}
	return s
}

// merges: the members of the goroutine's run join the readers before it, if they may. The core
// returns "unsure" if the client does not know that.
func (s *script) merges(name string) *script {
	m := s.event().members[name]
	switch h := m.Run.Host(m.Want, s.now); {
	case h == nil:
		s.says("no host")
	case !h.Joinable(s.now):
		s.says("unsure")
	default:
		m.Run.Merge(h)
	}
	return s
}

// leaves: a holder leaves. The core returns "A releases 1" if the lease ends with it.
func (s *script) leaves(name string) *script {
	if left := s.leaving(name); left != nil {
		left()
	}
	return s
}

// leaving is the first half of leaves, and returns the other one; nil: there is none. Events may come
// between the two.
func (s *script) leaving(name string) (left func() *script) {
	m := s.event().members[name]
	r := m.Run
	says := func(l Left) *script {
		if l == Unused {
			s.says("%s releases %d", name, s.runs[r])
		}
		return s
	}
	if l := m.Leave(s.now); l == Unused {
		says(l)
		delete(s.members, name)
		return nil
	}
	return func() *script {
		delete(s.members, name)
		return says(r.Next(s.now))
	}
}

// givesUp: one that waits, or has not entered, gives up.
func (s *script) givesUp(name string) *script {
	m := s.event().members[name]
	r := m.Run
	delete(s.members, name)
	left, drives := m.GiveUp(s.now)
	switch {
	case left == Unused:
		s.says("%s releases %d", name, s.runs[r])
	case left == Withdrawn:
		s.says("%s withdraws %d", name, s.runs[r])
	case drives != nil:
		s.says("%s drives", s.name(drives))
	}
	return s
}

// loses: the lease has ended before the goroutine has entered. The core returns "A deletes 1" if
// the record is left to it, and "A reopens" if it needs a run of its own.
func (s *script) loses(name string) *script {
	m := s.event().members[name]
	r := m.Run
	last, opens := m.Lost(s.now)
	if last {
		s.says("%s deletes %d", name, s.runs[r])
	}
	if opens {
		s.says("%s reopens", name)
		s.line.Reopen(m, s.now)
	}
	return s
}

// ends: the lease of the run has ended.
func (s *script) ends(run int) *script {
	r := s.event().run(run)
	r.Lease.Until = s.now
	r.LeaseEnded(s.now)
	return s
}

// turnOver: the timer of the run's turn fires.
func (s *script) turnOver(run int) *script {
	s.event().run(run).TurnOver(s.now)
	return s
}

// wantsHint: the holder wants to be notified when somebody waits.
func (s *script) wantsHint(name string) *script {
	s.event().members[name].WantHint(nil)
	return s
}

// contended says whether the core counts the lease of the holder as contended.
func (s *script) contended(name string) bool { return s.members[name].Run.Contended(s.now) }

// subscribes: the client subscribes to the queue; to the gate beside it, if it reads.
func (s *script) subscribes(options ...option) *script {
	s.event()
	if s.line.Others == nil {
		s.line.Others = &Others{}
	}
	if !s.line.Others.Queue {
		s.line.Others.Subscribed(false)
	}
	if len(options) > 0 {
		s.line.Others.Subscribed(true)
	}
	return s
}

// proves: a write that was sent after the subscription is answered.
func (s *script) proves() *script {
	_, epoch := s.event().line.Others.Proven()
	s.line.Others.Prove(s.now, epoch)
	return s
}

// moves: another server serves the subscription.
func (s *script) moves() *script {
	s.event().line.Others.Moved()
	return s
}

// lists: a list of the queue is answered at once, and of the gate beside it.
func (s *script) lists() *script { return s.listed(s.now) }

// listed: a list is answered that was asked for at an instant, and shows what is there now.
func (s *script) listed(at clock.Instant) *script {
	s.event().line.Listed(s.queue, 0, &s.door, at, s.now, s.server())
	return s
}

// informed: the client subscribes, proves that and lists.
func (s *script) informed(options ...option) *script {
	return s.subscribes(options...).proves().lists()
}

// relisted: the list is over that the run has asked for.
func (s *script) relisted(run int) *script {
	s.event().run(run).Relisted(s.now)
	return s
}

// queuesUnseen: another client writes a place, and the notification is lost.
func (s *script) queuesUnseen(name string, ticket uint64, options ...option) record.Entry {
	m := &Member{Want: &Want{}}
	for _, o := range options {
		o(m)
	}
	e := record.Entry{
		Record: kvstore.Record{Key: record.RWaitPrefix + "l." + name, Revision: ticket, Time: s.server(), TTL: ttl},
		Body:   record.Body{Status: record.StatusWaiting, ID: name, Client: name, Mode: uint8(m.Want.Mode)},
	}
	s.queue = append(s.queue, e)
	return e
}

// queues: another client writes a place, and this one is notified.
func (s *script) queues(name string, ticket uint64, options ...option) *script {
	e := s.queuesUnseen(name, ticket, options...)
	s.event().line.PlaceSeen(s.line.Others, e, s.now)
	return s
}

// goes: its place has gone, and this client is notified.
func (s *script) goes(name string, revision uint64) *script {
	s.queue = slices.DeleteFunc(s.queue, func(e record.Entry) bool { return e.ID == name })
	s.event().line.Others.PlaceGone(record.RWaitPrefix+"l."+name, revision, s.now)
	return s
}

// shutsUnseen: a writer takes the gate, and the notification is lost.
func (s *script) shutsUnseen(name string, revision uint64) {
	s.door = record.Entry{
		Record: kvstore.Record{Key: record.GatePrefix + "l", Revision: revision, Time: s.server(), TTL: ttl},
		Body:   record.Body{Status: record.StatusHeld, ID: name, Client: name},
	}
}

// shuts: a writer takes the gate, and this client is notified.
func (s *script) shuts(name string, revision uint64) *script {
	s.shutsUnseen(name, revision)
	s.event().line.GateSeen(s.line.Others, s.door, s.now)
	return s
}

// opens: the writer releases the gate.
func (s *script) opens(revision uint64) *script {
	s.door.Revision, s.door.Deleted = revision, true
	s.event().line.GateSeen(s.line.Others, s.door, s.now)
	return s
}

// tends: the alarm rings. The core returns the runs whose queues are to be listed together.
func (s *script) tends() *script {
	for _, r := range s.event().client.Sweep(s.now) {
		s.says("list %d", s.runs[r])
	}
	return s
}

// then requires the effects of the event before it, and what it has returned.
func (s *script) then(want ...string) *script {
	s.t.Helper()
	require.Equal(s.t, want, s.effects())
	return s
}

// thenNothing requires that the event has no effect.
func (s *script) thenNothing() *script {
	s.t.Helper()
	require.Empty(s.t, s.effects())
	return s
}

// is requires the runs of the line; none: the line has no run.
func (s *script) is(want ...string) *script {
	s.t.Helper()
	s.number()
	var got []string
	for _, r := range s.line.Runs {
		var inside, all []string
		for _, name := range s.asked {
			if m := s.members[name]; m != nil && m.Run == r && m.Inside {
				inside = append(inside, name)
			}
		}
		require.Len(s.t, inside, int(r.Inside), "members inside of run %d", s.runs[r])
		switch {
		case r.Idle():
			all = append(all, "idle")
		case r.Spare():
			all = append(all, "idle?")
		case len(inside) > 0:
			all = append(all, "["+strings.Join(inside, " ")+"]")
		}
		for _, m := range r.Members {
			require.Same(s.t, r, m.Run, "the run of %s", s.name(m))
			all = append(all, s.name(m))
		}
		got = append(got, strings.Join(all, " "))
	}
	require.Equal(s.t, want, got)
	return s
}

// number gives numbers to the runs that the effects have opened.
func (s *script) number() {
	for _, e := range s.client.Effects {
		if e.Do == Open && s.runs[e.Run] == 0 {
			s.runs[e.Run] = len(s.runs) + 1
		}
	}
}

func (s *script) run(number int) *Run {
	for r, n := range s.runs {
		if n == number {
			return r
		}
	}
	require.FailNow(s.t, "there is no such run", number)
	return nil
}

func (s *script) name(m *Member) string {
	for name, x := range s.members {
		if x == m {
			return name
		}
	}
	return "nobody"
}

// effects are those of the last event, as a test writes them.
func (s *script) effects() (all []string) {
	s.number()
	for _, e := range s.client.Effects {
		r, m, at := s.runs[e.Run], s.name(e.Member), e.At.Sub(start)
		all = append(all, map[Action]string{
			Open:     fmt.Sprintf("open %d", r),
			Wake:     "wake " + m,
			Announce: "announce " + m,
			Size:     fmt.Sprintf("size %d is %d", r, e.N),
			Settle:   fmt.Sprintf("settle %d", r),
			OnEnd:    fmt.Sprintf("on end %d", r),
			EndTurn:  fmt.Sprintf("end turn %d at %v", r, at),
			KeepTurn: fmt.Sprintf("keep turn %d", r),
			Idle:     fmt.Sprintf("idle %d", r),
			Release:  fmt.Sprintf("release %d", r),
			List:     "list",
			Relist:   fmt.Sprintf("relist %d", r),
			Alarm:    fmt.Sprintf("alarm at %v", at),
			Hint:     "hint " + m,
			Close:    "close",
		}[e.Do])
	}
	return append(all, s.said...)
}
