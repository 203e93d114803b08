package history

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSemaphoreCheck judges histories of a semaphore made by hand.
func TestSemaphoreCheck(t *testing.T) {
	const s = "sem.s"
	of := func(l *lease, permits int) *lease {
		l.take.Permits = permits
		return l
	}
	passed := func(b *story) { // the last entry is the end of its place
		of(b.holds("a", s+".0", false, 10, 0, 4), 1)
		b.queues(of(b.holds("c", s+".0", false, 20, 4, 4.3), 1).take, 12, 2, 4)
		b.queues(of(b.holds("b", s+".0", false, 30, 4.3, 5), 1).take, 11, 1, 4.3)
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
			b.op("b", s, Lock, 1, 30, GaveUp).Permits = 2
		}},
		{"kept out by all slots that it knows of", nil, func(b *story) {
			for i, slot := range []string{".0", ".0", ".0", ".0", ".0", ".0", ".0", ".0"} {
				of(b.holds("a", s+slot, false, uint64(10+10*i), float64(4*i), float64(4*i+4)), 2)
			}
			b.op("b", s, Lock, 1, 30, GaveUp).Permits = 1
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
