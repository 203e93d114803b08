package history

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/record"
)

// story builds a history by hand. Times are in seconds.
type story struct {
	History
	seq int64
}

// tokenOf returns the fencing token of a grant at revision.
func tokenOf(revision uint64) uint64 { return record.Token(revision, 0) }

func sec(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func (b *story) moment(at float64) Moment {
	b.seq++
	return Moment{At: sec(at), Seq: b.seq}
}

func (b *story) op(client, lock string, do Action, call, ret float64, out Outcome) *Op {
	op := &Op{Client: client, Lock: lock, Do: do, Call: b.moment(call), Outcome: out}
	if out != Pending {
		op.Return = b.moment(ret)
	}
	b.Ops = append(b.Ops, op)
	return op
}

func (b *story) put(key, id string, revision uint64, at float64) *Entry {
	b.Stream = append(b.Stream, Entry{Key: key, ID: id, Owner: id[:min(1, len(id))], Revision: revision, At: sec(at), TTL: sec(5), Status: 1, Since: sec(at), Token: record.TokenOrTicket(key, revision)})
	return &b.Stream[len(b.Stream)-1]
}

func (b *story) del(key, id string, revision uint64, at float64) *Entry {
	e := b.put(key, id, revision, at)
	e.Deleted, e.TTL, e.Status = true, time.Second, statusGone
	return e
}

// lease is a lock that was taken and released, along with its records.
type lease struct {
	take, leave *Op
	hold        *Hold
	key         string
}

// holds has a client take a lock and release it. The record's revision is that of the token, and the tombstone's is
// slightly higher.
func (b *story) holds(client, lock string, shared bool, revision uint64, from, until float64) *lease {
	id, token := client+time.Duration(revision).String(), tokenOf(revision)
	l := &lease{key: lock}
	if shared {
		l.key = "read." + encodedAs(lock) + "." + id
	}
	b.put(l.key, id, revision, from)
	l.take = b.op(client, lock, Lock, from, from, OK)
	l.take.Shared, l.take.Token, l.take.ID, l.take.Bounded = shared, token, id, true
	l.hold = &Hold{Client: client, Lock: lock, Shared: shared, ID: id, Token: token, Asked: l.take.Call, From: l.take.Return, Until: sec(until), Released: true}
	b.Holds = append(b.Holds, l.hold)
	b.del(l.key, id, revision+5, until).Token = token
	l.leave = b.op(client, lock, Unlock, until, until, OK)
	l.hold.Unlock, l.hold.Unlocked = l.leave.Call, l.leave.Return
	return l
}

// keeps lets a lease end by the clock, without an unlock or a tombstone.
func (b *story) keeps(l *lease) {
	l.hold.Unlock, l.hold.Unlocked, l.hold.Released = Moment{}, Moment{}, false
	b.Ops = slices.DeleteFunc(b.Ops, func(o *Op) bool { return o == l.leave })
	b.Stream = slices.DeleteFunc(b.Stream, func(e Entry) bool { return e.Key == l.key && e.Revision == record.TokenRevision(l.hold.Token)+5 })
}

func (b *story) uses(l *lease, at float64, out Outcome) {
	op := b.op(l.hold.Client, l.hold.Lock, Use, at, at, out)
	op.Token, op.ID, op.Shared = l.hold.Token, l.hold.ID, l.hold.Shared
}

// queues has an acquire enter the queue with a ticket and leave it again.
func (b *story) queues(op *Op, ticket uint64, from, until float64) *Entry {
	id := fmt.Sprintf("%s-%d", op.Client, ticket)
	x := &index{}
	e := b.put(x.waitKey(op.Lock, id), id, ticket, from)
	e.Status, e.Shared = 2, op.Shared
	key := e.Key
	b.del(key, id, 10_000+ticket, until)
	op.Tickets = append(op.Tickets, Ticket{ID: id, Ticket: ticket, At: sec(from)})
	op.Call = b.moment(from)
	for _, h := range b.Holds {
		if h.ID == op.ID {
			h.Asked = op.Call
		}
	}
	return &b.Stream[len(b.Stream)-2]
}

func (b *story) history() *History {
	b.Tapped, b.Ended, b.TTL = true, sec(1000), sec(5)
	slices.SortStableFunc(b.Stream, byRevision)
	slices.SortStableFunc(b.Ops, func(a, b *Op) int { return a.Call.compare(b.Call) })
	h := b.History
	return &h
}

const (
	mutex = "lock.m"
	gate  = "rw.w"
)

// missedJoin adds a reader's renewal, and a writer that waits for the reader behind a gate at 10. The notification of
// the reader's join at revision was lost.
func missedJoin(b *story, revision uint64) {
	b.Lossy = true
	b.put(gate, "w", 10, 1)
	r := b.put("read.w.x", "x", 12, 2)
	r.Renewal, r.Token = 1, tokenOf(revision)
	g := b.put(gate, "w", 14, 3)
	g.Renewal, g.Token = 1, tokenOf(10)
	b.del("read.w.x", "x", 16, 4)
}

// TestCheck judges histories built by hand. Good ones pass, and every rule is broken at least once, on its own where
// possible.
func TestCheck(t *testing.T) {
	for _, c := range []struct {
		name  string
		want  []int // checks that find something
		write func(b *story)
	}{
		{"nothing", nil, func(b *story) {}},
		{"one after the other", nil, func(b *story) {
			b.holds("a", mutex, false, 10, 0, 2)
			b.holds("b", mutex, false, 20, 2, 4)
			b.holds("a", mutex, false, 30, 4.5, 5)
		}},
		{"readers together, writers alone", nil, func(b *story) {
			b.holds("a", gate, true, 10, 0, 4)
			b.holds("b", gate, true, 12, 1, 3)
			b.holds("c", gate, false, 20, 4, 6)
			b.holds("a", gate, true, 30, 6, 7)
		}},
		{"a lost lock", nil, func(b *story) {
			b.keeps(b.holds("a", mutex, false, 10, 0, 4.5))
			b.holds("b", mutex, false, 20, 5, 6)
		}},
		{"two holders", []int{1, 4}, func(b *story) {
			b.keeps(b.holds("a", mutex, false, 10, 0, 4.5))
			b.holds("b", mutex, false, 20, 4, 6)
			b.Stream = nil // leaves only the beliefs
		}},
		{"two holders, over a live record", []int{1, 4}, func(b *story) {
			b.keeps(b.holds("a", mutex, false, 10, 0, 4.5))
			b.holds("b", mutex, false, 20, 4, 6)
		}},
		{"a writer beside a reader", []int{1, 4}, func(b *story) {
			b.holds("a", gate, true, 10, 0, 4)
			b.holds("b", gate, false, 20, 3, 5)
		}},
		{"a reader beside a writer", []int{1, 4}, func(b *story) {
			b.holds("a", gate, false, 10, 0, 4)
			b.holds("b", gate, true, 20, 3, 5)
		}},
		{"a belief that outlives its record", []int{1}, func(b *story) {
			b.keeps(b.holds("a", mutex, false, 10, 0, 5.2))
		}},
		{"a validity from the answer", []int{1}, func(b *story) {
			l := b.holds("a", mutex, false, 10, 0, 2)
			l.hold.Confirmed = []Confirmation{{sec(0), sec(4.5)}, {sec(1), sec(5.1)}}
		}},
		{"a belief without a record", []int{1}, func(b *story) {
			b.holds("a", mutex, false, 10, 0, 2)
			b.Stream = nil
		}},
		{"a live record overwritten", []int{1}, func(b *story) {
			b.keeps(b.holds("a", mutex, false, 10, 0, 3))
			b.put(mutex, "?", 12, 3)
		}},
		{"a live record deleted by somebody else", []int{1}, func(b *story) {
			b.keeps(b.holds("a", mutex, false, 10, 0, 3))
			b.del(mutex, "?", 11, 3)
		}},
		{"a join behind a gate", []int{1}, func(b *story) {
			b.holds("a", gate, false, 10, 0, 4)
			b.put("read.w.x", "x", 12, 2)
		}},
		{"a reader before a gate, whose join was missed", nil, func(b *story) { missedJoin(b, 8) }},
		{"a reader behind a gate, whose join was missed", []int{1}, func(b *story) { missedJoin(b, 11) }},
		{"a writer over a reader's record", []int{1}, func(b *story) {
			b.put("read.w.x", "x", 8, 1)
			b.holds("a", gate, false, 10, 2, 4)
		}},
		{"broken so that others got in", nil, func(b *story) { breakNow(b, 20, 10) }},
		{"broken so that others got in, unrecorded", []int{1, 4}, func(b *story) {
			breakNow(b, 20, 10)
			b.Ops = slices.DeleteFunc(b.Ops, func(o *Op) bool { return o.Do == BreakNow })
		}},
		{"another was broken", []int{1, 4}, func(b *story) {
			breakNow(b, 20, 9)
		}},
		{"broken, and two got in", []int{1, 4}, func(b *story) {
			breakNow(b, 20, 10)
			b.keeps(b.holds("c", mutex, false, 30, 3.5, 4.2))
		}},
		{"broken after others had got in", []int{1, 2, 4}, func(b *story) {
			breakNow(b, 20, 10)
			b.holds("c", mutex, false, 8, 1, 1.5)
		}},
		{"deleted by hand", nil, func(b *story) { byHand(b, 15) }},
		{"deleted by hand, another record", []int{1, 4}, func(b *story) { byHand(b, 14) }},
		{"made again", nil, func(b *story) {
			b.keeps(b.holds("a", mutex, false, 10, 0, 4))
			b.op("by hand", "", Remake, 2, 2, OK).Revision = 1000
			b.Stream = append(b.Stream, Entry{Remade: true, Revision: 1000, At: sec(2)})
			b.holds("b", mutex, false, 1000, 3, 5)
		}},
		{"made again before", []int{1, 4}, func(b *story) {
			b.Stream = append(b.Stream, Entry{Remade: true, Revision: 5, At: 0})
			b.keeps(b.holds("a", mutex, false, 10, 1, 4))
			b.holds("b", mutex, false, 1000, 3, 5)
		}},
		{"a token that does not rise", []int{2, 4}, func(b *story) {
			b.holds("a", mutex, false, 20, 0, 1)
			b.holds("b", mutex, false, 10, 8, 9)
		}},
		{"a reader's token below a writer's", []int{2, 4}, func(b *story) {
			b.holds("a", gate, false, 20, 0, 1)
			b.holds("b", gate, true, 10, 8, 9)
		}},
		{"readers' tokens in any order", nil, func(b *story) {
			b.holds("a", gate, true, 20, 1, 3)
			b.holds("b", gate, true, 10, 1, 3)
		}},
		{"a superseded holder refused", nil, func(b *story) {
			l := b.holds("a", mutex, false, 10, 0, 2)
			m := b.holds("b", mutex, false, 20, 2, 4)
			b.uses(l, 1, OK)
			b.uses(m, 3, OK)
			b.uses(l, 5, Refused)
		}},
		{"a superseded holder accepted", []int{3}, func(b *story) {
			l := b.holds("a", mutex, false, 10, 0, 2)
			m := b.holds("b", mutex, false, 20, 2, 4)
			b.uses(m, 3, OK)
			b.uses(l, 3.5, OK)
		}},
		{"a reader accepted after a later reader", nil, func(b *story) {
			l := b.holds("a", gate, true, 10, 0, 4)
			m := b.holds("b", gate, true, 20, 2, 4)
			b.uses(m, 3, OK)
			b.uses(l, 3.5, OK)
		}},
		{"a holder refused", []int{3}, func(b *story) {
			b.uses(b.holds("a", mutex, false, 10, 0, 2), 1, Refused)
		}},
		{"refused by the holder", nil, func(b *story) {
			b.holds("a", mutex, false, 10, 0, 2)
			b.op("b", mutex, Try, 1, 1.1, Refused).Token = tokenOf(10)
		}},
		{"refused by a writer at its gate", nil, func(b *story) {
			b.holds("a", gate, true, 10, 0, 2)
			l := b.holds("b", gate, false, 20, 2, 3)
			l.take.Call = b.moment(0.5)
			l.hold.Asked = l.take.Call
			b.op("c", gate, Try, 1, 1.1, Refused).Token = tokenOf(20)
		}},
		{"refused by one who had released", []int{4}, func(b *story) {
			b.holds("a", mutex, false, 10, 0, 2)
			b.op("b", mutex, Try, 2.5, 2.6, Refused).Token = tokenOf(10)
		}},
		{"refused by a reader's lease that is idle", nil, func(b *story) {
			b.holds("a", gate, true, 10, 0, 2)
			b.Stream[1].At = sec(4) // kept until then
			b.op("a", gate, Try, 3, 3.1, Refused).Token = tokenOf(10)
		}},
		{"refused by a reader's lease that was idle", []int{4}, func(b *story) {
			b.holds("a", gate, true, 10, 0, 2)
			b.Stream[1].At = sec(4)
			b.op("a", gate, Try, 4.5, 4.6, Refused).Token = tokenOf(10)
		}},
		{"refused by a lease that lingered and was broken", nil, func(b *story) { lingers(b, 3) }},
		{"refused by a lease that had lingered and was broken", []int{4}, func(b *story) { lingers(b, 4.5) }},
		{"refused by an attempt that landed after the release", nil, landsLate},
		{"refused by an attempt that was broken before another one was granted", nil, func(b *story) { retries(b, 1) }},
		{"refused by an attempt after another client was granted", []int{4}, func(b *story) { retries(b, 3); b.Ops[len(b.Ops)-1].Token = tokenOf(20) }},
		{"refused by one who had not begun", []int{4}, func(b *story) {
			b.holds("a", mutex, false, 10, 3, 4)
			b.op("b", mutex, Try, 1, 1.1, Refused).Token = tokenOf(10)
		}},
		{"refused by nobody", []int{4}, func(b *story) {
			b.op("b", mutex, Try, 1, 1.1, Refused).Token = tokenOf(10)
		}},
		{"a release without an answer", nil, func(b *story) {
			l := b.holds("a", mutex, false, 10, 0, 2)
			l.hold.Released, l.leave.Outcome = false, Unknown
			b.Stream[1].At = sec(4) // deleted late
			b.op("c", mutex, Try, 3, 3.1, Refused).Token = tokenOf(10)
			b.holds("b", mutex, false, 20, 4, 5)
		}},
		{"in line", nil, func(b *story) { line(b, 12, 11) }},
		{"out of line", []int{5}, func(b *story) { line(b, 11, 12) }},
		{"out of line, and entries of the stream may be missing", []int{5}, func(b *story) { line(b, 11, 12); b.Lossy = true }},
		{"out of line, and the release before it is missing", nil, func(b *story) {
			line(b, 11, 12)
			b.Lossy = true
			b.Stream = slices.DeleteFunc(b.Stream, func(e Entry) bool { return e.Key == mutex && e.Deleted && e.At == sec(4) })
		}},
		{"a newcomer past the queue", []int{5}, func(b *story) {
			b.holds("a", mutex, false, 10, 0, 4)
			b.holds("c", mutex, false, 20, 4.2, 4.3)
			b.queues(b.holds("b", mutex, false, 30, 4.3, 5).take, 11, 1, 4.3)
		}},
		{"a newcomer within the bypass", nil, func(b *story) {
			b.holds("a", mutex, false, 10, 0, 4)
			b.holds("c", mutex, false, 20, 4.08, 4.3)
			b.queues(b.holds("b", mutex, false, 30, 4.3, 5).take, 11, 4, 4.3)
		}},
		{"past one who had given up", nil, func(b *story) {
			b.holds("a", mutex, false, 10, 0, 4)
			b.queues(b.op("c", mutex, Lock, 1, 3, GaveUp), 11, 1, 4.5) // its tombstone is late
			b.queues(b.holds("b", mutex, false, 20, 4, 5).take, 12, 2, 4)
		}},
		{"past one who died", nil, func(b *story) {
			l := b.holds("a", mutex, false, 10, 0, 5.9)
			e := b.put(mutex, l.hold.ID, 13, 2)
			e.Renewal, e.Token = 1, l.hold.Token
			b.queues(b.op("c", mutex, Lock, 1, 500, GaveUp), 11, 1, 6.5)
			b.Stream[len(b.Stream)-1].At = sec(500)
			b.queues(b.holds("b", mutex, false, 20, 5.9, 7).take, 12, 2, 5.9)
			b.Disturbances = append(b.Disturbances, Disturbance{Client: "c", From: sec(2), Until: sec(500)})
		}},
		{"out of line after an expiry", nil, func(b *story) {
			b.keeps(b.holds("a", mutex, false, 10, 0, 4.5))
			b.holds("c", mutex, false, 20, 5.1, 5.5)
			b.queues(b.holds("b", mutex, false, 30, 5.5, 6).take, 11, 4, 5.5)
		}},
		{"out of line after a second of idleness", nil, func(b *story) {
			b.holds("a", mutex, false, 10, 0, 2)
			b.holds("c", mutex, false, 20, 3.1, 4)
			b.queues(b.holds("b", mutex, false, 30, 4, 5).take, 11, 1, 4)
		}},
		{"a reader past a waiting writer", []int{5}, func(b *story) {
			b.holds("a", gate, false, 10, 0, 4)
			b.queues(b.holds("c", gate, true, 20, 4, 4.3).take, 12, 2, 4)
			b.queues(b.holds("b", gate, false, 30, 4.3, 5).take, 11, 1, 4.3)
		}},
		{"a reader past a waiting reader", nil, func(b *story) {
			b.holds("a", gate, false, 10, 0, 4)
			b.queues(b.holds("c", gate, true, 20, 4, 4.3).take, 12, 2, 4)
			b.queues(b.holds("b", gate, true, 30, 4.3, 5).take, 11, 1, 4.3)
		}},
		{"a waiter left outside", []int{6}, func(b *story) {
			b.op("b", mutex, Lock, 1, 8, GaveUp)
		}},
		{"a waiter for a held lock", nil, func(b *story) {
			b.holds("a", mutex, false, 10, 0, 4)
			b.queues(b.op("b", mutex, Lock, 1, 9, GaveUp), 11, 1, 9)
		}},
		{"a waiter for a held lock that is not in line", []int{6}, func(b *story) {
			b.holds("a", mutex, false, 10, 0, 4)
			b.op("b", mutex, Lock, 1, 9, GaveUp)
		}},
		{"a waiter left outside in the end", []int{6}, func(b *story) {
			b.holds("a", mutex, false, 10, 0, 4)
			b.op("b", mutex, Lock, 1, 0, Pending)
		}},
		{"a waiter cut off", nil, func(b *story) {
			b.op("b", mutex, Lock, 1, 12, GaveUp)
			b.Disturbances = append(b.Disturbances, Disturbance{Client: "b", From: sec(2), Until: sec(10)})
		}},
		{"another cut off", []int{6}, func(b *story) {
			b.op("b", mutex, Lock, 1, 12, GaveUp)
			b.Disturbances = append(b.Disturbances, Disturbance{Client: "a", From: sec(2), Until: sec(10)})
		}},
		{"a writer behind readers", nil, func(b *story) {
			for i := range 5 {
				b.holds("a", gate, true, uint64(10+10*i), float64(3*i), float64(3*i)+3)
			}
			b.queues(b.op("b", gate, Lock, 1, 16, GaveUp), 5000, 1, 16).TTL = sec(20)
		}},
		{"a reader left outside by readers", []int{6}, func(b *story) {
			for i := range 5 {
				b.holds("a", gate, true, uint64(10+10*i), float64(3*i), float64(3*i)+3)
			}
			b.op("b", gate, Lock, 1, 16, GaveUp).Shared = true
		}},
		{"something left", []int{7}, func(b *story) { b.Left = []string{"lock.x"} }},
		{"nothing has happened", []int{8}, func(b *story) { b.Faults = map[string]int{"demand": 1} }},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := &story{}
			c.write(b)
			o := Options{}
			if b.Faults["demand"] > 0 {
				o.Least = map[string]int{"grants": 1}
			}
			var got []int
			found := Check(b.history(), o)
			for _, v := range found {
				got = append(got, v.Check)
			}
			slices.Sort(got)
			require.Equal(t, c.want, slices.Compact(got), "%v", found)
		})
	}
}

// lingers has client a release the lock and keep its lease, which is broken at 4. Client b is refused at the given
// time.
func lingers(b *story, refused float64) {
	l := b.holds("a", mutex, false, 10, 0, 2)
	b.Stream = b.Stream[:len(b.Stream)-1]
	b.op("b", mutex, Try, refused, refused, Refused).Token = tokenOf(10)
	b.op("o", mutex, BreakNow, 4, 4, OK).ID = l.hold.ID
	e := b.del(mutex, l.hold.ID, 15, 4)
	e.Status, e.Token = statusBroken, tokenOf(10)
}

// landsLate has client a release the lock, after which another attempt of its claim lands and is broken.
func landsLate(b *story) {
	l := b.holds("a", mutex, false, 10, 0, 2)
	b.put(mutex, l.hold.ID, 20, 8).Token = 0
	b.op("b", mutex, Try, 8.5, 8.5, Refused).Token = tokenOf(20)
	e := b.put(mutex, l.hold.ID, 21, 9)
	e.Status, e.Token = statusBroken, tokenOf(20)
}

// retries leaves client a's first attempt unanswered and breaks it. The lock is then granted to client c, and after
// that to a. Client b is refused at the given time.
func retries(b *story, refused float64) {
	l := b.holds("a", mutex, false, 20, 8, 9)
	l.take.Call = b.moment(0)
	l.hold.Asked = l.take.Call
	b.put(mutex, l.hold.ID, 10, 0.5).Token = 0
	e := b.put(mutex, l.hold.ID, 11, 1.2)
	e.Status, e.Token, e.TTL = statusBroken, tokenOf(10), time.Second
	b.holds("c", mutex, false, 13, 2.5, 4)
	b.op("b", mutex, Try, refused, refused, Refused).Token = tokenOf(10)
}

// breakNow breaks client a's lock at 3 and notifies a at 4. In between, client b is granted the lock.
func breakNow(b *story, revision, broken uint64) {
	l := b.holds("a", mutex, false, 10, 0, 4)
	b.keeps(l)
	b.op("o", mutex, BreakNow, 3, 3, OK).ID = "a" + time.Duration(broken).String()
	e := b.del(mutex, l.hold.ID, 15, 3)
	e.Status, e.Token = statusBroken, tokenOf(10)
	b.holds("b", mutex, false, revision, 3.2, 5)
}

// byHand deletes client a's record by hand at 3. The operation names the given revision.
func byHand(b *story, revision uint64) {
	b.keeps(b.holds("a", mutex, false, 10, 0, 4))
	op := b.op("o", mutex, Delete, 3, 3, OK)
	op.Key, op.Revision = mutex, revision
	b.del(mutex, "", 15, 3)
	b.holds("b", mutex, false, 20, 3.2, 5)
}

// line makes clients b and c wait with tickets and lets b in first.
func line(b *story, c, d uint64) {
	b.holds("a", mutex, false, 10, 0, 4)
	b.queues(b.holds("b", mutex, false, 20, 4, 4.5).take, d, float64(d)/10, 4)
	b.queues(b.holds("c", mutex, false, 30, 4.5, 5).take, c, float64(c)/10, 4.5)
}

// The excerpt of a violation shows its lock's operations, beliefs, records and faults in order, and nothing about other
// locks.
func TestExcerpt(t *testing.T) {
	var b story
	b.holds("a", "lock.x", false, 1, 1, 4)
	b.holds("b", "lock.x", false, 2, 2, 3)
	b.holds("c", "lock.y", false, 3, 2, 3)
	b.Disturbances = append(b.Disturbances, Disturbance{Client: "a", What: "outage", From: sec(1.5), Until: sec(3.5)})
	found := Check(&b.History, Options{})
	require.Equal(t, 1, found[0].Check)
	text := excerpt(&b.History, found[0])
	require.NotContains(t, text, "lock.y")
	at := 0
	for _, line := range []string{
		"1s bucket 1 put lock.x", "1s a      lock a1ns returns: ok, token 64", "1.5s a      is disturbed: outage", "2s b      lock", "2s ----   the violation",
		"3s b      calls unlock", "3s b      no longer believes it holds", "3.5s a      is no longer disturbed", "4s bucket 6 deleted lock.x",
	} {
		i := strings.Index(text[at:], line)
		require.GreaterOrEqual(t, i, 0, "%s in\n%s", line, text)
		at += i
	}
}
