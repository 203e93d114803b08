package cohort

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/call"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/keeper"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
)

const (
	ms   = time.Millisecond
	ttl  = 10 * time.Second
	noon = clock.Instant(12 * time.Hour) // the time at which each test begins
)

// seen returns what a client knows after it has listed the queue and the gate with proven subscriptions.
func seen(at clock.Instant) *others {
	return &others{queueIn: true, gateIn: true, proven: at, listedAt: at, gate: gateSeen{listedAt: at}}
}

// place returns another client's place.
func place(revision uint64, change ...func(*record.Entry)) record.Entry {
	e := record.Entry{
		Record: kvstore.Record{Key: "wait.x.other", Revision: revision, TTL: ttl},
		Body:   record.Body{ID: "other", Client: "other", Status: record.StatusWaiting},
	}
	for _, c := range change {
		c(&e)
	}
	return e
}

func reads(e *record.Entry) { e.Mode = uint8(record.Shared) }

// gate returns the record of another client's writer.
func gate(revision uint64) record.Entry {
	return record.Entry{Record: kvstore.Record{Key: "gate.x", Revision: revision, TTL: ttl}, Body: record.Body{ID: "writer", Status: record.StatusHeld}}
}

// inMemory returns a client of an in-memory bucket, and its clock, which only the test advances.
func inMemory(t *testing.T, turn time.Duration, wrap ...func(kvstore.KV) kvstore.KV) (*Client, *atomic.Int64) {
	now := new(atomic.Int64)
	now.Store(int64(noon))
	var kv kvstore.KV = kvstore.NewMemory(kvstore.DefaultBucket).Open()
	for _, w := range wrap {
		kv = w(kv)
	}
	b := bucket.New(kv, "", func() clock.Instant { return clock.Instant(now.Load()) })
	s := session.New(b, session.Config{TTL: ttl, WatchAfter: -1})
	c := New(b, s, turn, 1)
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		c.Close(ctx)
	})
	return c, now
}

// granted returns the grant that a claim by c obtained at revision.
func granted(c *Client, revision uint64) keeper.Granted {
	return keeper.Granted{
		Name: "x", Key: "lock.x", Revision: revision, Body: record.Body{ID: "me", Status: record.StatusHeld},
		Terms: clock.NewTerms(ttl), Sent: c.b.Instant(),
	}
}

// newCohort opens a cohort of a mutex, or of a lock's readers if mode is Shared.
func newCohort(c *Client, mode record.Mode) *cohort {
	kind := record.Mutex
	if mode == record.Shared {
		kind = record.RW
	}
	return c.lockOf(record.KeysOf(kind, "x")).open(group{mode: mode, ttl: ttl}, false)
}

// asks adds n waiting goroutines to the cohort.
func (k *cohort) asks(n int) (all []*holder) {
	for range n {
		k.asked++
		h := &holder{c: k.lock.c, cohort: k, number: k.asked, queued: true, wake: make(chan struct{}, 1)}
		k.fifo.insert(h)
		all = append(all, h)
	}
	return all
}

// The FIFO follows the order in which goroutines asked, no matter when they join it.
func TestFIFO(t *testing.T) {
	for name, tc := range map[string]struct{ inserts, removes, left []uint64 }{
		"in order":                   {[]uint64{1, 2, 3}, nil, []uint64{1, 2, 3}},
		"a founder that was refused": {[]uint64{2, 3, 1}, nil, []uint64{1, 2, 3}},
		"one between":                {[]uint64{1, 3, 2}, nil, []uint64{1, 2, 3}},
		"the first leaves":           {[]uint64{1, 2, 3}, []uint64{1}, []uint64{2, 3}},
		"the last leaves":            {[]uint64{1, 2, 3}, []uint64{3}, []uint64{1, 2}},
		"one between leaves":         {[]uint64{1, 2, 3}, []uint64{2}, []uint64{1, 3}},
		"all leave":                  {[]uint64{2, 1}, []uint64{1, 2}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var f fifo
			all := map[uint64]*holder{}
			for _, n := range tc.inserts {
				all[n] = &holder{number: n}
				f.insert(all[n])
				require.True(t, all[n].waits)
			}
			for _, n := range tc.removes {
				f.remove(all[n])
				require.False(t, all[n].waits)
			}
			var forward, back []uint64
			for h := f.first; h != nil; h = h.next {
				forward = append(forward, h.number)
			}
			for h := f.last; h != nil; h = h.prev {
				back = append([]uint64{h.number}, back...)
			}
			require.Equal(t, tc.left, forward)
			require.Equal(t, tc.left, back)
			require.Len(t, tc.left, f.n)
		})
	}
}

// A client may assume that nobody else waits only on the basis of a list from the last second, taken with subscriptions
// in place.
func TestOthers(t *testing.T) {
	for name, tc := range map[string]struct {
		since  func(*others)
		later  time.Duration
		writes standing // for writers, or for a mutex
		reads  standing
	}{
		"nobody":                   {func(*others) {}, 0, nobody, nobody},
		"before the silence":       {func(*others) {}, silence - 1, nobody, nobody},
		"silence":                  {func(*others) {}, silence, unknown, unknown},
		"no list":                  {func(o *others) { o.listedAt, o.gate.listedAt = 0, 0 }, 0, unknown, unknown},
		"a list of the queue only": {func(o *others) { o.gate.listedAt = 0 }, 0, nobody, unknown},
		"listed before the proof":  {func(o *others) { o.listedAt-- }, 0, unknown, unknown},
		"no proof":                 {func(o *others) { o.proven = 0 }, 0, unknown, unknown},
		"subscribed to the queue":  {func(o *others) { o.gateIn = false }, 0, nobody, unknown},
		"another server serves":    {func(o *others) { o.moved() }, 0, unknown, unknown},
		"a new subscription":       {func(o *others) { o.subscribed(true) }, 0, unknown, unknown},
		"proven again": {func(o *others) {
			o.moved()
			o.prove(noon, o.epoch)
		}, 0, nobody, nobody},
		"proven by an earlier answer": {func(o *others) {
			epoch := o.epoch
			o.moved()
			o.prove(noon, epoch)
		}, 0, unknown, unknown},
		"a place":                {func(o *others) { o.placeSeen(place(11), 0, noon) }, 0, somebody, somebody},
		"a place of a reader":    {func(o *others) { o.placeSeen(place(11, reads), 0, noon) }, 0, somebody, nobody},
		"a place without a list": {func(o *others) { o.placeSeen(place(11), 0, noon); o.moved() }, 0, somebody, somebody},
		"a place that has gone": {func(o *others) {
			o.placeSeen(place(11), 0, noon)
			o.placeGone(place(11).Key, 12, noon)
		}, 0, nobody, nobody},
		"a place that has ended": {func(o *others) {
			o.placeSeen(place(11), 0, noon.Add(-ttl-record.OverdueSlack))
		}, 0, nobody, nobody},
		"a place that a later list does not show": {func(o *others) {
			o.placeSeen(place(11), 0, noon)
			o.listed(noon.Add(ms))
		}, 2 * ms, nobody, nobody},
		"a place that came during the list": {func(o *others) {
			o.placeSeen(place(11), 0, noon.Add(ms))
			o.listed(noon.Add(ms))
		}, 2 * ms, somebody, somebody},
		"an unreadable record": {func(o *others) { o.placeSeen(place(11, func(e *record.Entry) { e.Unreadable = true }), 0, noon) }, 0, nobody, nobody},
		"a record that is no place": {func(o *others) {
			o.placeSeen(place(11, func(e *record.Entry) { e.Status = record.StatusHeld }), 0, noon)
		}, 0, nobody, nobody},
		"a notification overtaken by the tombstone": {func(o *others) {
			o.placeGone(place(11).Key, 12, noon)
			o.placeSeen(place(11), 0, noon)
		}, 0, nobody, nobody},
		"an older list after the tombstone": {func(o *others) {
			o.placeGone(place(11).Key, 12, noon)
			o.placeSeen(place(11), noon.Add(-ms), noon)
		}, 0, nobody, nobody},
		"a list after a forged tombstone": {func(o *others) {
			o.placeGone(place(11).Key, 1<<40, noon)
			o.placeSeen(place(11), noon.Add(ms), noon.Add(2*ms))
		}, 0, somebody, somebody},
		"a gate":                {func(o *others) { o.gateSeen(gate(11), 0, noon) }, 0, nobody, somebody},
		"a gate that has ended": {func(o *others) { o.gateSeen(gate(11), 0, noon.Add(-ttl-record.OverdueSlack)) }, 0, nobody, nobody},
		"an older notification": {func(o *others) {
			o.gateSeen(record.Entry{Record: kvstore.Record{Revision: 12, Deleted: true}}, 0, noon)
			o.gateSeen(gate(11), 0, noon)
		}, 0, nobody, unknown},
		"a tombstone of the gate, which may be forged": {func(o *others) {
			o.gateSeen(record.Entry{Record: kvstore.Record{Revision: 12, Deleted: true}}, 0, noon)
		}, 0, nobody, unknown},
		"a list after a forgery": {func(o *others) { o.gateSeen(gate(1<<40), 0, noon); o.gateSeen(record.Entry{}, noon.Add(ms), noon) }, 2 * ms, nobody, nobody},
	} {
		t.Run(name, func(t *testing.T) {
			o := seen(noon)
			tc.since(o)
			now := noon.Add(tc.later)
			require.Equal(t, tc.writes, o.standing(false, now), "for a writer")
			require.Equal(t, tc.reads, o.standing(true, now), "for a reader")
		})
	}
	var none *others
	require.Equal(t, unknown, none.standing(false, noon))
}

// A goroutine enters an idle lease only if its client has listed the queue within the last 5 s.
func TestOthersQuiet(t *testing.T) {
	for name, tc := range map[string]struct {
		since         func(*others)
		later         time.Duration
		writes, reads bool
	}{
		"listed":                   {func(*others) {}, 0, true, true},
		"before 5 s":               {func(*others) {}, idleSilence - 1, true, true},
		"after 5 s":                {func(*others) {}, idleSilence, false, false},
		"a list of the queue only": {func(o *others) { o.gate.listedAt = 0 }, 0, true, false},
		"another server serves":    {func(o *others) { o.moved() }, 0, false, false},
		"listed before the proof":  {func(o *others) { o.proven++ }, 0, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			o := seen(noon)
			tc.since(o)
			require.Equal(t, tc.writes, o.quiet(false, noon.Add(tc.later)))
			require.Equal(t, tc.reads, o.quiet(true, noon.Add(tc.later)))
		})
	}
}

// A cohort treats the other cohorts of its lock like other clients. Readers let other readers pass.
func TestStanding(t *testing.T) {
	for name, tc := range map[string]struct {
		of, other record.Mode
		has       func(*cohort)
		want      standing
	}{
		"none waits":                {record.Exclusive, record.Exclusive, func(*cohort) {}, nobody},
		"one waits":                 {record.Exclusive, record.Exclusive, func(k *cohort) { k.asks(1) }, somebody},
		"readers beside readers":    {record.Shared, record.Shared, func(k *cohort) { k.asks(1) }, nobody},
		"readers beside a writer":   {record.Exclusive, record.Shared, func(k *cohort) { k.asks(1) }, somebody},
		"a writer beside readers":   {record.Shared, record.Exclusive, func(k *cohort) { k.asks(1) }, somebody},
		"a founder that writes":     {record.Shared, record.Exclusive, func(k *cohort) { k.founder = true }, somebody},
		"a writer inside":           {record.Shared, record.Exclusive, func(k *cohort) { k.tenures = append(k.tenures, &tenure{}) }, somebody},
		"a founder of a mutex":      {record.Exclusive, record.Exclusive, func(k *cohort) { k.founder = true }, nobody},
		"those of the cohort alone": {record.Exclusive, record.Exclusive, func(k *cohort) { k.lock.cohorts[0].asks(2) }, nobody},
	} {
		t.Run(name, func(t *testing.T) {
			l := &lock{others: seen(noon)}
			k := l.open(group{mode: tc.of}, false)
			tc.has(l.open(group{mode: tc.other}, false))
			require.Equal(t, tc.want, l.standing(k, noon))
		})
	}
}

// The first goroutine gets the lease if the lease is owed to it, during the turn, or while nobody else waits.
func TestJudge(t *testing.T) {
	place := func(o *others) { o.placeSeen(place(11), 0, noon) }
	silent := func(o *others) { o.moved() }
	for name, tc := range map[string]struct {
		mode   record.Mode
		mark   uint64 // 0: none
		knows  func(*others)
		later  time.Duration // after the grant; the turn lasts for 1 ms
		joins  bool          // a reader that has just arrived
		served verdict
	}{
		"nobody else waits":            {served: handOn, later: ms},
		"owed":                         {mark: 5, knows: place, later: ms, served: handOn},
		"not owed":                     {mark: 4, knows: place, later: ms, served: release},
		"no mark":                      {knows: place, later: ms, served: release},
		"in the turn":                  {mark: 4, knows: place, later: ms - 1, served: handOn},
		"in the turn, not known":       {knows: silent, later: ms - 1, served: handOn},
		"not known":                    {knows: silent, later: ms, served: askFirst},
		"readers, nobody else waits":   {mode: record.Shared, served: handOn, joins: true},
		"readers, in the turn":         {mode: record.Shared, knows: place, served: release},
		"readers, not known":           {mode: record.Shared, knows: silent, served: askFirst},
		"readers, owed":                {mode: record.Shared, mark: 5, knows: place, served: handOn},
		"a reader comes, others owed":  {mode: record.Shared, mark: 5, knows: place, joins: true, served: release},
		"a reader comes, not known":    {mode: record.Shared, mark: 5, knows: silent, joins: true, served: askFirst},
		"readers, a gate is in place":  {mode: record.Shared, knows: func(o *others) { o.gateSeen(gate(11), 0, noon) }, served: release},
		"a mutex, whose gate is known": {knows: func(o *others) { o.gateSeen(gate(11), 0, noon) }, later: ms, served: handOn},
	} {
		t.Run(name, func(t *testing.T) {
			l := &lock{c: &Client{turn: ms}, others: seen(noon)}
			k := l.open(group{mode: tc.mode}, false)
			tn := k.hold(nil, noon)
			if tn.marked, tn.mark = tc.mark != 0, tc.mark; tc.knows != nil {
				tc.knows(l.others)
			}
			h := &holder{c: k.lock.c, cohort: k, number: 5}
			if tc.joins {
				h = nil
			}
			require.Equal(t, tc.served, k.judge(tn, h, noon.Add(tc.later)))
		})
	}
}

// A lease's turn begins with its grant. A negative turn means no turn at all.
func TestTurnBounded(t *testing.T) {
	for turn, lasts := range map[time.Duration]time.Duration{ms: ms, 0: 0, -1: 0} {
		k := (&lock{c: &Client{turn: turn}}).open(group{}, false)
		require.Equal(t, noon.Add(lasts), k.hold(nil, noon).turnEnds)
	}
}

// A lease that was claimed without a ticket is marked when the first waiter outside the cohort becomes known.
// Goroutines that asked while the client could not tell whether anyone else waited may have come after that waiter.
func TestMarked(t *testing.T) {
	l := &lock{c: &Client{}, others: seen(noon)}
	k := l.open(group{}, false)
	tn := k.hold(nil, noon)
	k.asks(2)
	l.changed(noon) // after a list that shows nobody
	k.asks(1)
	require.False(t, tn.marked)
	l.others.placeSeen(place(11), 0, noon)
	l.changed(noon)
	require.True(t, tn.marked)
	require.EqualValues(t, 2, tn.mark, "nobody is known to have come after the third one")

	k.asks(2)
	l.others.placeGone(place(11).Key, 12, noon)
	l.changed(noon)
	l.others.placeSeen(place(13), 0, noon)
	l.changed(noon)
	require.EqualValues(t, 2, tn.mark, "set once")
}

// A holder is notified when other goroutines of its client, or other clients, wait for what it holds.
func TestContended(t *testing.T) {
	for name, tc := range map[string]struct {
		mode      record.Mode
		has       func(*cohort)
		contended bool
	}{
		"nobody":                 {record.Exclusive, func(*cohort) {}, false},
		"a goroutine":            {record.Exclusive, func(k *cohort) { k.asks(1) }, true},
		"another client":         {record.Exclusive, func(k *cohort) { k.lock.others.placeSeen(place(11), 0, noon) }, true},
		"not known":              {record.Exclusive, func(k *cohort) { k.lock.others.moved() }, false},
		"a reader behind a list": {record.Shared, func(k *cohort) { k.asks(1) }, false},
		"a reader elsewhere":     {record.Shared, func(k *cohort) { k.lock.others.placeSeen(place(11, reads), 0, noon) }, false},
		"a writer":               {record.Shared, func(k *cohort) { k.lock.others.placeSeen(place(11), 0, noon) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			l := &lock{c: &Client{}, others: seen(noon)}
			k := l.open(group{mode: tc.mode}, false)
			tc.has(k)
			require.Equal(t, tc.contended, k.contended(noon))
			h := &holder{cohort: k, hint: make(chan struct{})}
			k.hinted = append(k.hinted, h)
			l.contend(noon)
			select {
			case <-h.hint:
				require.True(t, tc.contended)
			default:
				require.False(t, tc.contended)
			}
		})
	}
}

// A lease continues after a holder leaves if others are still inside, or if the first waiting goroutine may have it.
func TestGoesOn(t *testing.T) {
	for name, tc := range map[string]struct {
		has    func(*tenure)
		goesOn bool
	}{
		"the last one":             {func(*tenure) {}, false},
		"another one is inside":    {func(tn *tenure) { tn.inside++ }, true},
		"broken, another inside":   {func(tn *tenure) { tn.inside++; tn.over = true }, true},
		"broken":                   {func(tn *tenure) { tn.over = true; tn.cohort.asks(1) }, false},
		"one waits":                {func(tn *tenure) { tn.cohort.asks(1) }, true},
		"one waits, not known":     {func(tn *tenure) { tn.cohort.asks(1); tn.cohort.lock.others = nil }, true},
		"one waits, behind others": {func(tn *tenure) { tn.cohort.asks(1); tn.cohort.lock.others.placeSeen(place(11), 0, noon) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			k := (&lock{c: &Client{}, others: seen(noon)}).open(group{}, false)
			tn := k.hold(nil, noon)
			tn.inside = 1
			tc.has(tn)
			require.Equal(t, tc.goesOn, tn.goesOn(&holder{cohort: k, tenure: tn}, noon))
		})
	}
}

// Goroutines are owed a lease if they were in the FIFO when its ticket was sent. If the lease comes from an earlier
// claim whose reply was lost, it is owed only to those in the FIFO when the seeker began.
func TestSeekerGranted(t *testing.T) {
	const ticket = 20
	for name, tc := range map[string]struct {
		lease uint64
		mark  uint64
	}{
		"at the place":          {ticket + 1, 3},
		"by an earlier attempt": {ticket - 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := inMemory(t, 0)
			k := newCohort(c, record.Exclusive)
			all := k.asks(4)
			of := granted(c, ticket)
			of.Key, of.Body.Status = "wait.x.me", record.StatusWaiting
			s := &seeker{cohort: k, asked: 1, mark: 3, place: c.s.Queue(of, func() {})}
			k.seeker = s
			l := c.s.Hold(granted(c, tc.lease), time.Time{})
			require.True(t, s.granted(l))
			require.Equal(t, k.tenures[0], all[0].tenure, "the first one is admitted")
			require.True(t, all[1].waits)
			require.Equal(t, tc.mark, k.tenures[0].mark)
			require.Nil(t, k.seeker)
		})
	}
}

// sending is a store that calls fn before each write.
type sending struct {
	kvstore.KV
	fn func(kvstore.Write)
}

func (s *sending) Send(w kvstore.Write, done func(kvstore.Answer)) (func(), error) {
	s.fn(w)
	return s.KV.Send(w, done)
}

// A lease that is granted after its last waiter has left is deleted immediately.
func TestSeekerUnwanted(t *testing.T) {
	kv := &sending{}
	c, now := inMemory(t, 0, func(inner kvstore.KV) kvstore.KV { kv.KV = inner; return kv })
	a, err := c.calls.New(t.Context(), call.Request{Kind: record.Mutex, Name: "x"})
	require.NoError(t, err)
	k := newCohort(c, record.Exclusive)
	kv.fn = func(w kvstore.Write) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if k.fifo.n > 0 { // when the claim is sent
			k.fifo.remove(k.fifo.first)
			k.seeker = nil // not canceled, because the reply comes first
		}
	}
	c.mu.Lock()
	k.asks(1)[0].a = a
	k.seek(clock.Instant(now.Load()))
	s := k.seeker
	c.unlock()
	<-s.gone
	require.Empty(t, k.tenures)
	require.Zero(t, c.s.Held())
}

// hooked is a user's context that calls fn when a context derived from it ends.
type hooked struct {
	context.Context
	fn *func()
}

func (h hooked) Value(key any) any {
	if *h.fn != nil {
		(*h.fn)()
	}
	return h.Context.Value(key)
}

// The turn may end while a holder leaves. The lease must then be released rather than left to expire.
func TestReleasedAfterTheTurn(t *testing.T) {
	c, now := inMemory(t, ms)
	k := newCohort(c, record.Exclusive)
	l := c.s.Hold(granted(c, 1), time.Time{})
	tn := k.hold(l, noon)
	h := &holder{c: c, cohort: k}
	tn.admit(h)
	var ends func()
	admitted, err := l.Admit(&h.Holder, session.Admission{Parent: hooked{t.Context(), &ends}})
	require.NoError(t, err)
	require.True(t, admitted)
	k.lock.others = seen(noon)
	k.lock.others.placeSeen(place(11), 0, noon)
	waits := k.asks(1)[0]
	k.seeker = &seeker{cohort: k} // so that no other seeker starts
	ends = func() { now.Store(int64(noon.Add(ms))) }
	_ = h.Release(t.Context()) // the bucket does not contain the record
	require.Equal(t, noon.Add(ms), c.b.Instant())
	require.True(t, waits.waits, "behind the others")
	require.Empty(t, k.tenures)
	require.True(t, l.Ended(c.b.Instant()))
	k.fifo.remove(waits)
}

// An idle lease is given up when another client queues, or when a goroutine that it cannot serve asks for the lock.
// After that, nobody enters it.
func TestIdleRecalled(t *testing.T) {
	for name, tc := range map[string]struct {
		mode     record.Mode
		happens  func(*lock)
		recalled bool
	}{
		"nothing":               {record.Exclusive, func(l *lock) { l.changed(noon) }, false},
		"a place":               {record.Exclusive, func(l *lock) { l.others.placeSeen(place(11), 0, noon); l.changed(noon) }, true},
		"a reader elsewhere":    {record.Shared, func(l *lock) { l.others.placeSeen(place(11, reads), 0, noon); l.changed(noon) }, false},
		"a gate":                {record.Shared, func(l *lock) { l.others.gateSeen(gate(11), 0, noon); l.changed(noon) }, true},
		"a list without answer": {record.Exclusive, func(l *lock) { l.others.moved(); l.changed(noon) }, false},
		"no notifications":      {record.Exclusive, func(l *lock) { l.silenced() }, true},
		"another TTL":           {record.Exclusive, func(l *lock) { l.recallFor(&holder{c: l.c, cohort: l.open(group{ttl: 1}, false)}) }, true},
		"another reader": {record.Shared, func(l *lock) {
			l.recallFor(&holder{c: l.c, cohort: l.open(group{mode: record.Shared, meta: map[string]string{"a": "b"}}, false)})
		}, false},
		"an own writer": {record.Shared, func(l *lock) { l.recallFor(&holder{c: l.c, cohort: l.open(group{}, false)}) }, true},
		"the same":      {record.Exclusive, func(l *lock) { l.recallFor(&holder{c: l.c, cohort: l.cohorts[0]}) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := inMemory(t, 0)
			k := newCohort(c, tc.mode)
			k.lock.others = seen(noon)
			l := c.s.Hold(granted(c, 1), time.Time{})
			tn := k.hold(l, noon)
			c.idle.add(tn)
			c.mu.Lock()
			tc.happens(k.lock)
			c.unlock()
			require.Equal(t, tc.recalled, l.Ended(noon))
			require.Equal(t, tc.recalled, k.idleTenure() == nil)
			require.Equal(t, tc.recalled, c.idle.n == 0)
		})
	}
}

// A goroutine that enters an idle lease takes it off the idle list, so the lease is not recalled when its idle time
// ends.
func TestIdleIsEntered(t *testing.T) {
	c, now := inMemory(t, ms)
	var tn *tenure
	func() {
		c.mu.Lock()
		defer c.unlock()
		k := newCohort(c, record.Exclusive)
		k.lock.others = seen(noon)
		tn = k.hold(c.s.Hold(granted(c, 7), time.Time{}), noon)
		tn.idles(time.Second, noon)
		require.Equal(t, 1, c.idle.n)
		h := k.asks(1)[0]
		k.serve(tn, nil, noon)
		require.Same(t, tn, h.tenure)
		require.Zero(t, c.idle.n)
	}()
	now.Add(int64(2 * time.Second))
	c.sweep()
	require.False(t, tn.over)
}

// A cohort without a founder, FIFO, seeker or lease is forgotten, and so is a lock without cohorts.
func TestForgotten(t *testing.T) {
	c, _ := inMemory(t, 0)
	req := call.Request{Kind: record.Mutex, Name: "x"}
	held, err := c.Acquire(t.Context(), req)
	require.NoError(t, err)
	req.Once = true
	_, err = c.Acquire(t.Context(), req)
	require.ErrorContains(t, err, "is held")
	require.NoError(t, held.Release(t.Context()))
	require.Empty(t, c.locks)
	require.Empty(t, c.lone)
}

// While nobody else waits, a holder keeps neither a lock nor a cohort in memory. The next goroutine that asks finds
// them as they were.
func TestFold(t *testing.T) {
	c, _ := inMemory(t, ms)
	c.mu.Lock()
	defer c.unlock()
	k := newCohort(c, record.Exclusive)
	tn := k.hold(c.s.Hold(granted(c, 7), time.Time{}), noon)
	h := &holder{c: c, cohort: k}
	admitted, err := tn.lease.Admit(&h.Holder, session.Admission{Parent: t.Context(), Begun: noon})
	require.NoError(t, err)
	require.True(t, admitted)
	tn.admit(h)
	k.asks(1)
	h.fold()
	require.Same(t, k, h.cohort, "somebody waits")
	k.fifo.remove(k.fifo.first)
	h.fold()
	require.Nil(t, h.cohort)
	require.Empty(t, c.locks)
	require.Len(t, c.lone, 1)

	l := c.lockOf(record.KeysOf(record.Mutex, "x"))
	require.Empty(t, c.lone)
	require.Len(t, l.cohorts, 1)
	require.Same(t, l.cohorts[0], h.cohort)
	require.Equal(t, k.group, h.cohort.group)
	require.Equal(t, []*tenure{h.tenure}, h.cohort.tenures)
	require.Equal(t, 1, h.tenure.inside)
	require.Equal(t, tn.turnEnds, h.tenure.turnEnds)
	require.True(t, h.tenure.drained)
}
