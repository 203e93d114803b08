package core

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/record"
)

// listed returns a queue of others followed by the place "me" with ticket 50. A letter is a writer or a waiter for a
// mutex, and a letter after a dash is a reader.
func listed(others ...string) (queue []record.Entry) {
	for i, id := range append(others, "me") {
		e := stored(uint64(10*(i+1)), id, 1, record.StatusWaiting)
		e.Mode = uint8(record.Exclusive)
		if id[0] == '-' {
			e.Mode = uint8(record.Shared)
		}
		e.Key, e.Record.TTL, e.Time = record.WaitPrefix+"l."+id, placeTTL, serverNow
		queue = append(queue, e)
	}
	return queue
}

var serverNow = time.Unix(1000, 0)

// waiterAt returns a waiter "me" with ticket 50 that has begun its wait.
func waiterAt(reads bool, reach Reach) Waiter {
	w := Waiter{ID: "me", Ticket: 50, Reads: reads}
	w.Begin(40, 0)
	w.Reach, w.crowd = reach, reach == Glance
	return w
}

// judged returns a waiter's conclusions from a list.
func judged(w *Waiter, queue []record.Entry, r Read) (Standing, Ahead) {
	before, _, there := w.QueueListed(queue, r.Cut, 0, serverNow)
	if !there {
		panic("the own place has gone")
	}
	return w.Judge(before, r)
}

// TestWaiter checks that a waiter lists the queue and waits for the last place ahead of it that has to go first.
func TestWaiter(t *testing.T) {
	for _, c := range []struct {
		name  string
		reads bool
		reach Reach
		read  Read
		queue []record.Entry
		want  Standing
		pred  string
		head  string
		next  bool
	}{
		{"alone in the queue of one server", false, Start, Read{Alone: true}, listed(), Foremost, "", "", true},
		{"behind a head", false, Start, Read{Alone: true}, listed("A"), Behind, "A", "A", true},
		{"behind two", false, Start, Read{Alone: true}, listed("A", "B"), Behind, "B", "A", true},
		{"a writer waits for readers", false, Start, Read{Alone: true}, listed("A", "-b"), Behind, "-b", "A", true},
		{"a reader passes readers", true, Start, Read{Alone: true}, listed("A", "-b"), Behind, "A", "A", false},
		{"a reader waits for no reader", true, Start, Read{Alone: true}, listed("-a", "-b"), Foremost, "", "", false},
		{"in a part of a long queue", false, Near, Read{From: 15}, listed("A", "B"), Behind, "B", "", true},
		{"of which the part shows no writer", true, Near, Read{From: 15}, listed("-a", "-b"), ListOn, "", "", false},
		{"nor one from there on", true, Near, Read{From: 15}, listed("A", "-b"), ListOn, "", "", false},
		{"the start of a long queue", false, Start, Read{Cut: true}, listed("A", "B"), ListOn, "", "", false},
		{"a part that may lack another place", false, Near, Read{From: 15, Cut: true}, listed("A", "B"), Behind, "B", "", false},
		{"nobody, by one of several servers", false, Start, Read{}, listed(), ListOn, "", "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := waiterAt(c.reads, c.reach)
			s, a := judged(&w, c.queue, c.read)
			require.Equal(t, c.want, s)
			require.Equal(t, c.pred, a.Pred.ID)
			require.Equal(t, c.head, a.Head.ID)
			require.Equal(t, c.next, a.Next)
		})
	}
}

// TestWaiterBegins checks where a waiter starts reading: at the start of the queue, with a part of a queue known to be
// long, or with the record right before its ticket if much has been written since it read the lock.
func TestWaiterBegins(t *testing.T) {
	for _, c := range []struct {
		surveyed uint64
		length   int
		want     Reach
	}{{0, 0, Start}, {90, 0, Start}, {90, shortQueue, Start}, {90, shortQueue + 1, Near}, {100 - shortQueue, 0, Start}, {99 - shortQueue, 3, Glance}, {99 - shortQueue, shortQueue + 1, Glance}} {
		w := Waiter{ID: "me", Ticket: 100}
		w.Begin(c.surveyed, c.length)
		require.Equal(t, c.want, w.Reach, c)
		require.EqualValues(t, 100, w.AsOf)
	}
	from, most := Glance.extent(100)
	require.Equal(t, []any{uint64(98), 2}, []any{from, most})
	from, most = Start.extent(100)
	require.Equal(t, []any{uint64(0), shortQueue + 2}, []any{from, most})
	from, most = Farthest.extent(100)
	require.Equal(t, []any{uint64(1), 256 + 2}, []any{from, most}, "an early ticket")
	from, most = Whole.extent(100)
	require.Equal(t, []any{uint64(0), 0}, []any{from, most})
}

// placed gives a place a ticket, which it keeps when a renewal moves it to revision.
func placed(e record.Entry, ticket, revision uint64) record.Entry {
	e.Token, e.Revision = ticket, revision
	return e
}

// TestWaiterCutOff checks what a waiter concludes from a list that was cut off, which lacks places that were renewed.
// The predecessor's tombstone makes the waiter the first only if no other place can have a ticket between the two.
func TestWaiterCutOff(t *testing.T) {
	q := listed("A", "B", "C")
	for _, c := range []struct {
		name       string
		a, b, c    uint64 // tickets
		renewed    uint64 // the revision of C
		from       uint64
		sure       bool
		kept       []string
		keptUncut  []string
		uncutsSure bool
	}{
		{"tickets without a gap", 47, 48, 49, 49, 46, true, []string{"A", "B", "C"}, []string{"A", "B", "C"}, true},
		{"a gap right before its own", 46, 47, 48, 48, 46, false, nil, []string{"A", "B", "C"}, true},
		{"a gap further back", 40, 48, 49, 49, 40, true, []string{"B", "C"}, []string{"A", "B", "C"}, true},
		{"renewed, without a gap", 47, 48, 49, 51, 46, true, []string{"A", "B", "C"}, []string{"A", "B", "C"}, true},
		{"a ticket from before the part", 30, 48, 49, 49, 46, true, []string{"B", "C"}, []string{"B", "C"}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			queue := []record.Entry{placed(q[0], c.a, max(c.a, c.from)), placed(q[1], c.b, c.b), placed(q[2], c.c, c.renewed), q[3]}
			queue[3] = placed(queue[3], 50, 50)
			for _, cut := range []bool{true, false} {
				w := waiterAt(false, Near)
				s, a := judged(&w, queue, Read{From: c.from, Cut: cut, Alone: true})
				require.Equal(t, Behind, s)
				require.Equal(t, "C", a.Pred.ID)
				want, sure := c.kept, c.sure
				if !cut {
					want, sure = c.keptUncut, c.uncutsSure
				}
				require.Equal(t, sure, a.Sure)
				var kept []string
				for _, e := range w.before {
					kept = append(kept, e.ID)
				}
				require.Equal(t, want, kept)
				if cut { // and if its own place was renewed and lies behind the cut
					hidden := waiterAt(false, Near)
					s, a := judged(&hidden, queue[:3], Read{From: c.from, Cut: true, Alone: true})
					require.Equal(t, []any{Behind, "C", sure}, []any{s, a.Pred.ID, a.Sure})
				}
			}
		})
	}
}

// TestWaiterGlance checks that the place right before the ticket is the predecessor, even if both are readers, which do
// not block each other. Otherwise the waiter reads from further back.
func TestWaiterGlance(t *testing.T) {
	a, b := placed(listed("A")[0], 48, 48), placed(listed("B")[0], 49, 49)
	for _, c := range []struct {
		name  string
		reads bool
		queue []record.Entry
		want  Standing
	}{
		{"two places", false, []record.Entry{a, b}, Behind},
		{"one place", false, []record.Entry{b}, Behind},
		{"a reader before a reader", true, []record.Entry{placed(listed("-b")[0], 49, 49)}, Behind},
		{"an earlier ticket before it", false, []record.Entry{placed(listed("A")[0], 30, 48), b}, Behind},
		{"an earlier ticket that was renewed right before", false, []record.Entry{a, placed(listed("B")[0], 30, 49)}, ListOn},
		{"a gap", false, []record.Entry{a, placed(listed()[0], 50, 50)}, ListOn},
		{"the own place", false, []record.Entry{placed(listed()[0], 50, 50)}, ListOn},
		{"a later one", false, []record.Entry{placed(listed("A")[0], 51, 51)}, ListOn},
		{"nothing", false, nil, ListOn},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := waiterAt(c.reads, Glance)
			queue := slices.Clone(c.queue)
			record.SortByTicket(queue)
			s, ahead := judged(&w, queue, Read{From: 48, Cut: true, Alone: true})
			require.Equal(t, c.want, s)
			if s == ListOn {
				require.Equal(t, Near, w.Reach)
				return
			}
			require.EqualValues(t, 49, ahead.Pred.TokenOrTicket())
			require.True(t, ahead.Sure && ahead.Next)
			// The predecessor has given up, so the waiter reads from further back.
			w.PlaceGone(60)
			before, _, there := w.KnownRead([]record.Entry{placed(listed()[0], 50, 50)}, true, serverNow)
			require.True(t, there)
			s, _ = w.Judge(before, Read{Named: true, Alone: true})
			require.Equal(t, ListOn, s)
			require.Equal(t, Near, w.Reach)
		})
	}
	// The place ahead of the predecessor is gone, so the predecessor may be the head.
	w := waiterAt(false, Glance)
	_, _ = judged(&w, []record.Entry{a, b}, Read{From: 48, Cut: true, Alone: true})
	require.True(t, w.Knows("A") && !w.Knows("me"))
	require.Equal(t, []string{"A", "", ""}, []string{w.Beyond("B").ID, w.Beyond("A").ID, w.Beyond("X").ID})
	w.Seek(1, time.Second)
	s, _ := judged(&w, nil, Read{Cut: true, Alone: true})
	require.Equal(t, ListOn, s, "the queue is long")
	before, _, _ := w.KnownRead([]record.Entry{b, placed(listed()[0], 50, 50)}, true, serverNow)
	s, _ = w.Judge(before, Read{Named: true, Alone: true})
	require.Equal(t, ListOn, s)
	require.Equal(t, Whole, w.Reach)
}

// tombstone returns the record that a place leaves.
func tombstone(e record.Entry, s record.Status) record.Entry {
	e.Deleted, e.Status = true, s
	return e
}

// TestWaiterRecalls checks that once its predecessor is gone, a waiter reads what is left of the places ahead of it.
// The tombstone of a place that was granted with nobody ahead of it shows that all places before it are over. Without
// such proof, or a list of the whole queue, it is not enough for the known places to be absent.
func TestWaiterRecalls(t *testing.T) {
	q := listed("A", "B", "-c", "D")
	begunBy := func(reads bool, from uint64, reach Reach, alone bool) Waiter {
		w := waiterAt(reads, reach)
		s, a := judged(&w, q, Read{From: from, Alone: alone})
		require.Equal(t, Behind, s)
		require.True(t, a.Sure)
		w.PlaceGone(60)
		return w
	}
	begun := func(reads bool, from uint64, reach Reach) Waiter { return begunBy(reads, from, reach, true) }
	for _, c := range []struct {
		name  string
		w     Waiter
		found []record.Entry
		want  Standing
		pred  string
		reach Reach
		next  bool
	}{
		{"one is left", begun(false, 15, Near), []record.Entry{q[1], q[4]}, Behind, "B", Whole, true},
		{"a reader is left, for a reader", begun(true, 15, Near), []record.Entry{q[2], q[4]}, ListOn, "", Whole, false},
		{"nobody, of a part", begun(false, 15, Near), []record.Entry{q[4]}, ListOn, "", Whole, false},
		{"nobody, of the whole queue", begun(false, 0, Whole), []record.Entry{q[4]}, Foremost, "", Whole, true},
		{"the same, by one of several servers", begunBy(false, 0, Whole, false), []record.Entry{q[4]}, ListOn, "", Named, false},
		{"one was granted as the first", begun(false, 15, Near), []record.Entry{tombstone(q[3], record.StatusGranted), q[4]}, Foremost, "", Whole, true},
		{"one was granted out of turn", begun(false, 15, Near), []record.Entry{tombstone(q[3], record.StatusPassed), q[4]}, ListOn, "", Whole, false},
		{"the key of one is another's", begun(false, 15, Near), []record.Entry{stored(70, "X", 1, record.StatusWaiting), q[4]}, ListOn, "", Whole, false},
		{"a reader waits behind the granted one", begun(true, 15, Near), []record.Entry{tombstone(q[1], record.StatusGranted), q[2], q[4]}, Foremost, "", Whole, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			before, _, there := c.w.KnownRead(c.found, true, serverNow)
			require.True(t, there)
			s, a := c.w.Judge(before, Read{Named: true, Alone: true})
			require.Equal(t, c.want, s)
			require.Equal(t, c.pred, a.Pred.ID)
			require.Equal(t, c.reach, c.w.Reach)
			require.Equal(t, c.next, a.Next)
		})
	}
	w := begun(false, 15, Near)
	_, _, there := w.KnownRead(q[:4], true, serverNow)
	require.False(t, there, "the own place has gone")
}

// TestWaiterSeeks checks that a waiter that does not know the head lists the queue, which may be short. If it is long,
// the waiter lists all places only if few of those it knows are left.
func TestWaiterSeeks(t *testing.T) {
	q := listed("A", "B", "C", "D")
	begun := func() Waiter {
		w := waiterAt(false, Near)
		_, _ = judged(&w, q, Read{From: 5, Alone: true})
		require.False(t, w.Lists())
		w.Seek(3, time.Second)
		require.EqualValues(t, 3+time.Second, w.Seeks())
		require.True(t, w.Lists())
		_, most, _ := w.Extent()
		require.Equal(t, shortQueue+2, most)
		return w
	}
	w := begun()
	s, a := judged(&w, q, Read{Alone: true})
	require.Equal(t, Behind, s)
	require.Equal(t, "A", a.Head.ID, "a short queue")
	require.False(t, w.Lists())
	for left, want := range map[int]Standing{4: Behind, 3: Behind, 2: ListOn, 1: ListOn} {
		w := begun()
		s, _ := judged(&w, q[:1], Read{Cut: true, Alone: true})
		require.Equal(t, ListOn, s)
		require.False(t, w.Lists(), "it reads what it knows")
		before, _, _ := w.KnownRead(q[4-left:], true, serverNow)
		s, a := w.Judge(before, Read{Named: true, Alone: true})
		require.Equal(t, want, s, left)
		if want == ListOn {
			require.Equal(t, Whole, w.Reach)
			s, a = judged(&w, q[4-left:], Read{Alone: true})
			require.Equal(t, Behind, s)
			require.Equal(t, q[4-left].ID, a.Head.ID)
		}
		require.Equal(t, "D", a.Pred.ID)
	}
}

// TestWaiterMissing checks that a place missing from a list is looked up at the leader if there is no tombstone either,
// because one of several servers may lack a place that was renewed. A claim that was stored again has another place.
func TestWaiterMissing(t *testing.T) {
	q := listed("A", "B", "C")
	begun := func() Waiter {
		w := waiterAt(false, Near)
		_, _ = judged(&w, q, Read{From: 5})
		return w
	}
	w := begun()
	before, _, _ := w.KnownRead([]record.Entry{q[0], tombstone(q[2], record.StatusGone), q[3]}, false, serverNow)
	s, _ := w.Judge(before, Read{Named: true})
	require.Equal(t, ListOn, s)
	require.Equal(t, Named, w.Reach)
	w = begun()
	before, _, _ = w.KnownRead([]record.Entry{q[0], tombstone(q[1], record.StatusGone), tombstone(q[2], record.StatusGone), q[3]}, false, serverNow)
	s, a := w.Judge(before, Read{Named: true})
	require.Equal(t, Behind, s)
	require.Equal(t, "A", a.Pred.ID)
	w = begun()
	before, _, _ = w.KnownRead([]record.Entry{q[0], q[1], placed(q[2], 80, 80), q[3]}, true, serverNow)
	_, a = w.Judge(before, Read{Named: true, Alone: true})
	require.Equal(t, "B", a.Pred.ID)
}

// TestWaiterOfReplica checks that a waiter concludes that nobody is ahead of it only from a list that lacks no live
// record.
func TestWaiterOfReplica(t *testing.T) {
	w := waiterAt(false, Start)
	before, _, _ := w.QueueListed(listed(), false, 7, serverNow)
	s, _ := w.Judge(before, Read{})
	require.Equal(t, ListOn, s)
	require.Equal(t, Named, w.Reach)
	before, _, _ = w.QueueListed(listed(), false, 0, serverNow) // without the lock alongside
	s, _ = w.Judge(before, Read{})
	require.Equal(t, Foremost, s)
	require.EqualValues(t, 7, w.Vacant, "the tombstone that the list before has shown")
}

// TestWaiterInParts checks that each list that is too short makes the next one reach further back.
func TestWaiterInParts(t *testing.T) {
	w := waiterAt(false, Near)
	for _, next := range []Reach{Far, Farther, Farthest, Whole} {
		s, _ := judged(&w, listed(), Read{From: 45, Alone: true})
		require.Equal(t, ListOn, s)
		require.Equal(t, next, w.Reach)
	}
	before, _, _ := w.QueueListed(listed("A"), false, 9, serverNow)
	s, a := w.Judge(before, Read{Alone: true})
	require.Equal(t, Behind, s)
	require.Equal(t, "A", a.Head.ID)
	require.Zero(t, w.Vacant, "once the predecessor has gone, the lock may be another's")
}

// TestWaiterInCrowd checks that a waiter that queued in a crowd reads single records, further and further back from its
// ticket. It lists the start of the queue late, and only if the queue may be short. It follows the first place it
// finds, whatever that place waits for, and reads single records again once that place is gone.
func TestWaiterInCrowd(t *testing.T) {
	for _, c := range []struct {
		length int
		want   []Reach
	}{
		{0, []Reach{Glance, Near, Far, Start, Farther, Farthest, Whole}},
		{shortQueue + 1, []Reach{Glance, Near, Far, Farther, Farthest, Whole}},
	} {
		w := Waiter{ID: "me", Ticket: 50, Reads: true}
		w.Begin(1, c.length)
		for _, reach := range c.want[:len(c.want)-1] {
			require.Equal(t, reach, w.Reach)
			from, most, singly := w.Extent()
			require.Equal(t, reach != Start, singly)
			require.True(t, !singly || most <= crowdReads)
			s, _ := judged(&w, listed(), Read{From: from, Cut: true, Alone: true})
			require.Equal(t, ListOn, s)
		}
		require.Equal(t, Whole, w.Reach)
	}
	w := Waiter{ID: "me", Ticket: 50, Reads: true}
	w.Begin(1, 0)
	w.Reach = Far
	s, a := judged(&w, listed("A", "B", "C", "-d")[2:], Read{From: 34, Cut: true, Alone: true})
	require.Equal(t, Behind, s)
	require.Equal(t, "-d", a.Pred.ID, "a reader before a reader")
	require.False(t, a.Sure || a.Next, "others may be between")
	require.Empty(t, w.Known())
	w.PlaceGone(60)
	require.Equal(t, Near, w.Reach)
	w.Reach = Whole
	w.PlaceGone(61)
	require.Equal(t, Whole, w.Reach)
}

// TestWaiterGone checks that a waiter's place has ended if a list that covers its ticket lacks the place.
func TestWaiterGone(t *testing.T) {
	w := waiterAt(false, Start)
	w.ID = "you"
	_, _, there := w.QueueListed(listed("A"), false, 0, serverNow)
	require.False(t, there)
}

// TestWaiterBehindTheDead checks that a waiter deletes the overdue places right ahead of its own. The overdue places
// further ahead are left to the waiters behind them.
func TestWaiterBehindTheDead(t *testing.T) {
	q := listed("A", "B", "C", "D")
	for _, i := range []int{0, 2, 3} {
		q[i].Time = serverNow.Add(-time.Hour)
	}
	w := Waiter{ID: "me", Ticket: 50}
	before, over, _ := w.QueueListed(q, false, 0, serverNow)
	require.Len(t, before, 4)
	require.Equal(t, 2, over)
}

// TestWaiterAsOf checks that the next list contains the revision that showed the predecessor gone.
func TestWaiterAsOf(t *testing.T) {
	w := Waiter{ID: "me", Ticket: 7}
	w.Begin(0, 0)
	w.PlaceGone(0)
	require.EqualValues(t, 7, w.AsOf)
	w.PlaceGone(12)
	w.PlaceGone(0)
	require.EqualValues(t, 12, w.AsOf)
}

// TestPlaces checks what a waiter remembers about the places it has had, and what their tombstones say.
func TestPlaces(t *testing.T) {
	var p Places
	has := func(o Outcome, gone, first bool, left record.Status, pause int, want Places) {
		t.Helper()
		s, n := p.PlaceEnded(o, gone, first)
		require.Equal(t, left, s)
		require.Equal(t, pause, n)
		require.Equal(t, want, p)
	}
	has(Free, true, false, record.StatusGone, 0, Places{Again: true}) // its TTL has ended
	p.PlaceBegun()
	has(NoRoom, false, true, record.StatusGone, 1, Places{Again: true, Returns: true, full: 1})
	p.PlaceBegun()
	has(NoRoom, false, true, record.StatusGone, 2, Places{Again: true, Returns: true, full: 2})
	p.PlaceBegun()
	has(Ended, false, false, record.StatusGone, 0, Places{full: 2})
	has(Granted, false, false, record.StatusPassed, 0, Places{full: 2})
	has(Granted, false, true, record.StatusGranted, 0, Places{full: 2})
}
