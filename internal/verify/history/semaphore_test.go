package history

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/record"
)

// TestSemaphoreCheck judges semaphore histories built by hand.
func TestSemaphoreCheck(t *testing.T) {
	const s = "sem.s"
	of := func(l *lease, permits int) *lease {
		l.take.Permits = permits
		return l
	}
	passed := func(b *story) { // the last entry ends its place
		of(b.holds("a", s+".0", false, 10, 0, 4), 1)
		b.queues(of(b.holds("c", s+".0", false, 20, 4, 4.3), 1).take, 12, 2, 4)
		b.queues(of(b.holds("b", s+".0", false, 30, 4.3, 5), 1).take, 11, 1, 4.3)
	}
	// cohort gives client a one lease on slot 1 of 2, for a goroutine from 1 on and for another
	// one that asks at the given time and is served at 6. Client b queues at 2 and knows of the
	// given number of permits.
	cohort := func(b *story, asks float64, permits int) {
		b.Notice = sec(0.5)
		b.keeps(of(b.holds("z", s+".0", false, 5, 0, 4.5), 1))
		l := of(b.holds("a", s+".1", false, 10, 1, 7), 2)
		b.Stream[1].TTL = sec(20)
		l.leave.Call, l.leave.Return = b.moment(6), b.moment(6)
		l.hold.Unlock, l.hold.Unlocked = l.leave.Call, l.leave.Return
		take := b.op("a", s+".1", Lock, asks, 6, OK)
		take.Permits, take.Token, take.ID, take.Bounded = 2, record.Token(10, 1), l.hold.ID+".2", true
		leave := b.op("a", s+".1", Unlock, 7, 7, OK)
		b.Holds = append(b.Holds, &Hold{
			Client: "a", Lock: s + ".1", ID: take.ID, Token: take.Token, Asked: take.Call, From: take.Return, Until: sec(7), Released: true,
			Unlock: leave.Call, Unlocked: leave.Return,
		})
		b.queues(of(b.holds("b", slotKey(s, permits-1), false, 30, 7, 8), permits).take, 12, 2, 7).TTL = sec(20)
	}
	for _, c := range []struct {
		name  string
		want  []int // checks that find something
		write func(b *story)
	}{
		{"two slots at once", nil, func(b *story) {
			of(b.holds("a", s+".0", false, 10, 0, 4), 2)
			of(b.holds("b", s+".1", false, 20, 1, 3), 2)
			of(b.holds("c", s+".1", false, 30, 3, 5), 2)
		}},
		{"two in one slot", []int{1, 4}, func(b *story) {
			b.keeps(of(b.holds("a", s+".0", false, 10, 0, 4.5), 2))
			of(b.holds("b", s+".0", false, 20, 4, 6), 2)
		}},
		{"a slot too many", []int{1}, func(b *story) {
			of(b.holds("a", s+".2", false, 10, 0, 4), 2)
		}},
		{"in the order of the tickets", nil, func(b *story) {
			of(b.holds("a", s+".0", false, 10, 0, 4), 1)
			b.queues(of(b.holds("b", s+".0", false, 20, 4, 5), 1).take, 11, 1, 4)
			b.queues(of(b.holds("c", s+".0", false, 30, 5, 6), 1).take, 12, 2, 5)
		}},
		{"past a waiter", []int{5}, passed},
		{"past a waiter, and entries of the stream may be missing", []int{5}, func(b *story) {
			passed(b)
			b.Lossy = true
		}},
		{"past a place whose end may be missing", nil, func(b *story) {
			passed(b)
			b.Lossy, b.Stream = true, b.Stream[:len(b.Stream)-1]
		}},
		{"past a waiter that does not know of the slot", []int{5}, func(b *story) {
			of(b.holds("z", s+".0", false, 5, 0, 4.3), 1)
			of(b.holds("a", s+".1", false, 10, 0, 4), 2)
			b.queues(of(b.holds("c", s+".1", false, 20, 4, 4.3), 2).take, 12, 2, 4)
			b.queues(of(b.holds("b", s+".0", false, 30, 4.3, 5), 1).take, 11, 1, 4.3)
		}},
		{"a newcomer in a slot that was idle", nil, func(b *story) {
			of(b.holds("a", s+".0", false, 10, 0, 2), 1)
			of(b.holds("c", s+".0", false, 20, 3.5, 4.3), 1)
			b.queues(of(b.holds("b", s+".0", false, 30, 4.3, 5), 1).take, 11, 1, 4.3)
		}},
		{"kept out of one slot and not of the other", []int{6}, func(b *story) {
			of(b.holds("a", s+".0", false, 10, 0, 4), 2)
			b.op("b", s, Lock, 1, 30, GaveUp).Permits = 2
		}},
		{"kept out by a waiter that does not know of the free slot", nil, func(b *story) {
			for i := range 8 {
				of(b.holds("a", s+".0", false, uint64(10+10*i), float64(4*i), float64(4*i+4)), 1)
			}
			op := b.op("b", s, Lock, 1, 30, GaveUp)
			op.Permits = 2
			b.queues(op, 5000, 1, 30).TTL = sec(40)
		}},
		{"kept out by all slots that it knows of", nil, func(b *story) {
			for i, slot := range []string{".0", ".0", ".0", ".0", ".0", ".0", ".0", ".0"} {
				of(b.holds("a", s+slot, false, uint64(10+10*i), float64(4*i), float64(4*i+4)), 2)
			}
			op := b.op("b", s, Lock, 1, 30, GaveUp)
			op.Permits = 1
			b.queues(op, 5000, 1, 30).TTL = sec(40)
		}},
		{"called before a stranger could be known", nil, func(b *story) { cohort(b, 2.3, 2) }},
		{"called after a stranger had queued", []int{5}, func(b *story) { cohort(b, 5, 2) }},
		{"called after a stranger had queued, in the turn", nil, func(b *story) {
			b.Turn = sec(6)
			cohort(b, 5, 2)
		}},
		{"called after a stranger that does not know of the permit had queued", nil, func(b *story) { cohort(b, 5, 1) }},
		{"against the order of a cohort", []int{5}, func(b *story) {
			b.Calm, b.Notice = true, sec(0.5)
			of(b.holds("a", s+".0", false, 10, 0, 4), 2)
			of(b.holds("a", s+".1", false, 12, 0.1, 4), 2)
			for i, asks := range []float64{3, 1} {
				l := of(b.holds("a", s+".0", false, uint64(20+10*i), float64(5+i), float64(6+i)), 2)
				l.take.Call = b.moment(asks)
				l.hold.Asked = l.take.Call
			}
		}},
		{"refused by a holder that never was", []int{4}, func(b *story) {
			of(b.holds("a", s+".1", false, 10, 0, 4), 2)
			b.op("b", s, Try, 1, 2, Refused).Token = tokenOf(10)
			b.op("b", s, Try, 1, 2, Refused).Token = tokenOf(77)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := &story{}
			c.write(b)
			var got []int
			for _, v := range Check(b.history(), Options{}) {
				t.Log(v)
				if len(got) == 0 || got[len(got)-1] != v.Check {
					got = append(got, v.Check)
				}
			}
			require.ElementsMatch(t, c.want, got)
		})
	}
}
