package history

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/record"
)

// member is a goroutine of a cohort, with the times at which it asks, is granted the lock, and
// unlocks.
type member struct{ asks, from, until float64 }

// serves has a client hold a mutex for several goroutines, one after the other. The last
// one releases it.
func (b *story) serves(client string, revision uint64, members ...member) (list []*lease) {
	first := members[0]
	l := b.holds(client, mutex, false, revision, first.from, members[len(members)-1].until)
	l.take.Call, l.take.Return = b.moment(first.asks), b.moment(first.from)
	l.hold.Asked, l.hold.From = l.take.Call, l.take.Return
	l.leave.Call, l.leave.Return = b.moment(first.until), b.moment(first.until)
	l.hold.Unlock, l.hold.Unlocked = l.leave.Call, l.leave.Return
	list = append(list, l)
	for i, m := range members[1:] {
		take := b.op(client, mutex, Lock, m.asks, m.from, OK)
		take.Token, take.ID, take.Bounded = record.Token(revision, i+1), fmt.Sprint(l.hold.ID, ".", i+2), true
		h := &Hold{
			Client: client, Lock: mutex, ID: take.ID, Token: take.Token, Asked: take.Call, From: take.Return,
			Until: l.hold.Until, Released: true,
		}
		leave := b.op(client, mutex, Unlock, m.until, m.until, OK)
		h.Unlock, h.Unlocked = leave.Call, leave.Return
		b.Holds = append(b.Holds, h)
		list = append(list, &lease{take: take, leave: leave, hold: h, key: l.key})
	}
	for i := range b.Stream {
		if e := &b.Stream[i]; e.ID == l.hold.ID && e.Deleted {
			e.Token, e.Grants = list[len(list)-1].hold.Token, uint64(len(list))
		}
	}
	return list
}

// stranger gives client a one lease for three goroutines from 1 on, the last of which asks
// later. Client b queues behind the first one.
func stranger(b *story, queues, asks, from float64) {
	b.serves("a", 10, member{1, 1, 2}, member{1, 2, from}, member{asks, from, from + 1})
	b.queues(b.holds("b", mutex, false, 30, from+1, from+2).take, 11, queues, from+1)
}

// idle gives client a one lease, which lingers from 1 on and whose last goroutine asks later.
// Client b queues at 1.5.
func (b *story) idle(asks float64) {
	b.serves("a", 10, member{0, 0, 1}, member{asks, asks, asks + 1})
	b.queues(b.holds("b", mutex, false, 20, asks+1, asks+2).take, 12, 1.5, asks+1)
	for i := range b.Stream {
		if e := &b.Stream[i]; !e.Deleted {
			e.TTL = sec(20)
		}
	}
}

// readers has a client read for two goroutines behind a single join, from 1 to 5. The second
// one asks at the given time.
func (b *story) readers(asks float64) {
	l := b.holds("a", gate, true, 10, 1, 5)
	take := b.op("a", gate, Lock, asks, asks, OK)
	take.Shared, take.Token, take.ID, take.Bounded = true, l.take.Token, l.take.ID+".2", true
	h := *l.hold
	h.ID, h.Asked, h.From = take.ID, take.Call, take.Return
	leave := b.op("a", gate, Unlock, 5, 5, OK)
	h.Unlock, h.Unlocked = leave.Call, leave.Return
	b.Holds = append(b.Holds, &h)
}

// inherits has client a join at 1, from a place of 0.1. A second reader of a asks at 2 and
// reads from 3 on. Client b has queued to write at 0.5.
func inherits(b *story) {
	b.Notice = sec(0.5)
	b.readers(3)
	second := b.Ops[len(b.Ops)-2]
	second.Call = b.moment(2)
	b.Holds[1].Asked = second.Call
	b.queues(b.Ops[0], 5, 0.1, 1)
	b.queues(b.holds("b", gate, false, 30, 5, 6).take, 7, 0.5, 5)
}

// lateCaller gives client a one place at 1, whose goroutine gives up at 3, and client b one at
// 1.5. Another goroutine of a asks at 2.5 and is granted the lock through a's place.
func lateCaller(b *story) {
	b.holds("z", mutex, false, 5, 0.5, 4)
	l := b.holds("a", mutex, false, 20, 4, 5)
	b.queues(l.take, 7, 1, 4)
	first := *l.take
	first.Outcome, first.Return, first.ID, first.Token = GaveUp, b.moment(3), "", 0
	b.Ops = append(b.Ops, &first)
	l.take.Call = b.moment(2.5)
	l.hold.Asked = l.take.Call
	b.queues(b.holds("b", mutex, false, 40, 5, 6).take, 8, 1.5, 5)
}

// leases gives client a two leases. The goroutine that asks at 2 is granted the second one,
// after the goroutine that asks at 4.
func leases(b *story, cohort string) {
	b.holds("a", mutex, false, 10, 0, 3)
	for i, asks := range []float64{4, 2} {
		l := b.holds("a", mutex, false, uint64(20+10*i), float64(5+i), float64(6+i))
		l.take.Call, l.take.Cohort, l.hold.Cohort = b.moment(asks), cohort, cohort
		l.hold.Asked = l.take.Call
	}
}

// TestCohortCheck judges what clients grant on their own.
func TestCohortCheck(t *testing.T) {
	for _, c := range []struct {
		name  string
		want  []int
		write func(b *story)
	}{
		{"one after the other", nil, func(b *story) {
			b.serves("a", 10, member{0, 0, 1}, member{0, 1, 2}, member{0.5, 2.5, 3})
			b.holds("b", mutex, false, 20, 3, 4)
		}},
		{"two inside", []int{1, 4}, func(b *story) {
			b.serves("a", 10, member{0, 0, 2}, member{0, 1, 3})
		}},
		{"the next client too early", []int{1, 4}, func(b *story) {
			b.serves("a", 10, member{0, 0, 1}, member{0, 1, 3})
			b.holds("b", mutex, false, 20, 2, 3)
		}},
		{"an idle lease, used before a place could be known", nil, func(b *story) { b.idle(6) }},
		{"an idle lease, used behind a place", []int{5}, func(b *story) { b.idle(8) }},
		{"an idle lease, used behind a place, and nothing fails", []int{5}, func(b *story) {
			b.idle(6)
			b.Calm, b.Notice = true, sec(0.5)
		}},
		{"a token twice", []int{2, 4}, func(b *story) {
			b.serves("a", 10, member{0, 0, 1}, member{0, 1, 2})[1].hold.Token--
		}},
		{"tokens against the order", []int{2, 4}, func(b *story) {
			l := b.serves("a", 10, member{0, 0, 1}, member{0, 1, 2}, member{0, 2, 3})
			l[1].hold.Token, l[2].hold.Token = l[2].hold.Token, l[1].hold.Token
		}},
		{"more grants than a revision has", []int{2}, func(b *story) {
			b.serves("a", 10, member{0, 0, 1}, member{0, 1, 2})[1].hold.Token += record.GrantsPerRevision
		}},
		{"a token of a renewal", nil, func(b *story) {
			l := b.serves("a", 10, member{0, 0, 1}, member{0, 1, 2})
			b.put(mutex, l[0].hold.ID, 12, 0.5).Token = l[0].hold.Token
			l[1].hold.Token = record.Token(12, 0)
			b.Stream[1].Token = l[1].hold.Token
		}},
		{"a token of a later renewal", []int{2}, func(b *story) {
			l := b.serves("a", 10, member{0, 0, 1}, member{0, 1, 2})
			b.put(mutex, l[0].hold.ID, 12, 1.5).Token = l[0].hold.Token
			l[1].hold.Token = record.Token(12, 0)
		}},
		{"a token of a renewal without an answer", []int{2}, func(b *story) {
			b.serves("a", 10, member{0, 0, 1}, member{0, 1, 2})[1].hold.Unknown = true
		}},
		{"a record of another token", []int{2}, func(b *story) {
			l := b.serves("a", 10, member{0, 0, 1}, member{0, 1, 2})
			b.put(mutex, l[0].hold.ID, 12, 0.5).Token = l[1].hold.Token
		}},
		{"a record of too many grants", []int{2}, func(b *story) {
			l := b.serves("a", 10, member{0, 0, 1}, member{0, 1, 2})
			e := b.put(mutex, l[0].hold.ID, 12, 0.5)
			e.Token, e.Grants = l[0].hold.Token, 2
		}},
		{"a tombstone of too few grants", []int{2}, func(b *story) {
			b.serves("a", 10, member{0, 0, 1}, member{0, 1, 2})
			b.Stream[1].Grants = 0
		}},
		{"ended by the handle of another", []int{1}, func(b *story) {
			h := b.serves("a", 10, member{0, 0, 1}, member{0, 1, 2})[1].hold
			h.Ended, h.Left = b.moment(1.5), true
		}},
		{"refused between two holders", nil, func(b *story) {
			b.serves("a", 10, member{0, 0, 1}, member{0, 2, 3})
			b.op("b", mutex, Try, 1.4, 1.5, Refused).Token = tokenOf(10)
		}},
		{"refused by the holder before", nil, func(b *story) {
			b.serves("a", 10, member{0, 0, 1}, member{0, 1, 3})
			b.op("b", mutex, Try, 2, 2.1, Refused).Token = tokenOf(10)
		}},
		{"refused by a lease that was over", []int{4}, func(b *story) {
			b.serves("a", 10, member{0, 0, 1}, member{0, 1, 2})
			b.op("b", mutex, Try, 2.4, 2.5, Refused).Token = record.Token(10, 1)
		}},
		{"a resource that a member has used", nil, func(b *story) {
			l := b.serves("a", 10, member{0, 0, 1}, member{0, 1, 2})
			b.uses(l[1], 1.5, OK)
			b.uses(l[0], 1.7, Refused)
		}},
		{"called before a stranger queued", nil, func(b *story) { stranger(b, 2, 1.5, 5) }},
		{"called before a stranger could be known", nil, func(b *story) { stranger(b, 2, 3.2, 5) }},
		{"called after a stranger had queued", []int{5}, func(b *story) { stranger(b, 2, 4, 5) }},
		{"called after the forged end of a place", nil, func(b *story) {
			stranger(b, 2, 4, 5)
			b.Disturbances = append(b.Disturbances, Disturbance{Client: "a", What: PlaceForged, From: sec(3), Until: sec(3)})
		}},
		{"called in the turn", nil, func(b *story) {
			b.Turn = sec(4.5)
			stranger(b, 2, 4, 5)
		}},
		{"called in the turn, served after it", []int{5}, func(b *story) {
			b.Turn = sec(3.5)
			stranger(b, 2, 4, 5)
		}},
		{"past a stranger that had given up", nil, func(b *story) {
			stranger(b, 2, 4, 5)
			op := b.Ops[len(b.Ops)-2] // its place is deleted late
			op.Outcome, op.Return = GaveUp, b.moment(4.5)
			b.Holds = slices.DeleteFunc(b.Holds, func(h *Hold) bool { return h.ID == op.ID })
			b.Ops = slices.DeleteFunc(b.Ops, func(o *Op) bool { return o.Client == "b" && o.Do == Unlock })
		}},
		{"granted in the order of the calls", nil, func(b *story) {
			b.Calm, b.Notice = true, sec(0.5)
			stranger(b, 2, 2.3, 5)
		}},
		{"granted against the order of the calls", []int{5}, func(b *story) {
			b.Calm, b.Notice = true, sec(0.5)
			stranger(b, 2, 3, 5)
		}},
		{"granted by a claim of a goroutine that has given up", nil, func(b *story) {
			b.Calm, b.Notice = true, sec(0.5)
			l := b.holds("a", mutex, false, 10, 2, 3)
			b.Stream[0].Since = sec(1.05)
			l.take.Call, l.take.Tickets = b.moment(1.55), []Ticket{{ID: l.take.ID, At: sec(1.6)}}
			l.hold.Asked = l.take.Call
			b.queues(b.holds("b", mutex, false, 30, 6, 7).take, 5, 1, 6)
		}},
		{"granted in the turn against the order of the calls", nil, func(b *story) {
			b.Calm, b.Notice, b.Turn = true, sec(0.5), sec(4.5)
			stranger(b, 2, 3, 5)
		}},
		{"read beside another", nil, func(b *story) { b.readers(4) }},
		{"read before a writer's place could be known", nil, func(b *story) {
			b.readers(4)
			b.queues(b.holds("b", gate, false, 30, 5, 6).take, 12, 3, 5)
		}},
		{"read behind a writer's place", []int{5}, func(b *story) {
			b.readers(4)
			b.queues(b.holds("b", gate, false, 30, 5, 6).take, 12, 2, 5)
		}},
		{"read beside a reader's place", nil, func(b *story) {
			b.readers(4)
			b.queues(b.holds("b", gate, true, 30, 5, 6).take, 12, 2, 5)
		}},
		{"read behind a gate", []int{5}, func(b *story) {
			b.readers(4)
			l := b.holds("b", gate, false, 12, 2, 6)
			l.take.Return = b.moment(5)
			l.hold.Asked, l.hold.From = b.moment(2), l.take.Return
		}},
		{"read before a gate could be known", nil, func(b *story) {
			b.readers(4)
			l := b.holds("b", gate, false, 12, 3, 6)
			l.take.Return = b.moment(5)
			l.hold.Asked, l.hold.From = b.moment(3), l.take.Return
		}},
		{"behind a writer of its own client", []int{5}, func(b *story) {
			b.readers(4)
			b.queues(b.holds("a", gate, false, 30, 5, 6).take, 12, 2, 5)
		}},
		{"read behind a place older than the join, in the turn", nil, func(b *story) {
			b.Turn = sec(4)
			inherits(b)
		}},
		{"read behind a place older than the join, after the turn", []int{5}, func(b *story) {
			b.Turn = sec(0.5)
			inherits(b)
		}},
		{"by a place from before that of a stranger", nil, func(b *story) {
			b.Calm, b.Turn, b.Notice = true, sec(0.5), sec(0.5)
			lateCaller(b)
		}},
		{"by a place from before that of a stranger, in the exact order", []int{5}, func(b *story) {
			b.Calm, b.Notice = true, sec(0.5)
			lateCaller(b)
		}},
		{"against the order of a cohort", []int{5}, func(b *story) {
			b.serves("a", 10, member{0, 0, 3.5}, member{3, 3.5, 4}, member{1, 4, 4.5})
		}},
		{"against the order of a cohort, with other options", nil, func(b *story) {
			b.serves("a", 10, member{0, 0, 3.5}, member{3, 3.5, 4}, member{1, 4, 4.5})[2].take.Cohort = "ttl"
		}},
		{"against the order of a cohort, by another lease", nil, func(b *story) { leases(b, "") }},
		{"against the order of a cohort, by another lease, and nothing fails", []int{5}, func(b *story) {
			b.Calm, b.Turn = true, sec(1)
			leases(b, "")
		}},
		{"against the order of goroutines that share no lease", nil, func(b *story) {
			b.Calm, b.Turn = true, sec(1)
			leases(b, Alone)
		}},
		{"past a goroutine of the cohort that waits until the end", []int{5, 6}, func(b *story) {
			b.Calm, b.Turn = true, sec(1)
			b.serves("a", 10, member{0, 0, 4}, member{3, 4, 5})
			b.queues(b.op("a", mutex, Lock, 1, 0, Pending), 5000, 1, 1000).TTL = sec(2000)
		}},
		{"past a goroutine of the cohort that gives up", nil, func(b *story) {
			b.Calm, b.Turn = true, sec(1)
			b.serves("a", 10, member{0, 0, 4}, member{3, 4, 5})
			b.op("a", mutex, Lock, 1, 4.5, GaveUp)
		}},
		{"waits behind a lease of its client", nil, func(b *story) {
			b.serves("a", 10, member{0, 0, 20}, member{1, 20, 21})
			b.Stream[0].TTL = sec(100)
		}},
		{"waits behind a lease of its client in the other mode", []int{6}, func(b *story) {
			b.holds("a", gate, true, 10, 0, 20)
			b.Stream[0].TTL = sec(100)
			b.op("a", gate, Lock, 1, 20, GaveUp)
		}},
		{"waits in line behind others", nil, func(b *story) {
			b.holds("a", mutex, false, 10, 0, 20)
			b.Stream[0].TTL = sec(100)
			b.queues(b.holds("b", mutex, false, 20, 20, 21).take, 12, 1, 20).TTL = sec(100)
		}},
		{"waits in line, and was out of it", []int{6}, func(b *story) {
			b.holds("a", mutex, false, 10, 0, 20)
			b.Stream[0].TTL = sec(100)
			b.queues(b.holds("b", mutex, false, 20, 20, 21).take, 12, 1, 20).TTL = sec(8)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := &story{}
			c.write(b)
			var got []int
			found := Check(b.history(), Options{})
			for _, v := range found {
				got = append(got, v.Check)
			}
			slices.Sort(got)
			require.Equal(t, c.want, slices.Compact(got), "%v", found)
		})
	}
}
