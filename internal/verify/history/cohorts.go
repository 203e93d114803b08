package history

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/natslock/locks/internal/record"
)

const (
	// silence is how long a client may be unaware of a place. A client trusts a list of the
	// queue for a second, and a busy machine may add to that.
	silence = 1500 * time.Millisecond
	// unlisted is how much longer a client without a list may use a lingering lease.
	unlisted = 4 * time.Second
	// forgotten is how long a client may ignore a place after a forged notification of its end.
	forgotten = 20 * time.Second
	// leaving is how long a goroutine that gives up may take to return.
	leaving = time.Second
	// noted is how late a call may be recorded on a busy machine.
	noted = time.Second
)

// tenure is a cohort's lease. A cohort consists of the goroutines of one client that want a
// lock in the same mode with the same options. A tenure is named after its claim.
type tenure struct {
	Entry          // its first record
	holds  []*Hold // in the order in which they were served
	place  Ticket  // the place it was granted from; zero if unknown
	direct bool    // it never queued
}

// from returns when the first holder was granted the lock.
func (t *tenure) from() time.Duration { return t.holds[0].From.At }

// tenures returns the leases of a lock or slot in the order of their records. If shared is
// true it returns only readers' leases, and otherwise only the others.
func (x *index) tenures(lock string, shared bool) (list []*tenure) {
	byClaim := map[string]*tenure{}
	keys := []string{lock}
	if shared {
		if keys = nil; x.locks[lock] != nil {
			keys = x.locks[lock].readers
		}
	}
	for _, key := range keys {
		for _, e := range x.keys[key] {
			if e.Deleted || e.ID == "" || byClaim[e.ID] != nil {
				continue
			}
			byClaim[e.ID] = &tenure{Entry: e}
			list = append(list, byClaim[e.ID])
		}
	}
	slices.SortFunc(list, func(a, b *tenure) int { return cmp.Compare(a.Revision, b.Revision) })
	ops := map[string]*Op{}
	for _, op := range x.ops[lock] {
		if op.acquires() && op.ID != "" {
			ops[op.ID] = op
		}
	}
	for _, h := range x.holds[lock] {
		t := byClaim[h.claim()]
		if t == nil || h.Shared != shared {
			continue
		}
		t.holds = append(t.holds, h)
		op := ops[h.ID]
		if len(t.holds) > 1 && h.local() || op == nil {
			continue
		}
		t.direct = len(op.Tickets) == 0
		for _, ticket := range op.Tickets {
			if ticket.Ticket != 0 && ticket.Ticket < t.Revision { // otherwise it joined a lease, not a place
				t.place = ticket
			}
		}
	}
	return list
}

// passed reports whether the lease was granted ahead of p. [index.order] judges whether that
// was allowed.
func (t *tenure) passed(p place) bool {
	return p.first.Revision < t.Revision && (t.place.ID == "" || p.first.Revision < t.place.Ticket)
}

// opens returns the ids of the holders that began a lease. Every other holder got the lock from
// its predecessor.
func (x *index) opens(locks ...string) map[string]bool {
	ids := map[string]bool{}
	for _, lock := range locks {
		for _, t := range append(x.tenures(lock, false), x.tenures(lock, true)...) {
			for i, h := range t.holds {
				if i == 0 || !h.local() {
					ids[h.ID] = true
				}
			}
		}
	}
	return ids
}

// served reports whether the cohort that waited at a place may have been granted the lock
// before the given revision, in which case it no longer waits there.
func served(tenures []*tenure, p place, revision uint64) bool {
	i, _ := slices.BinarySearchFunc(tenures, p.first.Revision, func(t *tenure, at uint64) int { return cmp.Compare(t.Revision, at) })
	for _, t := range tenures[i:] {
		if t.Revision >= revision {
			break
		}
		if t.Owner == p.first.Owner && !t.direct && (t.place.ID == "" || t.place.ID == p.first.ID) {
			return true
		}
	}
	return false
}

// notice returns how long a holder's client may have been unaware of a foreign place when the
// holder asked. The time is longer if the lease was idle and the history is not calm.
func (x *index) notice(h *Hold) time.Duration {
	notice := cmp.Or(x.h.Notice, silence)
	if x.h.Calm {
		return notice
	}
	for _, other := range x.holds[h.Lock] {
		if other.claim() == h.claim() && other.From.compare(h.Asked) < 0 && (other.Unlock.zero() || other.Unlock.compare(h.Asked) > 0) {
			return notice
		}
	}
	return notice + unlisted
}

// bound finds goroutines that were served ahead of a foreign place. The first goroutine of a
// cohort is served because of the cohort's own place in the queue. While a foreign place is
// waiting, the cohort may then serve goroutines that asked before the place could be known, and
// others for the length of one turn. Every place except the cohort's own is foreign. For
// readers, only the places and gates of writers matter, and the turn ends when a writer queues
// after the grant.
func (x *index) bound(lock string, locks ...string) (found []Violation) {
	if x.h.Lossy {
		return nil
	}
	var exclusive []*tenure
	var holds []*Hold
	of := map[string]*tenure{}
	for _, l := range locks {
		list := x.tenures(l, false)
		exclusive = append(exclusive, list...)
		for _, t := range append(list, x.tenures(l, true)...) {
			of[t.ID] = t
		}
		holds = append(holds, x.holds[l]...)
	}
	slices.SortStableFunc(holds, func(a, b *Hold) int { return a.From.compare(b.From) })
	slices.SortFunc(exclusive, func(a, b *tenure) int { return cmp.Compare(a.Revision, b.Revision) })
	before := map[*tenure]*Hold{}
	waiting, places := []place(nil), x.places(locks...)
	for _, h := range holds {
		for len(places) > 0 && places[0].first.At < h.From.At {
			waiting = append(waiting, places[0])
			places = places[1:]
		}
		now := Entry{At: h.From.At, Revision: x.revisionAt(h.From.At) + 1}
		waiting = slices.DeleteFunc(waiting, func(p place) bool {
			e, ok := x.before(p.first.Key, now.Revision)
			return !ok || e.Deleted || p.op.end() <= now.At
		})
		t := of[h.claim()]
		if t == nil {
			continue
		}
		inTurn := x.inTurn(t, before[t], h)
		before[t] = h
		if h == t.holds[0] || !h.local() || h.Client == "" || x.misled(h.Client, h.Asked.At) || x.misled(h.Client, h.From.At) {
			continue
		}
		known := func(e Entry) bool { return e.At+x.notice(h) < h.Asked.At }
		if gate, ok := x.before(h.Lock, now.Revision); h.Shared && ok && !gate.Deleted && now.At < gate.ends() {
			if first := x.claims[gate.ID]; len(first) > 0 && first[0].Revision > t.Revision && known(first[0]) {
				found = append(found, Violation{Check: 5, Lock: lock, At: h.From.At, What: fmt.Sprintf(
					"%s, called at %v, read in the lease of %s, joined at %v, behind the gate of %v at %d",
					h.Client, h.Asked.At, short(t.ID), t.At, first[0].At, first[0].Revision)})
				continue
			}
		}
		n, slot := slotOf(h.Lock)
		for _, p := range waiting {
			switch {
			case p.op.Shared && h.Shared, slot && n >= p.op.Permits, own(p.op, h):
				continue
			case inTurn && (!h.Shared || p.first.Revision < t.Revision):
				continue
			case !known(p.first), t.passed(p) && h.Asked.At <= t.from():
				continue
			case served(exclusive, p, now.Revision), !x.inGame(p, now):
				continue
			}
			found = append(found, Violation{Check: 5, Lock: lock, At: h.From.At, What: fmt.Sprintf(
				"%s, called at %v, was served in the lease of %s, granted at %v, before %s, which had queued with %d at %v",
				h.Client, h.Asked.At, short(t.ID), t.from(), p.op.Client, p.first.Revision, p.first.At)})
			break
		}
	}
	return found
}

// own reports whether a place belongs to the holder's cohort.
func own(op *Op, h *Hold) bool {
	return op.Client == h.Client && op.Shared == h.Shared && op.Cohort == h.Cohort
}

// inTurn reports whether a cohort granted the lock to h on its own during its lease's turn.
func (x *index) inTurn(t *tenure, before, h *Hold) bool {
	ends := t.from() + x.h.Turn
	if x.h.Turn > 0 && h.From.At < ends {
		return true
	}
	// The previous holder unlocked in time, but h had to wait for a new revision because the
	// tokens had run out.
	return h.Token%record.GrantsPerRevision == 0 && before != nil && before.Unlock.At < ends
}

// exact finds goroutines that overtook others: each called after the others had queued, but
// was granted the lock first. It applies only if nothing fails and clients have no turns,
// because then each goroutine that wants a mutex or a write lock has its own place. A
// goroutine that has not queued yet may be passed: it may repeatedly find the lock free and
// still lose the race for it.
func (x *index) exact(lock string) (found []Violation) {
	if !x.h.Calm || x.h.Turn > 0 {
		return nil
	}
	of := map[string]*tenure{}
	for _, t := range x.tenures(lock, false) {
		of[t.ID] = t
	}
	type waiter struct {
		*Op
		since time.Duration
		place Entry
	}
	var waiting []waiter
	for _, p := range x.places(lock) {
		if p.number == len(p.op.Tickets)-1 {
			waiting = append(waiting, waiter{p.op, max(p.op.Call.At, p.first.At), p.first})
		}
	}
	slices.SortStableFunc(waiting, func(a, b waiter) int { return cmp.Compare(a.since, b.since) })
	for _, h := range x.holds[lock] {
		for len(waiting) > 0 && waiting[0].end() <= h.From.At {
			waiting = waiting[1:]
		}
		t := of[h.claim()]
		if t == nil {
			continue
		}
		notice := x.h.Notice
		if t.place.ID == "" { // it may never have queued
			notice += bypass
		}
		for _, w := range waiting {
			if w.since+notice >= h.Asked.At {
				break
			}
			if w.end() <= h.From.At {
				continue
			}
			// A goroutine that gives up returns once its place has ended, or a little later.
			if e, ok := x.before(w.place.Key, x.revisionAt(h.From.At)+1); w.Outcome != OK && (!ok || e.Deleted || e.ID != w.place.ID) {
				continue
			}
			found = append(found, Violation{Check: 5, Lock: lock, At: h.From.At, What: fmt.Sprintf(
				"%s, called at %v, was granted token %d before %s, called at %v and queued at %v",
				h.Client, h.Asked.At, h.Token, w.Client, w.Call.At, w.since)})
			break
		}
	}
	return found
}

// cohort identifies goroutines of one client that must be served in the order in which they
// asked.
type cohort struct {
	client, options string
	shared          bool
	permits         int
	claim           string // the lease's claim, if only that lease is judged
}

// fifo finds goroutines that were granted a lock while another goroutine of their cohort, which
// had asked earlier, was still waiting. If anything may fail, it compares only the goroutines
// of one lease, because a client may then have several claims, some of them unanswered.
func (x *index) fifo(lock string, ops []*Op) (found []Violation) {
	cohorts := map[cohort][]*Op{}
	for _, op := range ops { // in the order of the calls
		if op.Do == Lock && op.Client != "" && op.Cohort != Alone && (x.h.Calm || op.ID != "") {
			c := cohort{op.Client, op.Cohort, op.Shared, op.Permits, ""}
			if !x.h.Calm {
				c.claim = claimOf(op.ID)
			}
			cohorts[c] = append(cohorts[c], op)
		}
	}
	ask := time.Duration(0)
	if x.h.Notice == 0 { // the history uses the machine's clock
		ask = noted
	}
	waited := func(op *Op) time.Duration {
		switch {
		case op.Return.zero():
			return never
		case op.Outcome == OK:
			return op.Return.At
		}
		return op.Return.At - leaving
	}
	for c, ops := range cohorts {
		together := time.Duration(0)
		if c.shared || c.permits > 1 { // goroutines that enter together may return in any order
			together = ask + x.h.Notice
		}
		var last *Op // the goroutine that waited longest among those that asked earlier
		earlier := ops
		for _, op := range ops {
			for ; len(earlier) > 0 && earlier[0].Call.At+ask < op.Call.At; earlier = earlier[1:] {
				if last == nil || waited(earlier[0]) > waited(last) {
					last = earlier[0]
				}
			}
			if last != nil && op.Outcome == OK && op.Return.At+together < waited(last) {
				found = append(found, Violation{Check: 5, Lock: lock, At: op.Return.At, What: fmt.Sprintf(
					"%s, called at %v, was granted token %d at %v before another of its goroutines, called at %v, which waited until %v",
					op.Client, op.Call.At, op.Token, op.Return.At, last.Call.At, last.end())})
			}
		}
	}
	return found
}

// outOfLine finds undisturbed acquires that waited for longer than the TTL plus a second while
// their client had neither a place nor a lease in their mode. In the meantime, others could
// have taken the lock any number of times.
func (x *index) outOfLine(lock string, ops []*Op, locks ...string) (found []Violation) {
	limit := max(x.h.TTL, shortest) + time.Second
	if x.h.TTL == 0 || x.h.Lossy {
		return nil
	}
	type line struct {
		client string
		shared bool
	}
	clients := map[string]string{} // by the id that records show
	own := func(client, id string) {
		for _, e := range x.claims[id] {
			clients[e.Owner] = client
		}
	}
	for _, op := range ops {
		if op.acquires() { // a break names another client's lease
			own(op.Client, claimOf(op.ID))
		}
		for _, t := range op.Tickets {
			own(op.Client, t.ID)
		}
	}
	lines := map[line][]interval{}
	add := func(shared bool, key string) {
		for _, v := range x.busy(key) {
			l := line{clients[v.owner], shared}
			lines[l] = append(lines[l], v)
		}
	}
	for _, lock := range locks {
		add(false, lock)
		if l := x.locks[lock]; l != nil {
			for _, key := range l.readers {
				add(true, key)
			}
			for _, key := range l.places {
				add(x.keys[key][0].Shared, key)
			}
		}
	}
	for _, op := range ops {
		from, until := op.Call.At, min(op.end(), x.h.Ended)
		if op.Do != Lock || op.Client == "" || until-from <= limit {
			continue
		}
		if gap, ok := longer(limit, from, until, lines[line{op.Client, op.Shared}], x.disturbed(op.Client)); ok {
			found = append(found, Violation{Check: 6, Lock: lock, At: gap.until, What: fmt.Sprintf(
				"%s waited from %v to %v, undisturbed, with no place in the queue and no lease (called at %v)", op.Client, gap.from, gap.until, op.Call.At)})
		}
	}
	return found
}

// shown finds records that name a holder or count grants that their claim never had, and
// tombstones that leave out some of the grants.
func (x *index) shown(lock string) (found []Violation) {
	holders := map[string][]*Hold{}
	for _, h := range x.holds[lock] {
		if !h.Shared && h.Client != "" {
			holders[h.claim()] = append(holders[h.claim()], h)
		}
	}
	for _, e := range x.keys[lock] {
		all := holders[e.ID]
		if len(all) == 0 || e.Token == 0 || e.Status != statusHeld && e.Status != statusGone {
			continue
		}
		count, known := uint64(0), e.Token == record.Token(record.TokenRevision(all[0].Token), 0)
		for _, h := range all {
			if h.From.At <= e.At {
				count, known = count+1, known || h.Token == e.Token
			}
		}
		why := ""
		switch shows := max(e.Grants, 1); {
		case count > 0 && (shows > count || e.Deleted && shows < count):
			why = fmt.Sprintf("counts %d grants of %d", shows, count)
		case !known:
			why = fmt.Sprintf("has token %d, which no holder had", e.Token)
		default:
			continue
		}
		found = append(found, Violation{Check: 2, Lock: lock, At: e.At, What: fmt.Sprintf("the record %d of %s %s", e.Revision, short(e.ID), why)})
	}
	return found
}

// misled reports whether a client recently got a forged notification about a place.
func (x *index) misled(client string, at time.Duration) bool {
	list := x.forged[client]
	i, _ := slices.BinarySearch(list, at-forgotten)
	return i < len(list) && list[i] <= at
}

// revisionAt returns the stream's last revision at a given time.
func (x *index) revisionAt(at time.Duration) uint64 {
	i, _ := slices.BinarySearchFunc(x.h.Stream, at, func(e Entry, at time.Duration) int {
		if e.At <= at {
			return -1
		}
		return 1
	})
	if i == 0 {
		return 0
	}
	return x.h.Stream[i-1].Revision
}

// places returns the places in the queue of a lock, or of slots, that goroutines knew to be
// theirs, in ticket order. The goroutines of a cohort share a place.
func (x *index) places(locks ...string) (list []place) {
	for _, lock := range locks {
		for _, op := range x.ops[lock] {
			for i, t := range op.Tickets {
				key := x.waitKey(lock, t.ID)
				// If the place ended before its owner learned of it, this is not the key's first
				// record.
				if first, ok := x.before(key, t.Ticket+1); ok && t.Ticket > 0 && first.Revision == t.Ticket {
					list = append(list, place{op, i, first})
				}
			}
		}
	}
	slices.SortStableFunc(list, func(a, b place) int { return cmp.Compare(a.first.Revision, b.first.Revision) })
	return list
}

// became reports whether a place's cohort was granted the lock after the given revision, while
// the place was first in the queue.
func (x *index) became(p place, revision uint64) bool {
	return slices.ContainsFunc(x.keys[p.first.Key], func(e Entry) bool {
		return e.Revision > revision && e.Deleted && e.Status == statusGranted && e.ID == p.first.ID
	})
}
