package session

import (
	"container/heap"
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
)

// pace decides which write is sent next, and when: plain data under the mutex of the renewer.
//
// A record waits here at most once, and the one whose validity ends first goes first. So a
// service that is slower than the renewals are due loses no lock that it can carry. What is
// under way without an answer is bounded by what is answered in the time of the fastest answer
// and a quarter of a second: more would wait in the network, where nothing can be overtaken
// or withdrawn, and hold up every other request of the connection. What is always allowed is
// enough for a service that begins to answer later and still carries all; see [part].
//
// The writes that end records count too, and take turns with the renewals while those are in
// time. They wait in the order of their coming.
//
// Writes are numbered as they are sent. Their answers come in about that order, so one
// says of those before it that theirs have come or never will.
type pace struct {
	ready    readyHeap
	late     []*kept // those that an answer would reach too late
	finals   []*final
	turn     bool   // a final write went last
	open     bool   // the client is closed: nothing waits
	pumping  bool   // the sender is at it
	sent     uint64 // the number of the last one
	answered uint64 // the highest number that was answered
	heard    clock.Instant
	took     time.Duration // from the sending of the last one answered to its answer
	least    time.Duration // the shortest such time on this connection; 0: not known
	parts    int64         // the sum of the parts of all records

	second clock.Instant // when the count of answers began
	count  int           // of answers since then
	before int           // of those in the second before
}

const (
	// leastUnderWay is how many renewals are under way at a time however few records there are.
	leastUnderWay = 64
	// backlog is how long what is under way may take longer than a single one.
	backlog = 250 * time.Millisecond
	// deaf is after how long without an answer those to come count as lost.
	deaf = time.Second
)

// want has a record renewed, which is late from an instant before the end of its validity on.
// It does nothing if that waits already.
func (p *pace) want(k *kept, late, end clock.Instant) {
	if k.slot.ready == notReady {
		p.ready = append(p.ready, waiting{k, late, end}) // heap.Push would allocate
		k.slot.ready = int32(len(p.ready) - 1)
		heap.Fix(&p.ready, len(p.ready)-1)
	}
}

// drop forgets a record.
func (p *pace) drop(k *kept) {
	if k.slot.ready >= 0 {
		p.remove(int(k.slot.ready))
	}
	k.slot.ready = notReady // also where it is late
}

// next returns the record to renew now, or the last write of one, with its number. Without
// either there is none.
func (p *pace) next(now clock.Instant) (k *kept, f *final, n uint64) {
	p.roll(now)
	if !p.room() {
		return nil, nil, 0
	}
	if f = p.final(now); f == nil {
		if k = p.first(now); k == nil {
			return nil, nil, 0
		}
	}
	return k, f, p.number(now)
}

// take numbers a write that ends a record, if nothing has to be sent before it; 0: it waits.
func (p *pace) take(now clock.Instant) (n uint64) {
	p.roll(now)
	if !p.room() || !p.open && p.waiting() > 0 {
		return 0
	}
	return p.number(now)
}

// number counts one that is sent.
func (p *pace) number(now clock.Instant) uint64 {
	if p.sent == p.answered {
		p.heard = now // from here on silence counts
	}
	p.sent++
	return p.sent
}

// waiting is how many wait to be sent.
func (p *pace) waiting() int { return len(p.ready) + len(p.late) + len(p.finals) }

// room says whether one more may be under way.
func (p *pace) room() bool { return p.open || p.sent-p.answered < p.bound() }

// final takes the final write that has waited for longest, if it is its turn.
func (p *pace) final(now clock.Instant) *final {
	for len(p.finals) > 0 && p.finals[0].over {
		p.dequeue()
	}
	if len(p.finals) == 0 {
		return nil
	}
	if len(p.ready) > 0 && (p.turn || p.ready[0].late <= now) {
		p.turn = false
		return nil
	}
	p.turn = true
	return p.dequeue()
}

func (p *pace) dequeue() *final {
	f := p.finals[0]
	p.finals[0] = nil
	p.finals = p.finals[1:]
	f.queued = false
	return f
}

// first takes the record whose validity ends first. Those that an answer would reach too late,
// if it takes as long as the last one, come after all others.
func (p *pace) first(now clock.Instant) *kept {
	for len(p.late) > 0 && p.late[0].slot.ready != isLate {
		p.late[0] = nil
		p.late = p.late[1:] // it has ended, as most of them do first
	}
	for len(p.ready) > 0 {
		w := p.remove(0)
		if w.end.Sub(now) > p.took {
			return w.k
		}
		w.k.slot.ready = isLate
		p.late = append(p.late, w.k)
	}
	for len(p.late) > 0 {
		k := p.late[0]
		p.late[0] = nil
		if p.late = p.late[1:]; k.slot.ready == isLate {
			k.slot.ready = notReady
			return k
		}
	}
	return nil
}

// bound is how many may be under way.
func (p *pace) bound() uint64 {
	answerable := time.Duration(max(p.count, p.before)) * (p.least + backlog) / time.Second
	return uint64(max(leastUnderWay, answerable, time.Duration(p.parts/whole)))
}

// part is a record's part in what may always be under way: the renewals that it needs in a
// fifteenth of its validity, or in a second. Answers that begin to take so long lose none:
// without this, fewer and fewer would be under way.
func part(k *kept) int64 {
	v := k.Terms.Validity()
	return int64(min(time.Second, v/15)) * whole / int64(v)
}

// whole is a part that is one renewal.
const whole = 1_000_000_000

// resumes says whether the sender has to go on.
func (p *pace) resumes() bool { return !p.pumping && p.waiting() > 0 && (p.open || p.roomy()) }

// roomy says whether a good number may be under way beside what is: many renewals at a time
// cost half as much.
func (p *pace) roomy() bool { return p.sent-p.answered+leastUnderWay/2 <= p.bound() }

// hear takes an answer to what was sent so long ago.
func (p *pace) hear(n uint64, took time.Duration, now clock.Instant) {
	p.roll(now)
	p.count++
	p.heard = now
	if n > p.answered {
		p.answered, p.took = n, took
		if p.least == 0 || took < p.least {
			p.least = max(took, 1)
		}
	}
}

// refused takes that a number is not under way: the connection has not taken it.
func (p *pace) refused(n uint64) { p.answered = max(p.answered, n) }

// unsent takes that number n was not sent. Another one may have been taken since: its answer
// says what there is to say.
func (p *pace) unsent(n uint64) {
	if n == p.sent {
		p.sent--
		p.answered = min(p.answered, p.sent)
	}
}

// underWay says whether a renewal only waits for its answer: others are answered since it was
// sent, and it has not taken much longer than they did, or none is, and it has not taken twice
// as long as the last one. Else it is lost.
func (p *pace) underWay(s core.Renewal, now clock.Instant) bool {
	limit := 2 * p.took
	if p.heard > s.At {
		limit += backlog
	}
	return s.Paced > p.answered && now.Sub(s.At) <= limit
}

// behind is how late the renewal is that comes next, where it has to wait for answers; 0: it
// is in time, or is about to be sent.
func (p *pace) behind(now clock.Instant) time.Duration {
	if len(p.ready) == 0 || p.roomy() {
		return 0
	}
	return max(now.Sub(p.ready[0].late), 0)
}

// roll begins a new second, and gives up on answers that do not come.
func (p *pace) roll(now clock.Instant) {
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

// reset forgets what is under way, on a connection that has gone.
func (p *pace) reset() { p.answered, p.took, p.least = p.sent, 0, 0 }

// The places of a record in a [pace], beside those in its heap.
const (
	notReady int32 = -1
	isLate   int32 = -2
)

// waiting is a record that waits for its renewal.
type waiting struct {
	k         *kept
	late, end clock.Instant
}

// remove takes a record out of those that are ready.
func (p *pace) remove(i int) waiting {
	h, last := p.ready, len(p.ready)-1
	h.Swap(i, last)
	w := h[last]
	h[last], p.ready = waiting{}, h[:last]
	if i < last {
		heap.Fix(&p.ready, i)
	}
	w.k.slot.ready = notReady
	return w
}

// readyHeap orders records by the end of their validity.
type readyHeap []waiting

func (h readyHeap) Len() int           { return len(h) }
func (h readyHeap) Less(i, j int) bool { return h[i].end < h[j].end }
func (h readyHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].k.slot.ready, h[j].k.slot.ready = int32(i), int32(j)
}
func (h readyHeap) Push(any) {} // not used
func (h readyHeap) Pop() any { return nil }
