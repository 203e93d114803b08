package core

import (
	"container/heap"
	"time"

	"github.com/natslock/locks/internal/clock"
)

// Pace decides which of a client's writes is sent next, and when.
//
// Each record has at most one renewal waiting here, and the record whose validity ends first goes first. So even if the
// service is too slow for all due renewals, the client keeps every lock that the service can sustain. The number of
// writes under way is limited to what the service can answer in the time of its fastest answer plus a quarter of a
// second. Any further writes would wait in the network, where they could not be overtaken or withdrawn, and would hold
// up every other request on the connection. The limit never falls below what a slower service needs in order to sustain
// all records; see [Pace.Add].
//
// Writes that end records are subject to the same limit and take turns with the renewals while the renewals are on
// time. They are sent in the order in which they were queued.
//
// Writes are numbered as they are sent. Because answers arrive in about the same order, an answer shows that every
// earlier write either has been answered or never will be.
type Pace[R Paced, F Final] struct {
	Open    bool // the client is closed, so writes no longer wait for answers
	Pumping bool // the sender is running

	ready    readyHeap[R]
	late     []R // records whose validity would end before an answer arrived
	finals   []F
	turn     bool          // the last write sent was a final one
	sent     uint64        // number of the last write sent
	answered uint64        // highest number that has been answered
	heard    clock.Instant // when the last answer arrived or, if all writes had been answered, when the next one was sent
	took     time.Duration // how long the answer to write number answered took
	least    time.Duration // the shortest such time on this connection; 0 if unknown
	parts    int64         // sum of the parts of all records

	second clock.Instant // start of count
	count  int           // number of answers since second
	before int           // number of answers in the second before that
}

// Paced is a record that is renewed.
type Paced interface {
	comparable
	// Slot returns a pointer to the record's position in a [Pace]. The position must start out as [NotReady].
	Slot() *int32
}

// Final is a write that ends a record.
type Final interface {
	comparable
	Turn() *Turn
}

// Turn is the state of a [Final] in a [Pace].
type Turn struct {
	Queued bool // it is waiting for its turn
	Over   bool // no caller is waiting for it anymore
}

const (
	// leastUnderWay is the number of writes that may always be under way, however few records there are.
	leastUnderWay = 64
	// backlog is how much longer the writes under way may take than a single write.
	backlog = 250 * time.Millisecond
	// deaf is how long the client goes without any answer before all writes under way count as lost.
	deaf = time.Second
)

// QueueRenewal queues record k for a renewal that counts as late after time late. The validity of k ends at time end.
// If k is already waiting, QueueRenewal does nothing.
func (p *Pace[R, F]) QueueRenewal(k R, late, end clock.Instant) {
	if *k.Slot() == NotReady {
		p.ready = append(p.ready, waiting[R]{k, late, end}) // heap.Push would allocate
		*k.Slot() = int32(len(p.ready) - 1)
		heap.Fix(&p.ready, len(p.ready)-1)
	}
}

// Drop forgets record k.
func (p *Pace[R, F]) Drop(k R) {
	if *k.Slot() >= 0 {
		p.remove(int(*k.Slot()))
	}
	*k.Slot() = NotReady // even if it was late
}

// Next returns the record to renew now or the final write to send now, along with the number of that write. n is 0 if
// there is nothing to send.
func (p *Pace[R, F]) Next(now clock.Instant) (k R, f F, n uint64) {
	p.TimePassed(now)
	if !p.room() {
		return k, f, 0
	}
	var noFinal F
	if f = p.final(now); f == noFinal {
		var none R
		if k = p.first(now); k == none {
			return k, f, 0
		}
	}
	return k, f, p.number(now)
}

// Take numbers a write that ends a record, provided that nothing has to be sent ahead of it. It returns 0 if the write
// has to wait.
func (p *Pace[R, F]) Take(now clock.Instant) (n uint64) {
	p.TimePassed(now)
	if !p.room() || !p.Open && p.waiting() > 0 {
		return 0
	}
	return p.number(now)
}

// number returns the number for a write that is being sent.
func (p *Pace[R, F]) number(now clock.Instant) uint64 {
	if p.sent == p.answered {
		p.heard = now // the silence begins now
	}
	p.sent++
	return p.sent
}

func (p *Pace[R, F]) waiting() int { return len(p.ready) + len(p.late) + len(p.finals) }

// room reports whether there is room for another write under way.
func (p *Pace[R, F]) room() bool { return p.Open || p.sent-p.answered < p.bound() }

// final dequeues the final write that has waited longest, if it is a final write's turn.
func (p *Pace[R, F]) final(now clock.Instant) (none F) {
	for len(p.finals) > 0 && p.finals[0].Turn().Over {
		p.dequeue()
	}
	if len(p.finals) == 0 {
		return none
	}
	if len(p.ready) > 0 && (p.turn || p.ready[0].late <= now) {
		p.turn = false
		return none
	}
	p.turn = true
	return p.dequeue()
}

func (p *Pace[R, F]) dequeue() F {
	var none F
	f := p.finals[0]
	p.finals[0] = none
	p.finals = p.finals[1:]
	f.Turn().Queued = false
	return f
}

// first dequeues the record whose validity ends first. A record comes after all others if its validity would end before
// the answer, assuming that the answer takes as long as the last one did.
func (p *Pace[R, F]) first(now clock.Instant) (none R) {
	for len(p.late) > 0 && *p.late[0].Slot() != isLate {
		p.late[0] = none
		p.late = p.late[1:] // ended before its turn, as most of them do
	}
	for len(p.ready) > 0 {
		w := p.remove(0)
		if w.end.Sub(now) > p.took {
			return w.k
		}
		*w.k.Slot() = isLate
		p.late = append(p.late, w.k)
	}
	for len(p.late) > 0 {
		k := p.late[0]
		p.late[0] = none
		if p.late = p.late[1:]; *k.Slot() == isLate {
			*k.Slot() = NotReady
			return k
		}
	}
	return none
}

// bound returns the limit on the number of writes under way.
func (p *Pace[R, F]) bound() uint64 {
	answerable := time.Duration(max(p.count, p.before)) * (p.least + backlog) / time.Second
	return uint64(max(leastUnderWay, answerable, time.Duration(p.parts/whole)))
}

// Add registers a new record with the terms of its claim. For each record, the bound allows one renewal per validity,
// assuming that an answer takes a fifteenth of the validity or a second, whichever is less. So a service whose answers
// become that slow still sustains all records. Without this allowance, fewer and fewer renewals would be under way.
func (p *Pace[R, F]) Add(t clock.Terms) { p.parts += part(t) }

// Remove removes record k, which was added with the terms t.
func (p *Pace[R, F]) Remove(k R, t clock.Terms) {
	p.Drop(k)
	p.parts -= part(t)
}

func part(t clock.Terms) int64 {
	v := t.Validity()
	return int64(min(time.Second, v/15)) * whole / int64(v)
}

// QueueFinal queues a final write until its turn.
func (p *Pace[R, F]) QueueFinal(f F) {
	f.Turn().Queued = true
	p.finals = append(p.finals, f)
}

// Withdraw gives up a final write and returns how many final writes are waiting. was is false if f has already been
// sent.
func (p *Pace[R, F]) Withdraw(f F) (waited int, was bool) {
	f.Turn().Over = true
	return len(p.finals), f.Turn().Queued
}

// Finals returns the number of waiting final writes.
func (p *Pace[R, F]) Finals() int { return len(p.finals) }

// Ready returns the number of records that are waiting to be renewed, not counting those that are late.
func (p *Pace[R, F]) Ready() int { return len(p.ready) }

// whole stands for one renewal in the unit of parts.
const whole = 1_000_000_000

// Resumes reports whether the sender has to resume.
func (p *Pace[R, F]) Resumes() bool { return !p.Pumping && p.waiting() > 0 && (p.Open || p.roomy()) }

// roomy reports whether there is room for leastUnderWay/2 more writes under way. The sender waits for that much room
// because renewals sent in batches cost half as much.
func (p *Pace[R, F]) roomy() bool { return p.sent-p.answered+leastUnderWay/2 <= p.bound() }

// AnswerArrived records the answer to number n. took is the time between the write and its answer.
func (p *Pace[R, F]) AnswerArrived(n uint64, took time.Duration, now clock.Instant) {
	p.TimePassed(now)
	p.count++
	p.heard = now
	if n > p.answered {
		p.answered, p.took = n, took
		if p.least == 0 || took < p.least {
			p.least = max(took, 1)
		}
	}
}

// WriteRefused records that write n is not under way, because the connection refused it.
func (p *Pace[R, F]) WriteRefused(n uint64) { p.answered = max(p.answered, n) }

// WriteNotSent takes back number n, because the write was not sent. If a later number has been given out, n is not
// taken back, because the answer to the later write accounts for it.
func (p *Pace[R, F]) WriteNotSent(n uint64) {
	if n == p.sent {
		p.sent--
		p.answered = min(p.answered, p.sent)
	}
}

// UnderWay reports whether the answer to renewal s may still arrive. The answer counts as lost once a later write has
// been answered, or once the answer has taken more than twice as long as the last answer did. That limit is higher by
// backlog if any answer has arrived since s was sent.
func (p *Pace[R, F]) UnderWay(s Renewal, now clock.Instant) bool {
	limit := 2 * p.took
	if p.heard > s.at {
		limit += backlog
	}
	return s.paced > p.answered && now.Sub(s.at) <= limit
}

// Behind returns how late the next renewal is if it has to wait for answers. It returns 0 if the renewal is on time or
// about to be sent.
func (p *Pace[R, F]) Behind(now clock.Instant) time.Duration {
	if len(p.ready) == 0 || p.roomy() {
		return 0
	}
	return max(now.Sub(p.ready[0].late), 0)
}

// TimePassed starts counting a new second when one is due, and gives up on answers that do not arrive.
func (p *Pace[R, F]) TimePassed(now clock.Instant) {
	if p.sent == 0 { // instants may be negative
		p.second, p.heard = now, now
	}
	if d := now.Sub(p.second); d >= time.Second {
		p.before = p.count
		if d >= 2*time.Second {
			p.before = 0
		}
		p.second, p.count = now, 0
	}
	if now.Sub(p.heard) >= deaf {
		p.answered, p.took, p.heard = p.sent, 0, now
	}
}

// Reset forgets the writes under way on a connection that was lost.
func (p *Pace[R, F]) Reset() { p.answered, p.took, p.least = p.sent, 0, 0 }

// Values of [Paced.Slot] other than an index into the heap.
const (
	// NotReady means that the record is not waiting.
	NotReady int32 = -1
	isLate   int32 = -2
)

type waiting[R Paced] struct {
	k         R
	late, end clock.Instant
}

// remove removes element i from the heap.
func (p *Pace[R, F]) remove(i int) waiting[R] {
	h, last := p.ready, len(p.ready)-1
	h.Swap(i, last)
	w := h[last]
	h[last], p.ready = waiting[R]{}, h[:last]
	if i < last {
		heap.Fix(&p.ready, i)
	}
	*w.k.Slot() = NotReady
	return w
}

// readyHeap orders records by the end of their validity.
type readyHeap[R Paced] []waiting[R]

func (h readyHeap[R]) Len() int           { return len(h) }
func (h readyHeap[R]) Less(i, j int) bool { return h[i].end < h[j].end }
func (h readyHeap[R]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	*h[i].k.Slot(), *h[j].k.Slot() = int32(i), int32(j)
}
func (h readyHeap[R]) Push(any) {} // not used
func (h readyHeap[R]) Pop() any { return nil }
