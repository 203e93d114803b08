package core

import (
	"container/heap"
	"time"

	"github.com/natslock/locks/internal/clock"
)

// Pace decides which write of a client is sent next, and when.
//
// A record waits here for its renewal at most once, and the one whose validity ends first goes first. So a
// service that is slower than the renewals are due loses no lock that it can carry. What is
// under way without an answer is bounded by what is answered in the time of the fastest answer
// and a quarter of a second: more would wait in the network, where nothing can be overtaken
// or withdrawn, and hold up every other request of the connection. What is always allowed is
// enough for a service that begins to answer later and still carries all; see [Pace.Add].
//
// The writes that end records count too, and take turns with the renewals while those are in
// time. They wait in the order of their coming.
//
// Writes are numbered as they are sent. Their answers come in about that order, so one
// says of those before it that theirs have come or never will.
type Pace[R Paced, F Final] struct {
	Open    bool // the client is closed: no write waits for answers any more
	Pumping bool // the sender is sending

	ready    readyHeap[R]
	late     []R // those that an answer would reach too late
	finals   []F
	turn     bool          // a final write went last
	sent     uint64        // the number of the last one
	answered uint64        // the highest number that was answered
	heard    clock.Instant // when the last answer came, or the first write after all were answered was sent
	took     time.Duration // from the sending of the last one answered to its answer
	least    time.Duration // the shortest such time on this connection; 0: not known
	parts    int64         // the sum of the parts of all records

	second clock.Instant // when the count of answers began
	count  int           // of answers since then
	before int           // of those in the second before
}

// Paced is a record that is renewed.
type Paced interface {
	comparable
	// Slot is the place of the record in a [Pace]: [NotReady] at first.
	Slot() *int32
}

// Final is a write that ends a record.
type Final interface {
	comparable
	Turn() *Turn
}

// Turn is what a [Pace] knows of a [Final].
type Turn struct {
	Queued bool // it waits
	Over   bool // nobody waits for it any more
}

const (
	// leastUnderWay is how many renewals are under way at a time however few records there are.
	leastUnderWay = 64
	// backlog is how long what is under way may take longer than a single one.
	backlog = 250 * time.Millisecond
	// deaf is how long no answer may come before all that are outstanding count as lost.
	deaf = time.Second
)

// QueueRenewal has a record renewed, which is late from an instant before the end of its validity on.
// It does nothing if that waits already.
func (p *Pace[R, F]) QueueRenewal(k R, late, end clock.Instant) {
	if *k.Slot() == NotReady {
		p.ready = append(p.ready, waiting[R]{k, late, end}) // heap.Push would allocate
		*k.Slot() = int32(len(p.ready) - 1)
		heap.Fix(&p.ready, len(p.ready)-1)
	}
}

// Drop forgets a record.
func (p *Pace[R, F]) Drop(k R) {
	if *k.Slot() >= 0 {
		p.remove(int(*k.Slot()))
	}
	*k.Slot() = NotReady // also where it is late
}

// Next returns the record to renew now, or the last write of one, with its number. Without
// either there is none.
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

// Take numbers a write that ends a record, if nothing has to be sent before it; 0: it waits.
func (p *Pace[R, F]) Take(now clock.Instant) (n uint64) {
	p.TimePassed(now)
	if !p.room() || !p.Open && p.waiting() > 0 {
		return 0
	}
	return p.number(now)
}

// number counts one that is sent.
func (p *Pace[R, F]) number(now clock.Instant) uint64 {
	if p.sent == p.answered {
		p.heard = now // from here on silence counts
	}
	p.sent++
	return p.sent
}

// waiting is how many wait to be sent.
func (p *Pace[R, F]) waiting() int { return len(p.ready) + len(p.late) + len(p.finals) }

// room reports whether one more may be under way.
func (p *Pace[R, F]) room() bool { return p.Open || p.sent-p.answered < p.bound() }

// final takes the final write that has waited for longest, if it is its turn.
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

// first takes the record whose validity ends first. Those that an answer would reach too late,
// if it takes as long as the last one, come after all others.
func (p *Pace[R, F]) first(now clock.Instant) (none R) {
	for len(p.late) > 0 && *p.late[0].Slot() != isLate {
		p.late[0] = none
		p.late = p.late[1:] // it has ended, as most of them do first
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

// bound is how many may be under way.
func (p *Pace[R, F]) bound() uint64 {
	answerable := time.Duration(max(p.count, p.before)) * (p.least + backlog) / time.Second
	return uint64(max(leastUnderWay, answerable, time.Duration(p.parts/whole)))
}

// Add counts a new record with the terms of its claim. For each record the bound allows one renewal per validity, if an
// answer takes a fifteenth of the validity, or a second if that is less. So a service whose answers become that slow
// still carries all records: without this part, fewer and fewer renewals would be under way.
func (p *Pace[R, F]) Add(t clock.Terms) { p.parts += part(t) }

// Remove takes that a record with these terms is over.
func (p *Pace[R, F]) Remove(k R, t clock.Terms) {
	p.Drop(k)
	p.parts -= part(t)
}

func part(t clock.Terms) int64 {
	v := t.Validity()
	return int64(min(time.Second, v/15)) * whole / int64(v)
}

// QueueFinal has a final write wait for its turn.
func (p *Pace[R, F]) QueueFinal(f F) {
	f.Turn().Queued = true
	p.finals = append(p.finals, f)
}

// Withdraw gives up a final write, and says how many final writes waited. was is false if f has been sent already.
func (p *Pace[R, F]) Withdraw(f F) (waited int, was bool) {
	f.Turn().Over = true
	return len(p.finals), f.Turn().Queued
}

// Finals is how many final writes wait, and Ready how many records for their renewal.
func (p *Pace[R, F]) Finals() int { return len(p.finals) }

// Ready: see [Pace.Finals].
func (p *Pace[R, F]) Ready() int { return len(p.ready) }

// whole is one renewal, in the unit of parts.
const whole = 1_000_000_000

// Resumes reports whether the sender has to go on.
func (p *Pace[R, F]) Resumes() bool { return !p.Pumping && p.waiting() > 0 && (p.Open || p.roomy()) }

// roomy reports whether leastUnderWay/2 more may be under way: renewals that are sent many at a
// time cost half as much.
func (p *Pace[R, F]) roomy() bool { return p.sent-p.answered+leastUnderWay/2 <= p.bound() }

// AnswerArrived takes the answer to number n, which came took after its sending.
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

// WriteRefused takes that a number is not under way: the connection has not taken it.
func (p *Pace[R, F]) WriteRefused(n uint64) { p.answered = max(p.answered, n) }

// WriteNotSent takes number n back, which was not sent. If a later number has been taken since, n stays
// taken: the answer to the later one accounts for it.
func (p *Pace[R, F]) WriteNotSent(n uint64) {
	if n == p.sent {
		p.sent--
		p.answered = min(p.answered, p.sent)
	}
}

// UnderWay reports whether the answer to a renewal may still come. It counts as lost when a later
// number is answered, or when it has taken more than twice as long as the last answer did, and
// backlog more if an answer has come since its sending.
func (p *Pace[R, F]) UnderWay(s Renewal, now clock.Instant) bool {
	limit := 2 * p.took
	if p.heard > s.at {
		limit += backlog
	}
	return s.paced > p.answered && now.Sub(s.at) <= limit
}

// Behind is how late the renewal is that comes next, where it has to wait for answers; 0: it
// is in time, or is about to be sent.
func (p *Pace[R, F]) Behind(now clock.Instant) time.Duration {
	if len(p.ready) == 0 || p.roomy() {
		return 0
	}
	return max(now.Sub(p.ready[0].late), 0)
}

// TimePassed begins a new second, and gives up on answers that do not come.
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

// Reset forgets what is under way, on a connection that has gone.
func (p *Pace[R, F]) Reset() { p.answered, p.took, p.least = p.sent, 0, 0 }

// The places of a record in a [Pace], beside those in its heap.
const (
	// NotReady: it does not wait.
	NotReady int32 = -1
	isLate   int32 = -2
)

// waiting is a record that waits for its renewal.
type waiting[R Paced] struct {
	k         R
	late, end clock.Instant
}

// remove takes a record out of those that are ready.
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
