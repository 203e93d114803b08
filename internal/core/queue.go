package core

import (
	"slices"
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
)

// Waiter reads the queue until it knows whom it waits for. It needs only the nearest place ahead of its own. If a
// thousand clients arrived together and each listed the whole queue, the lists would hold up their writes.
//
//	begin: the queue from its start or, if it is long or many clients seem to have
//	       arrived together, a part of it from right ahead of the ticket
//	   --> a predecessor, which it waits for: successor.go
//	   --> none in a part: a part from farther ahead of the ticket, and in the end the whole queue
//	   --> none at all: once more, by a list that lacks no live record --> the first
//	the predecessor is gone: what is left of the known places, or a list as at the beginning
//
// No place can get a lower ticket than one that is already queued. So the waiter only ever waits for places that a list
// has shown ahead of its own, which it then reads by key.
//
// A list may be cut off after a number of records. The server sends records in order of revision, and a renewed place
// has a revision above its ticket, so the part that was cut off may contain places with earlier tickets. A list that
// was cut off therefore shows whom to wait for, but it proves that no other place is in between only if no ticket is
// left for one.
//
// In a crowd, that is, when many clients have arrived together, the waiter reads each part record by record. If asked
// for several records at a time, the server would first count the records after them, which takes longer the longer the
// queue is. The waiter also follows the place right ahead of its own, whatever that place's mode, so that the readers
// behind a writer do not all read at the same time.
type Waiter struct {
	ID     string // id of the place's claim
	Ticket uint64
	Reads  bool

	AsOf   uint64 // revision that the next list has to contain, so that it covers the waiter's place and any proof that a predecessor is gone
	Reach  Reach  // of the next list
	Vacant uint64 // tombstone of the lock, as last read; 0 if there is none

	before  []record.Entry // the places ahead of its own, without gaps; nil if there may be gaps
	kept    int            // length of before when it was listed
	glanced bool           // the waiter follows the last place in before, whatever its mode
	whole   bool           // before was the whole queue ahead of the waiter's place
	alone   bool           // before was read from the only server
	served  bool           // a place in before was granted the lock with none ahead of it, so any places ahead of that one are over
	missing bool           // an answer from one of several servers lacked both the record and the tombstone of a place in before
	seeks   seeking        // its search for the head, in order to take the lock out of turn
	seekAt  clock.Instant  // when it may search for the head again
	peeked  bool           // it has checked whether the queue is short
	long    bool           // a read has shown that the queue is not short
	crowd   bool           // many clients seem to have arrived together with it
}

// seeking is a waiter's search for a head that it has not read.
type seeking uint8

const (
	seeksNothing seeking = iota
	// seeksShort lists the queue from its start, in case the queue is short.
	seeksShort
	// seeksNear reads the known places again. Listing a long queue pays off only when few of them are left.
	seeksNear
)

// Reach is the part of the queue that a list reads.
type Reach uint8

const (
	// Glance reads the two records right ahead of the ticket, if they are places.
	Glance Reach = iota
	// Start reads the queue from its start, and all of it if it is short.
	Start
	// Near reads a part that begins a little ahead of the ticket. Each of the next three parts begins four times as far
	// ahead as the one before it.
	Near
	Far
	Farther
	Farthest
	// Whole reads the whole queue, whatever its length.
	Whole
	// Named makes the leader name each place.
	Named
)

const (
	// shortQueue is how many places a list from the start reads.
	shortQueue = 32
	// nearReach is how many tickets ahead of the waiter's own the shortest part begins.
	nearReach = 4
	// crowdReads limits how many records a waiter in a crowd reads from a part.
	crowdReads = 4
	// headReach is how many places may be ahead of a waiter that looks for the head.
	headReach = 2
)

// Extent returns the revision from which the next list reads the queue, or 0 for all of it, and the limit on the number
// of records, or 0 for no limit. If singly is true, the records are read one by one.
func (w *Waiter) Extent() (from uint64, most int, singly bool) {
	if w.Lists() {
		from, most = Start.extent(w.Ticket)
		return from, most, false
	}
	if from, most = w.Reach.extent(w.Ticket); w.crowd && from > 0 {
		return from, min(most, crowdReads), true
	}
	return from, most, false
}

func (r Reach) extent(ticket uint64) (from uint64, most int) {
	switch r {
	case Glance:
		return ticket - min(2, ticket-1), 2
	case Start:
		return 0, shortQueue + 2 // including the waiter's place and the lock
	case Near, Far, Farther, Farthest:
		n := nearReach << (2 * (r - Near))
		return ticket - min(uint64(n), ticket-1), n + 2
	}
	return 0, 0
}

// Standing is what a waiter does after a list.
type Standing uint8

const (
	// ListOn lists the queue once more, as Reach says.
	ListOn Standing = iota
	// Behind waits for the predecessor.
	Behind
	// Foremost means that no place ahead blocks the waiter.
	Foremost
)

// Ahead is what a waiter knows about the places ahead of it.
type Ahead struct {
	Pred record.Entry // the predecessor
	Head record.Entry // the first place in the queue; zero if not known
	Rank int          // number of places known to be ahead of the waiter
	Sure bool         // no other place that blocks the waiter is between the predecessor and the waiter
	Next bool         // no place at all is between them or, if the waiter is foremost, ahead of it
}

// PlaceGone records that the predecessor is gone, as shown by a state that contains revision, which is 0 if unknown.
// The next list has to be at least as recent, because a lagging replica would still show the place.
func (w *Waiter) PlaceGone(revision uint64) {
	switch w.AsOf = max(w.AsOf, revision); { // the reach matters only if the waiter knows no places to read
	case w.crowd && w.Reach < Whole:
		w.Reach = Near
	case w.Reach > Start:
		w.Reach = Whole
	}
}

// Seek makes the waiter search for the head now. It may search again after pause.
func (w *Waiter) Seek(now clock.Instant, pause time.Duration) {
	w.seeks, w.seekAt = seeksShort, now.Add(pause)
}

// Seeks returns when the waiter may next search for the head.
func (w *Waiter) Seeks() clock.Instant { return w.seekAt }

// Peeks reports whether the waiter should now check whether the queue is short. It returns true only once.
func (w *Waiter) Peeks() bool {
	first := !w.peeked
	w.peeked = true
	return first
}

// Lists reports whether the waiter's next step is to list the queue, even though it knows the places ahead of it.
func (w *Waiter) Lists() bool { return w.seeks == seeksShort }

// Knows reports whether the waiter knows of a place with this id ahead of its own.
func (w *Waiter) Knows(id string) bool {
	return slices.ContainsFunc(w.before, func(e record.Entry) bool { return e.ID == id })
}

// Beyond returns the place right ahead of the one with this id, or the zero Entry if the waiter knows of none.
func (w *Waiter) Beyond(id string) record.Entry {
	if i := slices.IndexFunc(w.before, func(e record.Entry) bool { return e.ID == id }); i > 0 {
		return w.before[i-1]
	}
	return record.Entry{}
}

// Begin begins the wait. surveyed is the revision of the state that was read before the place was written, or 0 if
// unknown, and length is the length of the queue in that state. If much has been written since that read, many clients
// may have arrived together, each queued right behind another. In that case two cheap reads are likely to suffice,
// whereas a list would add to the load.
func (w *Waiter) Begin(surveyed uint64, length int) {
	w.AsOf = w.Ticket
	w.long, w.crowd = length > shortQueue, surveyed > 0 && w.Ticket-surveyed > shortQueue
	switch {
	case w.crowd:
		w.Reach = Glance
	case w.long:
		w.Reach = Near
	default:
		w.Reach = Start
	}
}

// Known returns the keys of the places ahead of the waiter, if it knows them.
func (w *Waiter) Known() (keys []string) {
	for _, e := range w.before {
		keys = append(keys, e.Key)
	}
	return keys
}

// Forget forgets the known places, because their keys cannot be read together.
func (w *Waiter) Forget() { w.before = nil }

// QueueListed handles a list of the queue, or of part of it, as of AsOf. vacant is the tombstone of the lock, read
// along with the list. cut means that more records follow those in the list. QueueListed returns the places ahead of
// the waiter's. The places from index over onward are directly ahead of the waiter and overdue by the estimate of the
// server's clock. The waiter deletes them if the leader agrees, and leaves any other overdue place to the waiter right
// behind it. there is false if the waiter's own place is gone.
func (w *Waiter) QueueListed(queue []record.Entry, cut bool, vacant uint64, estimate time.Time) (before []record.Entry, over int, there bool) {
	if w.Reach != Named { // a Named list does not read the lock
		w.Vacant = vacant //safety:vacant-claimed
	}
	i := slices.IndexFunc(queue, func(e record.Entry) bool { return e.ID == w.ID })
	switch {
	case i >= 0:
	case cut: // the waiter's place is beyond the cut
		for i = 0; i < len(queue) && queue[i].TokenOrTicket() < w.Ticket; i++ {
		}
	default:
		return nil, 0, false
	}
	before, over = trailing(queue[:i], estimate)
	return before, over, true
}

// KnownRead handles the records, including tombstones, under the keys that the waiter knows and under its own. alone
// means that only one server can have answered, whereas one of several may lack a renewed place. The results are the
// same as those of [Waiter.QueueListed].
func (w *Waiter) KnownRead(records []record.Entry, alone bool, estimate time.Time) (before []record.Entry, over int, there bool) {
	served, shown := uint64(0), 0 // all places ahead of ticket served are over
	for _, e := range records {
		i := slices.IndexFunc(w.before, func(b record.Entry) bool { return b.Key == e.Key })
		if i >= 0 {
			shown++
		}
		switch {
		case e.ID == w.ID && e.Live():
			there = true
		case i < 0 || w.before[i].ID != e.ID:
		case e.Live() && e.TokenOrTicket() == w.before[i].TokenOrTicket(): // a different ticket means that the place was stored again, behind others
			before = append(before, e)
		case e.Deleted && e.Status == record.StatusGranted: //safety:served-before
			served = max(served, w.before[i].TokenOrTicket())
		}
	}
	w.missing = !alone && shown < len(w.before) //safety:recalled-missing
	if served > 0 {
		w.served = true
		before = slices.DeleteFunc(before, func(e record.Entry) bool { return e.TokenOrTicket() < served })
	}
	record.SortByTicket(before)
	before, over = trailing(before, estimate)
	return before, over, there
}

// trailing returns before and the index from which all of its places are overdue by the estimate of the server's clock.
func trailing(before []record.Entry, estimate time.Time) ([]record.Entry, int) {
	over := len(before)
	for over > 0 && before[over-1].OverdueAt(estimate) {
		over--
	}
	return before, over
}

// Read describes how a list was read.
type Read struct {
	From  uint64 // the list contains the records from this revision on
	Cut   bool   // the list does not contain all of them
	Named bool   // the list was read by known keys
	Alone bool   // only one server can have answered
}

// Judge decides what to do, given the places in a list that are still ahead of the waiter's.
func (w *Waiter) Judge(before []record.Entry, r Read) (s Standing, a Ahead) {
	i := len(before) - 1
	for i >= 0 && !w.blocks(before[i]) { //safety:earlier-first
		i--
	}
	if r.Named {
		return w.judgeKnown(before, i)
	}
	if w.Lists() { // the list began at the start
		if w.seeks = seeksNothing; r.Cut {
			w.seeks = seeksNear
			return ListOn, a
		}
		w.Reach = Start
	}
	glanced := w.crowd && r.From > 0
	if glanced {
		i = len(before) - 1
	}
	if i >= 0 && r.From > 0 && before[i].TokenOrTicket() >= r.From {
		if w.keep(before, i, r); w.before != nil || w.Reach != Glance {
			w.glanced = glanced
			return Behind, aheadOf(before, i, w.before != nil)
		}
	}
	switch {
	case r.From > 0 || r.Cut: // this part does not show the predecessor, if there is one //safety:part-of-queue
		w.widen()
		return ListOn, a
	case i >= 0:
		if w.Vacant, w.before = 0, nil; w.Reach == Whole {
			w.keep(before, i, r)
		} else {
			w.Reach = Start
		}
		a = aheadOf(before, i, true)
		a.Head = before[0]
		return Behind, a
	case w.Reach != Named && !r.Alone: //safety:first-by-leader
		// A replica that is catching up removes an overwritten record before it stores the record that overwrote it. In
		// between, it lacks the places that were renewed, so the next read names them.
		w.Reach = Named
		return ListOn, a
	}
	a.Next = len(before) == 0 //safety:foremost-alone
	return Foremost, a
}

// aheadOf returns what a waiter knows when it waits for before[i].
func aheadOf(before []record.Entry, i int, sure bool) Ahead {
	a := Ahead{Pred: before[i], Rank: len(before), Sure: sure}
	a.Next = sure && i == len(before)-1 //safety:next-behind
	return a
}

// widen makes the next list reach farther. In a crowd, the server has no time for lists, so the waiter is slow to list
// the queue from its start, even though the queue may be short after all.
func (w *Waiter) widen() {
	switch {
	case w.Reach == Glance:
		w.Reach = Near
	case w.Reach == Start && w.crowd:
		w.long, w.Reach = true, Farther
	case w.Reach == Far && w.crowd && !w.long:
		w.Reach = Start
	default:
		w.Reach = min(w.Reach+1, Whole)
	}
}

// keep makes the waiter read these places by key from now on. before[i] is the predecessor. If the part was cut off,
// keep retains only the places after which no ticket is left for another place. It retains none unless the predecessor
// is among them.
func (w *Waiter) keep(before []record.Entry, i int, r Read) {
	w.Vacant, w.served, w.glanced, w.whole, w.alone = 0, false, false, r.From == 0, r.Alone
	first := 0
	for first < len(before) && before[first].TokenOrTicket() < r.From { // others with such low tickets may be missing //safety:part-begins
		first++
	}
	for r.Cut && first < len(before) && w.Ticket-before[first].TokenOrTicket() != uint64(len(before)-first) { //safety:part-gapless
		first++
	}
	if w.before, w.kept = nil, 0; first <= i {
		w.before, w.kept = before[first:], len(before)-first
	}
}

// judgeKnown judges what is left of the places ahead of the waiter's own. before[i] is the last one that blocks the
// waiter, or i is negative if none does.
func (w *Waiter) judgeKnown(before []record.Entry, i int) (s Standing, a Ahead) {
	if w.glanced {
		i = len(before) - 1
	}
	near := w.seeks == seeksNear && len(before) <= headReach && len(before) < w.kept
	w.seeks = seeksNothing
	switch {
	case w.missing: // only the leader knows
	case i >= 0 && !near:
		w.before = before
		if a = aheadOf(before, i, true); w.whole || w.served {
			a.Head = before[0]
		}
		return Behind, a
	case i < 0 && (w.served || w.whole && w.alone):
		a.Next = len(before) == 0
		return Foremost, a
	}
	switch w.before = nil; {
	case w.missing || i < 0 && w.whole:
		w.Reach = Named
	case w.glanced && !near:
		w.Reach = Near
	default:
		w.Reach = Whole
	}
	return ListOn, a
}

// blocks reports whether the earlier waiter has to go first.
func (w *Waiter) blocks(earlier record.Entry) bool {
	return !w.Reads || record.Mode(earlier.Mode) == record.Exclusive //safety:queue-rule
}

// Places is what a waiter remembers of its earlier places.
type Places struct {
	Again   bool // it has had a place and needs another one
	Returns bool // it gave up its last place for lack of room, and its next one uses that room
	full    int  // number of places given up for lack of room
}

// PlaceEnded handles outcome o of the wait at a place. gone means that the place is gone, and first means that no other
// place was ahead of it. PlaceEnded returns the status for the place's tombstone and the number of the pause before the
// next place, or 0 if the next place can be written immediately. The pause gets longer each time the bucket has no
// room, because the room freed by the place may be enough for others.
func (p *Places) PlaceEnded(o Outcome, gone, first bool) (left record.Status, pause int) {
	switch {
	case o == Granted && first:
		return record.StatusGranted, 0
	case o == Granted:
		return record.StatusPassed, 0
	case o == NoRoom:
		p.full++
		pause = p.full
	}
	p.Again, p.Returns = gone || o == NoRoom, o == NoRoom
	return record.StatusGone, pause
}

// PlaceBegun records that the waiter has a new place.
func (p *Places) PlaceBegun() { p.Again, p.Returns = false, false }
