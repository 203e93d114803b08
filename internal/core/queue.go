package core

import (
	"slices"
	"time"

	"github.com/natslock/locks/internal/record"
)

// Waiter is a waiter that lists the queue until it knows whom it waits for. A long queue
// is read in part, from a revision on.
//
//	list --> part: further back --> list
//	     --> a predecessor: successor.go, until that has gone --> list
//	     --> nobody: once more, by a list that lacks no live record --> the first
type Waiter struct {
	ID     string // of the claim of the place
	Ticket uint64
	Reads  bool

	AsOf    uint64 // what the next list has to contain: the own place, and the proof that a predecessor is gone
	Named   bool   // the next list has to have each place that the leader names
	Further uint   // how often the part that was read was too short
	Vacant  uint64 // the tombstone of the lock, as last read; 0: none
}

// Standing says what a waiter does after a list.
type Standing uint8

const (
	// ListOn: list once more, as Named and Further say.
	ListOn Standing = iota
	// Behind: wait for the predecessor.
	Behind
	// Foremost: nobody is before this waiter.
	Foremost
)

// Gone takes that the predecessor has gone, which a state shows that contains a revision; 0: not known. A replica
// that lags would show it in the next list again.
func (w *Waiter) Gone(revision uint64) { w.AsOf = max(w.AsOf, w.Ticket, revision) }

// Listed takes a list, as of AsOf, with the tombstone of the lock that was read
// beside it. It returns the places before the own one. Those from index over on are right before it and
// overdue by an estimate of the server's clock: the waiter deletes them, if the leader agrees. The others
// are deleted by the waiters behind them. there is false if the own place has gone.
func (w *Waiter) Listed(queue []record.Entry, vacant uint64, estimate time.Time) (before []record.Entry, over int, there bool) {
	if !w.Named { // else the lock was not read
		w.Vacant = vacant //safety:vacant-claimed
	}
	i := slices.IndexFunc(queue, func(e record.Entry) bool { return e.ID == w.ID })
	if i < 0 {
		return nil, 0, false
	}
	before, over = queue[:i], i
	for over > 0 && before[over-1].OverdueAt(estimate) {
		over--
	}
	return before, over, true
}

// Judge decides by the places before the own one that are left, of a list from a revision on. alone says
// that one server only may have answered. second says that nobody is before the predecessor.
func (w *Waiter) Judge(before []record.Entry, from uint64, alone bool) (s Standing, pred record.Entry, second bool) {
	i := len(before) - 1
	for i >= 0 && !w.blocks(before[i]) { //safety:earlier-first
		i--
	}
	switch {
	case i >= 0 && before[i].TokenOrTicket() >= from:
		w.Named, w.Further, w.Vacant = false, 0, 0
		return Behind, before[i], len(before) == 1 && from == 0
	case from > 0: // it is further back, if there is one //safety:part-of-queue
		w.Further++
		return ListOn, pred, false
	case !w.Named && !alone: //safety:first-by-leader
		// A replica that catches up first removes what was overwritten, and stores later
		// what has overwritten it: it lacks the places that were renewed.
		w.Named = true
		return ListOn, pred, false
	}
	return Foremost, pred, false
}

// blocks says whether a waiter that came earlier has to go first.
func (w *Waiter) blocks(earlier record.Entry) bool {
	return !w.Reads || record.Mode(earlier.Mode) == record.Exclusive //safety:queue-rule
}

// Places is what a waiter remembers of the places that it has had.
type Places struct {
	Evictions int  // how often other waiters have deleted its place
	Again     bool // it has had a place, and is to have another one
	Returns   bool // the last place was given up for want of room, and the next one takes that room
	full      int  // how often it was given up so
}

// Had takes how the wait at a place has ended: gone says that the place has gone, evicted that it is deleted,
// and first that it was the first. It returns what the tombstone of the place is to say, and the number of the
// pause before the next place, which is later and later for want of room: the room that its place had may be
// enough for others. 0: at once.
func (p *Places) Had(o Outcome, gone, evicted, first bool) (left record.Status, pause int) {
	switch {
	case o == Granted && first:
		return record.StatusGranted, 0
	case o == Granted:
		return record.StatusPassed, 0
	case gone && evicted: // by a waiter that has passed it
		p.Evictions++ //safety:evictions-counted
	case o == NoRoom:
		p.full++
		pause = p.full
	}
	p.Again, p.Returns = gone || o == NoRoom, o == NoRoom
	return record.StatusGone, pause
}

// Has takes that the waiter has a place again.
func (p *Places) Has() { p.Again, p.Returns = false, false }
