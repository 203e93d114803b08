package history

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/natslock/locks/internal/record"
)

const (
	// silence is how long a client may go without knowing of a place. It believes a list
	// of the queue for a second. A busy machine may take a while longer.
	silence = 1500 * time.Millisecond
	// unlisted is how much longer a client uses a lease that lingers without a list.
	unlisted = 4 * time.Second
	// forgotten is for how long the forged end of a place makes a client forget the place.
	forgotten = 20 * time.Second
)

// run is the claim of a run: its record, its holders, and the place it was granted from.
type run struct {
	Entry                // the first record
	client string        // "": it had no holder that was recorded
	from   time.Duration // when its first holder was granted
	last   *Hold
	place  Ticket // the zero ticket: not known
	direct bool   // it never queued
}

// runs are the claims on a lock, in the order of their records.
func (x *index) runs(lock string) (list []*run) {
	byClaim := map[string]*run{}
	for _, e := range x.keys[lock] {
		if e.Deleted || e.ID == "" || byClaim[e.ID] != nil {
			continue
		}
		byClaim[e.ID] = &run{Entry: e}
		list = append(list, byClaim[e.ID])
	}
	ops := map[string]*Op{}
	for _, op := range x.ops[lock] {
		if op.acquires() && op.ID != "" {
			ops[op.ID] = op
		}
	}
	for _, h := range x.holds[lock] {
		r, op := byClaim[h.claim()], ops[h.ID]
		if r == nil || h.Shared {
			continue
		}
		if r.client == "" {
			r.from, r.client = h.From.At, h.Client
		}
		if !h.local() && op != nil {
			r.direct = len(op.Tickets) == 0
			for _, t := range op.Tickets {
				if t.Ticket != 0 && t.Ticket < r.Revision { // it joined a lease, and not a place
					r.place = t
				}
			}
		}
	}
	return list
}

// served says whether the run that waited at a place may have been granted before a
// revision: then it stands there no more.
func served(runs []*run, p place, revision uint64) bool {
	i, _ := slices.BinarySearchFunc(runs, p.first.Revision, func(r *run, at uint64) int { return cmp.Compare(r.Revision, at) })
	for _, r := range runs[i:] {
		if r.Revision >= revision {
			break
		}
		if r.Owner == p.first.Owner && !r.direct && (r.place.ID == "" || r.place.ID == p.first.ID) {
			return true
		}
	}
	return false
}

// notice is for how long the client of a holder need not have known of another client's
// place when the holder asked. Where anything fails, it is longer for an idle lease.
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

// joined finds goroutines that were served in a run before another client that had
// queued when they asked. A run takes such goroutines only in its turn, or while its
// client cannot know better.
func (x *index) joined(lock string) (found []Violation) {
	if x.h.Lossy {
		return nil
	}
	runs := x.runs(lock)
	of := map[string]*run{}
	for _, r := range runs {
		of[r.ID] = r
	}
	waiting, places := []place(nil), x.places(lock)
	for _, h := range x.holds[lock] { // in the order of the grants
		for len(places) > 0 && places[0].first.At < h.From.At {
			waiting = append(waiting, places[0])
			places = places[1:]
		}
		now := Entry{At: h.From.At, Revision: x.revisionAt(h.From.At) + 1}
		waiting = slices.DeleteFunc(waiting, func(p place) bool {
			e, ok := x.before(p.first.Key, now.Revision)
			return !ok || e.Deleted || p.op.end() <= now.At
		})
		r := of[h.claim()]
		if r == nil || x.inTurn(r, h) || !h.local() || h.Client == "" || x.misled(h.Client, h.Asked.At) {
			continue
		}
		for _, p := range waiting {
			switch {
			case p.op.Client == h.Client, p.first.At+x.notice(h) >= h.Asked.At:
				continue // it could not be known
			case h.Asked.At <= r.from && p.first.Revision < r.Revision && (r.place.ID == "" || p.first.Revision < r.place.Ticket):
				continue // its run itself has passed: see [index.order]
			case served(runs, p, now.Revision), !x.inGame(p, now):
				continue
			}
			found = append(found, Violation{Check: 5, Lock: lock, At: h.From.At, What: fmt.Sprintf(
				"%s, called at %v, was served in the run of %s, granted at %v, before %s, who had queued with %d at %v",
				h.Client, h.Asked.At, short(r.ID), r.from, p.op.Client, p.first.Revision, p.first.At)})
			break
		}
	}
	return found
}

// beside finds readers that joined other readers of their client behind a writer. The
// writer had queued, or taken the gate, after the join of those readers and before the
// call.
func (x *index) beside(lock string) (found []Violation) {
	if x.h.Lossy {
		return nil
	}
	for _, h := range x.holds[lock] {
		records := x.claims[h.claim()]
		if !h.Shared || !h.local() || h.Client == "" || len(records) == 0 || x.misled(h.Client, h.Asked.At) {
			continue
		}
		known := func(writer Entry) bool {
			return writer.Revision > records[0].Revision && writer.At+x.notice(h) < h.Asked.At
		}
		report := func(what string, writer Entry) {
			found = append(found, Violation{Check: 5, Lock: lock, At: h.From.At, What: fmt.Sprintf(
				"%s, called at %v, read in the lease of %s, joined at %v, behind a %s of %v at %d",
				h.Client, h.Asked.At, short(h.claim()), records[0].At, what, writer.At, writer.Revision)})
		}
		now := Entry{At: h.From.At, Revision: x.revisionAt(h.From.At) + 1}
		if gate, ok := x.before(lock, now.Revision); ok && !gate.Deleted && now.At < gate.ends() {
			if first := x.claims[gate.ID]; len(first) > 0 && known(first[0]) {
				report("gate", first[0])
				continue
			}
		}
		for _, p := range x.places(lock) {
			if !p.op.Shared && p.op.Client != h.Client && known(p.first) && x.inGame(p, now) {
				report("place", p.first)
				break
			}
		}
	}
	return found
}

// calls finds goroutines that were granted a lock before others that had queued when they
// called, where nothing fails. A goroutine that has not queued yet may be passed: it may
// find the lock free again and again, and others may be quicker.
func (x *index) calls(lock string) (found []Violation) {
	if !x.h.Calm {
		return nil
	}
	of := map[string]*run{}
	for _, r := range x.runs(lock) {
		of[r.ID] = r
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
		r := of[h.claim()]
		if r == nil || x.inTurn(r, h) {
			continue
		}
		notice := x.h.Notice
		if r.place.ID == "" { // it may never have queued
			notice += bypass
		}
		for _, w := range waiting {
			if w.since+notice >= h.Asked.At {
				break
			}
			if w.end() <= h.From.At {
				continue
			}
			// One that gives up returns when its place is gone, or a little later.
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

// inTurn says whether a client has granted the lock by itself in the turn of a run. The
// holders of a run have to be asked about in order.
func (x *index) inTurn(r *run, h *Hold) bool {
	before := r.last
	r.last = h
	ends := r.from + x.h.Turn
	switch {
	case !h.local():
		return false
	case x.h.Turn > 0 && h.From.At < ends:
		return true
	}
	// Its turn came in time. It has waited for a revision, for more tokens.
	return h.Token%record.GrantsPerRevision == 0 && before != nil && before.Unlock.At < ends
}

// shown finds records that show holders that their claim has not had, and tombstones that
// do not count all of them.
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
			why = fmt.Sprintf("has the token %d, which no holder had", e.Token)
		default:
			continue
		}
		found = append(found, Violation{Check: 2, Lock: lock, At: e.At, What: fmt.Sprintf("the record %d of %s %s", e.Revision, short(e.ID), why)})
	}
	return found
}

// misled says whether a client got a forged notification of a place shortly before.
func (x *index) misled(client string, at time.Duration) bool {
	list := x.forged[client]
	i, _ := slices.BinarySearch(list, at-forgotten)
	return i < len(list) && list[i] <= at
}

// revisionAt returns the last revision of the stream up to a time.
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

// places are the places in the queue of a lock that goroutines knew to be theirs, in the
// order of the tickets. Those of one run have the same one.
func (x *index) places(lock string) (list []place) {
	for _, op := range x.ops[lock] {
		for i, t := range op.Tickets {
			key := x.waitKey(lock, t.ID)
			// It is not the key's first record if that had gone before it was known.
			if first, ok := x.before(key, t.Ticket+1); ok && t.Ticket > 0 && first.Revision == t.Ticket {
				list = append(list, place{op, i, first})
			}
		}
	}
	slices.SortStableFunc(list, func(a, b place) int { return cmp.Compare(a.first.Revision, b.first.Revision) })
	return list
}

// became says whether a place was the first one when its run was granted the lock, after
// a revision.
func (x *index) became(p place, revision uint64) bool {
	return slices.ContainsFunc(x.keys[p.first.Key], func(e Entry) bool {
		return e.Revision > revision && e.Deleted && e.Status == statusGranted && e.ID == p.first.ID
	})
}
