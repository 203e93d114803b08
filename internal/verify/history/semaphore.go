package history

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/natslock/locks/internal/record"
)

// slotKey returns the key of slot n, given the semaphore's [gateKey].
func slotKey(gate string, n int) string { return gate + "." + strconv.Itoa(n) }

// slotOf returns the number of a slot, or false for other locks. A semaphore's name in a
// history must not end like a slot's key.
func slotOf(lock string) (n int, ok bool) {
	if !strings.HasPrefix(lock, "sem.") {
		return 0, false
	}
	n, err := strconv.Atoi(lock[strings.LastIndexByte(lock, '.')+1:])
	return n, err == nil
}

// semaphoreOf returns the [gateKey] of the semaphore to which a lock belongs, or "".
func semaphoreOf(lock string) string {
	if _, ok := slotOf(lock); ok {
		return lock[:strings.LastIndexByte(lock, '.')]
	}
	if strings.HasPrefix(lock, "sem.") {
		return lock
	}
	return ""
}

// semaphores checks each semaphore against the rules that concern all of its slots.
func (x *index) semaphores() (found []Violation) {
	all, locks := map[string][]*Op{}, map[string][]string{}
	for lock, ops := range x.ops {
		if s := semaphoreOf(lock); s != "" {
			all[s], locks[s] = append(all[s], ops...), append(locks[s], lock)
		}
	}
	for s, ops := range all {
		for _, op := range ops {
			if n, ok := slotOf(op.Lock); ok && op.Permits > 0 && n >= op.Permits {
				found = append(found, Violation{Check: 1, Lock: s, At: op.Return.At, What: fmt.Sprintf(
					"%s has slot %d of %d", op.Client, n, op.Permits)})
			}
		}
		slices.SortStableFunc(ops, func(a, b *Op) int { return a.Call.compare(b.Call) })
		found = append(found, x.slotOrder(s, ops, x.opens(locks[s]...), x.places(locks[s]...))...)
		found = append(found, x.bound(s, locks[s]...)...)
		found = append(found, x.fifo(s, ops)...)
		found = append(found, x.outOfLine(s, ops, append(slices.DeleteFunc(locks[s], func(lock string) bool { return lock == s }), s)...)...)
		found = append(found, x.slotWaits(s, ops)...)
	}
	return found
}

// slotOrder finds grants of slots that passed a goroutine that had waited longer, no matter
// which slots that goroutine knew. It excuses the same grants as [index.order].
func (x *index) slotOrder(s string, ops []*Op, opens map[string]bool, places []place) (found []Violation) {
	for _, op := range ops {
		if _, ok := slotOf(op.Lock); !ok || !op.acquires() || op.Outcome != OK || !opens[op.ID] {
			continue
		}
		at := record.TokenRevision(op.Token)
		granted, ok := x.before(op.Lock, at+1)
		if !ok || granted.Revision != at || granted.At < op.Call.At {
			continue // its record is unknown
		}
		before, ok := x.before(op.Lock, at)
		if !ok || before.Remade || granted.At >= before.ends() || before.Deleted && granted.At >= before.At+idle {
			continue
		}
		ticket := Ticket{Ticket: at}
		for _, t := range op.Tickets {
			if t.Ticket < at {
				ticket = t
			}
		}
		queued, ok := x.before(x.waitKey(s, ticket.ID), at)
		newcomer := !ok || granted.Since+time.Millisecond < queued.At
		for _, p := range places {
			switch {
			case p.first.Revision >= ticket.Ticket || p.op == op:
				continue
			case newcomer && p.first.At >= granted.Since-bypass:
				continue
			case p.op.Outcome == OK && record.TokenRevision(p.op.Token) < at, !x.inGame(p, granted):
				continue // it has been granted, or has left
			}
			found = append(found, Violation{Check: 5, Lock: op.Lock, At: granted.At, What: fmt.Sprintf(
				"%s was granted at %d (ticket %d, sent at %v) before %s, which had queued with %d at %v", op.Client, at, ticket.Ticket, granted.Since,
				p.op.Client, p.first.Revision, p.first.At)})
			break
		}
	}
	return found
}

// slotWaits finds undisturbed acquires that missed a free slot. Either a single slot known to
// all clients stayed free for longer than the TTL plus a second, or some such slot was free at
// every moment for twice as long. The second limit is longer because each time a slot is
// granted to another waiter, the acquire's timer for that slot restarts; see [index.waits].
func (x *index) slotWaits(s string, ops []*Op) (found []Violation) {
	limit := max(x.h.TTL, shortest) + time.Second
	if x.h.TTL == 0 || x.h.Lossy {
		return nil
	}
	var slots [][]interval              // when each slot was taken
	taken := map[int][]interval{0: nil} // when all slots below a number were taken
	known := math.MaxInt                // all clients know the slots below this number
	for _, op := range ops {
		if op.Permits > 0 {
			known = min(known, op.Permits)
		}
	}
	for _, op := range ops {
		from, until := op.Call.At, min(op.end(), x.h.Ended)
		if op.Do != Lock || op.Client == "" || until-from <= limit {
			continue
		}
		for n := len(slots); n < min(known, op.Permits); n++ {
			slots = append(slots, x.busy(slotKey(s, n)))
			taken[n+1] = slots[n]
			if n > 0 {
				taken[n+1] = both(taken[n], slots[n])
			}
		}
		disturbed := x.disturbed(op.Client)
		report := func(gap interval, which string) {
			found = append(found, Violation{Check: 6, Lock: s, At: gap.until, What: fmt.Sprintf(
				"%s waited from %v to %v, undisturbed, for one of %d slots, of which %s was free (called at %v)",
				op.Client, gap.from, gap.until, known, which, op.Call.At)})
		}
		if gap, ok := longer(limit*2, from, until, taken[min(known, op.Permits)], disturbed); ok {
			report(gap, "at least one")
			continue
		}
		for n := range min(known, op.Permits) {
			if gap, ok := longer(limit, from, until, slots[n], disturbed); ok {
				report(gap, "slot "+strconv.Itoa(n))
				break
			}
		}
	}
	return found
}

// longer returns the first interval between from and until that is longer than limit and not
// covered by any of the lists.
func longer(limit, from, until time.Duration, lists ...[]interval) (gap interval, ok bool) {
	in := []interval{{from: until, until: until}}
	for _, list := range lists {
		for _, v := range list {
			if v.until > from && v.from < until {
				in = append(in, v)
			}
		}
	}
	slices.SortFunc(in, func(a, b interval) int { return cmp.Compare(a.from, b.from) })
	free := from
	for _, v := range in {
		if end := min(v.from, until); end-free > limit {
			return interval{from: free, until: end}, true
		}
		free = max(free, v.until)
	}
	return gap, false
}

// both returns the intersection of two lists of intervals.
func both(a, b []interval) (list []interval) {
	for i, j := 0, 0; i < len(a) && j < len(b); {
		if from, until := max(a[i].from, b[j].from), min(a[i].until, b[j].until); from < until {
			list = append(list, interval{from: from, until: until})
		}
		if a[i].until < b[j].until {
			i++
		} else {
			j++
		}
	}
	return list
}
