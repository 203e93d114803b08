package history

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/natslock/locks/internal/record"
)

const (
	// bypass is how long a client that has seen an empty queue may still pass waiters that
	// queue afterwards.
	bypass = 100 * time.Millisecond
	// idle is how long a lock has to be free before a waiter may take it out of turn. It equals
	// the lifetime of a tombstone.
	idle = time.Second
)

// shortest is the shortest TTL that check 6 assumes. A waiter that missed a notification
// learns of the change when it rereads the records that it waits for, which it does every 2.5
// to 3.5 s. It may claim a lock that a waiter ahead of it leaves idle for more than a second.
const shortest = 5 * time.Second

// place is a waiter's place in a queue.
type place struct {
	op     *Op
	number int   // the index of its ticket
	first  Entry // its first record, whose revision is the ticket
}

// order finds grants that passed a waiter that had waited longer. A grant of a mutex or to a
// writer must not pass any waiter, and a grant to a reader must not pass any writer. order
// excuses a claim of a lock that was idle or whose holder's lease had run out. A claim may
// pass a waiter that had left, that was dying without another renewal, or that had queued for
// less than [bypass] when the attempt was sent. [index.bound] judges the grants that a client
// makes on its own.
func (x *index) order(lock string) (found []Violation) {
	l := x.locks[lock]
	if l == nil {
		return nil
	}
	places := x.places(lock)
	tenures := x.tenures(lock, false)
	opens := x.opens(lock)
	ended := 0 // the places before this index are over
	var grants []*Op
	for _, op := range x.ops[lock] {
		if op.acquires() && op.Outcome == OK && opens[op.ID] {
			grants = append(grants, op)
		}
	}
	slices.SortFunc(grants, func(a, b *Op) int { return cmp.Compare(a.Token, b.Token) })
	for _, op := range grants {
		key := lock
		if op.Shared {
			key = "read." + encodedAs(lock) + "." + claimOf(op.ID)
		}
		at := record.TokenRevision(op.Token)
		granted, ok := x.before(key, at+1)
		if !ok || granted.Revision != at || granted.At < op.Call.At {
			continue // it shares a lease, or its record is unknown
		}
		for ended < len(places) {
			events := x.keys[places[ended].first.Key]
			if final := events[len(events)-1]; !final.Deleted && granted.At < final.ends() || final.Revision > granted.Revision {
				break
			}
			ended++
		}
		before, ok := x.before(lock, at)
		if !ok || before.Remade || granted.At >= before.ends() || before.Deleted && granted.At >= before.At+idle {
			continue
		}
		if x.h.Lossy && !before.Deleted { // it is unknown when the lock was freed, and a lock that has long been free may be taken out of turn
			continue
		}
		ticket := Ticket{Ticket: at}
		for _, t := range op.Tickets {
			if t.Ticket < at {
				ticket = t
			}
		}
		// The claim was sent before its place was written, but was applied afterward.
		queued, ok := x.before(x.waitKey(lock, ticket.ID), at)
		newcomer := !ok || granted.Since+time.Millisecond < queued.At
		for _, p := range places[ended:] {
			if p.first.Revision >= ticket.Ticket {
				break
			}
			if p.op.ID == op.ID || op.Shared && p.op.Shared || newcomer && p.first.At >= granted.Since-bypass ||
				served(tenures, p, granted.Revision) || !x.inGame(p, granted) {
				continue
			}
			found = append(found, Violation{Check: 5, Lock: lock, At: granted.At, What: fmt.Sprintf(
				"%s was granted at %d (ticket %d, sent at %v) before %s, which had queued with %d at %v", op.Client, at, ticket.Ticket, granted.Since,
				p.op.Client, p.first.Revision, p.first.At)})
			break
		}
	}
	return found
}

func (x *index) waitKey(lock, id string) string {
	switch _, role := lockOf(lock); role {
	case "rw":
		return "rwait." + encodedAs(lock) + "." + id
	case "sem":
		return "swait." + encodedAs(semaphoreOf(lock)) + "." + id
	}
	return "wait." + encodedAs(lock) + "." + id
}

// inGame reports whether a waiter was certainly at a place when the grant was written.
func (x *index) inGame(p place, granted Entry) bool {
	e, ok := x.before(p.first.Key, granted.Revision)
	if !ok || e.Deleted || granted.At >= e.ends() || p.op.end() <= granted.At {
		return false
	}
	if _, later := x.after(p.first.Key, granted.Revision); x.h.Lossy && !later {
		return false // the notification of its end may have been lost
	}
	first, events := p.first, x.keys[p.first.Key]
	newest := p.number == len(p.op.Tickets)-1
	if !newest && p.op.Tickets[p.number+1].Ticket < granted.Revision {
		return false
	}
	margin := min(first.TTL/10, time.Second)
	renewed := func(e Entry) bool { return e.Revision > granted.Revision && !e.Deleted }
	switch {
	case x.became(p, granted.Revision):
		return true
	case granted.At < first.Since+first.TTL-margin: // still in its first validity
		return true
	}
	return slices.ContainsFunc(events, renewed)
}

// interval is a period in which waiters are not required to get in.
type interval struct {
	from, until time.Duration
	id, owner   string
}

// busy returns the periods in which records under the keys were alive, in order.
func (x *index) busy(keys ...string) (list []interval) {
	for _, key := range keys {
		events := x.keys[key]
		for i, e := range events {
			if e.Deleted {
				continue
			}
			until := e.ends()
			if until != never {
				until += late
			}
			if i+1 < len(events) {
				until = min(until, events[i+1].At)
			}
			list = append(list, interval{e.At, until, e.ID, e.Owner})
		}
	}
	slices.SortFunc(list, func(a, b interval) int { return cmp.Compare(a.from, b.from) })
	return list
}

// patience is how long a client may wait for the answer to a lost request.
const patience = 2 * time.Second

// unanswered lists the disturbances that leave a client waiting for an answer that never
// arrives.
var unanswered = map[string]bool{"dropped": true, "answer lost": true, "read failed": true}

// interval returns the period in which a client could not work properly.
func (d Disturbance) interval() interval {
	until := d.Until
	switch {
	case until > d.From:
		until += time.Second // the time to reconnect
	case unanswered[d.What]:
		until += patience
	}
	return interval{from: d.From, until: until}
}

// disturbed returns the periods in which a client could not work properly.
func (x *index) disturbed(client string) (list []interval) {
	for _, d := range x.h.Disturbances {
		if d.Client == "" || d.Client == client {
			list = append(list, d.interval())
		}
	}
	return list
}

// waits finds acquires that waited for longer than the TTL plus a second although the stream
// shows that the lock was free for them and nothing disturbed their client.
func (x *index) waits() (found []Violation) {
	limit := max(x.h.TTL, shortest) + time.Second
	if x.h.TTL == 0 || x.h.Lossy {
		return nil
	}
	disturbed := map[string][]interval{}
	for _, d := range x.h.Disturbances {
		disturbed[d.Client] = append(disturbed[d.Client], d.interval())
	}
	for _, list := range disturbed {
		slices.SortFunc(list, func(a, b interval) int { return cmp.Compare(a.from, b.from) })
	}
	for lock, ops := range x.ops {
		var readers []interval
		if l := x.locks[lock]; l != nil {
			readers = x.busy(l.readers...)
		}
		gate := x.busy(lock)
		for _, op := range ops {
			from, until := op.Call.At, min(op.end(), x.h.Ended)
			if op.Do != Lock || op.Client == "" || op.Permits > 0 || until-from <= limit {
				continue
			}
			var in []interval
			add := func(list []interval) {
				// No interval of interest is longer than an hour, because leases and outages
				// are far shorter.
				i, _ := slices.BinarySearchFunc(list, from-time.Hour, func(v interval, at time.Duration) int { return cmp.Compare(v.from, at) })
				for _, v := range list[i:] {
					if v.from > until {
						break
					}
					if v.until > from && (v.id == "" || v.id != op.ID) {
						in = append(in, v)
					}
				}
			}
			add(gate)
			if !op.Shared {
				add(readers)
			}
			add(disturbed[op.Client])
			add(disturbed[""])
			slices.SortFunc(in, func(a, b interval) int { return cmp.Compare(a.from, b.from) })
			free := from
			for _, v := range append(in, interval{from: until, until: until}) {
				if v.from-free > limit {
					found = append(found, Violation{Check: 6, Lock: lock, At: v.from, What: fmt.Sprintf(
						"%s waited from %v to %v, undisturbed, for a free lock (called at %v)", op.Client, free, v.from, op.Call.At)})
					break
				}
				free = max(free, v.until)
			}
		}
	}
	return found
}
