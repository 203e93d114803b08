package model

import (
	"fmt"
	"strings"
)

// semScope is how much of the queue of a semaphore is explored, and which of its rules is
// left out. A claim of a slot is three steps: its sending, its check by the server, and its
// answer. Package fleet has the time for which a client holds. Time is abstract, as in
// queue.go.
type semScope struct {
	name    string
	numbers string // one digit per client: the number of permits that it passes
	crashes int8
	losses  int8 // notifications that are lost
	pauses  int8 // clients that are stopped for a while
	expires int8 // places that end while their waiters live
	giveups int8 // waiters that leave the queue without a permit
	strays  int8 // claims that the server stores when their client has given them up
	rounds  int8 // how often each client takes a permit again
	stale   int8 // reads of an arrival that a replica behind the leader may answer
	prompt  bool // no client takes a slot out of turn, and all get in nevertheless
	untimed bool // no client has a timer, and all get in nevertheless
	forgets bool // the server removes no ended record
	weak    weakness
}

const (
	maxSlots = 3
	strayed  = overdueLock + 1 // held by a claim that its client has given up
)

// phases of a client that wants a permit. The others are those of a waiter.
const (
	heading  = first    // subscribes, reads the slots, and claims
	arriving = dead + 1 // claims a slot at once
)

// semWaiter is a client. Its masks have a bit for each slot.
type semWaiter struct {
	phase, ticket, place int8
	follows              int8 // 1 + the client right before it, for which it waits
	behind               int8 // the ticket of that client's place
	note                 int8
	subscribed, hasRead  int8
	notes                int8 // tombstones that it is to be notified of
	free                 int8 // slots that it knows to be free
	old                  int8 // of these, those that have changed since
	claims               int8 // 1 + the slot of its claim
	late                 int8 // the slot has changed since the client knew it
	answer               int8
	early                int8 // claims out of turn
	unnotified           int8 // 1: it gets no notification of the end of the place it follows
	lost                 int8 // slots whose notification was lost
	paused, rounds       int8
	holds                int8 // 1 + its slot
	evicts, read         int8 // 1 + the client whose place it deletes once granted, and the ticket read there
	wrongs               int8 // 1: whose waiter was entitled to it when the claim was sent
}

const (
	semGranted int8 = 1 + iota
	semRefused
)

type semSlot struct {
	kind  int8 // none, held, tombstone, overdueLock, strayed
	freed int8 // the revision at which it became free
	quiet int8 // 1: no client was notified of that
}

type semState struct {
	next                                                     int8
	slots                                                    [maxSlots]semSlot
	crashes, losses, pauses, expires, giveups, strays, stale int8
	c                                                        [4]semWaiter
	wrong                                                    int8
}

const (
	wakeUps = "a free slot is known to a waiter that may claim it"
	below   = "a client has a slot below its number of permits"
)

func (c *semScope) number(i int8) int8 { return int8(c.numbers[i] - '0') }

func (c *semScope) system() system[semState] {
	s := semState{
		next: 1, crashes: c.crashes, losses: c.losses, pauses: c.pauses, expires: c.expires, giveups: c.giveups,
		strays: c.strays, stale: c.stale,
	}
	for i := range s.c {
		s.c[i].rounds = c.rounds
		if i >= len(c.numbers) {
			s.c[i] = semWaiter{phase: gone}
		}
	}
	return system[semState]{
		name: c.name, init: s, next: c.steps, records: c.records, canon: c.canon, broken: c.broken,
		goal: func(s semState) bool {
			for _, w := range s.c {
				if w.phase != gone && w.phase != dead {
					return false
				}
			}
			return true
		},
	}
}

func (c *semScope) canon(s *semState) {
	var revs []*int8
	for k := range s.slots {
		if x := &s.slots[k]; x.kind == held || x.kind == strayed {
			x.freed, x.quiet = 0, 0
		}
		revs = append(revs, &s.slots[k].freed)
	}
	for i := range s.c {
		w := &s.c[i]
		if w.place == 0 && (w.phase < queued || w.phase > heading) {
			w.ticket = 0
		}
		if w.follows == 0 {
			w.behind, w.note, w.unnotified = 0, 0, 0
		}
		if j := w.evicts - 1; j >= 0 && (s.c[j].place == 0 || s.c[j].ticket != w.read) {
			w.evicts, w.read, w.wrongs = 0, 0, 0
		}
		revs = append(revs, &w.ticket, &w.behind, &w.read)
	}
	s.next = renumber(revs...)
}

func (x semSlot) isFree() bool { return x.kind == none || x.kind == tombstone }

func (w *semWaiter) waits() bool { return w.phase >= queued && w.phase <= heading }

// able is the slots that a client may claim: those below its number.
func (c *semScope) able(i int8) int8 { return 1<<c.number(i) - 1 }

// acts says whether a client that runs is about to do something without a timer.
func (c *semScope) acts(s *semState) bool {
	for i := range int8(len(c.numbers)) {
		w := &s.c[i]
		switch {
		case w.claims != 0 && w.answer == 0:
			return true // the server is about to check it
		case w.paused == 1:
		case w.phase == queued, w.phase == arriving, w.phase == won, w.claims != 0,
			w.waits() && (w.note != nothing || w.place != 1),
			w.phase == heading && (w.subscribed == 0 || w.hasRead == 0 || w.notes != 0 || w.free&c.able(i) != 0):
			return true
		}
	}
	return false
}

func (c *semScope) broken(s semState) string {
	if s.wrong != 0 {
		return [...]string{"", fifo, exclusion, keepsPlace}[s.wrong]
	}
	var taken int8
	for i := range int8(len(c.numbers)) {
		if h := s.c[i].holds; h != 0 {
			switch {
			case taken&(1<<h) != 0:
				return exclusion
			case h > c.number(i):
				return below
			}
			taken |= 1 << h
		}
	}
	if c.acts(&s) {
		return ""
	}
	for k := range int8(maxSlots) {
		if s.slots[k].isFree() && s.slots[k].quiet == 0 && c.unclaimed(&s, k) {
			return wakeUps
		}
	}
	return ""
}

// unclaimed says whether a waiter could have the free slot k, and no client knows it.
// Exempt is a waiter behind one that knows of fewer slots, behind a client that does not run,
// behind a place that has ended, and behind a lost notification.
func (c *semScope) unclaimed(s *semState, k int8) bool {
	for i := range int8(len(c.numbers)) {
		if c.number(i) <= k || !s.c[i].waits() {
			continue
		}
		excused := false
		for j := range s.c {
			w := &s.c[j]
			if w.place == 0 && !w.waits() || w.ticket > s.c[i].ticket {
				continue
			}
			if !w.waits() || w.place != 1 || w.paused == 1 || w.unnotified == 1 || w.lost&(1<<k) != 0 || c.number(int8(j)) <= k {
				excused = true
			}
		}
		if !excused {
			return true
		}
	}
	return false
}

// change is a slot's new record. The knowledge that clients have of the slot is old now.
func (s *semState) change(k, kind int8) {
	bit := int8(1) << k
	s.slots[k] = semSlot{kind: kind}
	if kind == none || kind == tombstone || kind == overdueLock {
		s.slots[k].freed = s.next
		s.next++
	}
	for i := range s.c {
		w := &s.c[i]
		w.old |= w.free & bit
		if w.claims == k+1 && w.answer == 0 {
			w.late = 1
		}
		if kind == tombstone && w.subscribed == 1 {
			w.notes |= bit
		}
	}
}

// passes says whether i passes a waiter that runs by taking slot k. That waiter came before
// it, and had a place when the slot became free. It may know of fewer slots.
func (c *semScope) passes(s *semState, i, k int8) bool {
	me := &s.c[i]
	for j := range int8(len(c.numbers)) {
		w := &s.c[j]
		if j == i || w.place != 1 || w.paused == 1 || !w.waits() || w.answer == semGranted {
			continue
		}
		if me.phase == arriving && w.ticket < s.slots[k].freed || me.phase != arriving && w.ticket < me.ticket {
			return true
		}
	}
	return false
}

// last returns the latest place before a ticket, and its ticket: that of the waiter right before i.
func (c *semScope) last(s *semState, i, before int8) (who, ticket int8) {
	who = -1
	for j := range int8(len(c.numbers)) {
		w := s.c[j]
		if c.weak == semByNumber && c.number(j) < c.number(i) {
			continue
		}
		if j != i && w.place != 0 && w.ticket < before && w.ticket > ticket {
			who, ticket = j, w.ticket
		}
	}
	return who, ticket
}

// relist has a waiter list the queue, and follow the place right before its own.
func (c *semScope) relist(i int8) func(n *semState, w *semWaiter) {
	return func(n *semState, w *semWaiter) {
		w.note, w.unnotified = nothing, 0
		who, ticket := c.last(n, i, w.ticket)
		w.follows, w.behind, w.phase = who+1, ticket, heading
		if who >= 0 {
			w.phase = following
			w.leaveSlots()
		}
	}
}

// leaveSlots has a client forget the slots and end its subscription to them.
func (w *semWaiter) leaveSlots() {
	w.subscribed, w.hasRead, w.notes, w.free, w.old, w.lost = 0, 0, 0, 0, 0, 0
}

// headAtOnce is the shortcut past the list: the waiter right before it was granted, and no
// waiter was before that waiter.
func (w *semWaiter) headAtOnce() {
	if w.phase != heading {
		w.leaveSlots()
	}
	w.hasRead = 0
	w.phase, w.note, w.follows = heading, nothing, 0
}

// end notifies the waiters that follow i of the end of its place.
func (s *semState) end(i, note int8) {
	for j := range s.c {
		if w := &s.c[j]; w.waits() && w.follows == i+1 && w.behind == s.c[i].ticket {
			if w.note = note; note == nothing {
				w.unnotified = 1
			}
		}
	}
}

func (c *semScope) who(i int8) string { return fmt.Sprintf("%c(%d)", 'A'+i, c.number(i)) }

func (c *semScope) records(s semState) string {
	var b strings.Builder
	for k, x := range s.slots {
		fmt.Fprintf(&b, "%d: %s", k, [...]string{none: "none", held: "held", tombstone: "tombstone", overdueLock: "overdue", strayed: "stray"}[x.kind])
		if x.isFree() && x.freed > 0 {
			fmt.Fprintf(&b, " #%d", x.freed)
		}
		b.WriteString("; ")
	}
	b.WriteString("queue:")
	for i := range int8(len(c.numbers)) {
		if w := s.c[i]; w.place != 0 {
			fmt.Fprintf(&b, " %s#%d%s", c.who(i), w.ticket, [...]string{"", "", " overdue"}[w.place])
		}
	}
	return b.String()
}
