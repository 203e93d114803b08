package admin

import (
	"cmp"
	"container/heap"
	"context"
	"iter"
	"slices"
	"time"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
)

// EventGap marks a gap: some changes between its Time and its Until are missing. If the event has no
// name, the missing changes are writes to the bucket that may concern any lock. If it has a name, they
// are changes that the lock's own records prove to be missing.
const EventGap = EventWatching + 1

// historyLead is how far before the caller's start time a history is read. The records from that period
// identify the holders whose ends follow.
const historyLead = time.Hour

// History yields the changes to the locks whose names match pattern, starting at since, as far back as
// the bucket's history still has them. A zero since means to start with the first change.
func (a *Admin) History(ctx context.Context, pattern string, since time.Time) iter.Seq2[Change, error] {
	return func(yield func(Change, error) bool) {
		holders, readers, waiters, err := record.KeyPatterns(pattern)
		var h *kvstore.History
		if err == nil {
			h, err = a.b.History(ctx)
		}
		if err != nil {
			yield(Change{}, err)
			return
		}
		begin := since
		if !since.IsZero() {
			begin = since.Add(-historyLead)
		}
		r := replay{live: make(map[string]record.Entry), since: since, yield: func(c Change) bool { return yield(c, nil) }}
		if since.Before(h.Begin) {
			r.add(Change{Type: EventGap, Time: since, Until: h.Begin})
		}
		for hr, err := range h.Read(ctx, slices.Concat(holders, readers, waiters), begin) {
			if err != nil {
				yield(Change{}, err)
				return
			}
			if !r.next(hr) {
				return
			}
		}
		r.end(h)
	}
}

// replay turns the writes of a history into changes to locks, as a watch does with notifications.
type replay struct {
	yield func(Change) bool
	since time.Time
	live  map[string]record.Entry
	ends  ends
	held  []*Change // in order, but not yet yielded, because a TTL that ended earlier may still turn up
	last  time.Time
	// missing holds the intervals of revisions in which writes are missing. revision is the revision of
	// the last write.
	missing  []span
	revision uint64
	done     bool // yield has returned false
}

// span is an open interval of revisions.
type span struct{ after, before uint64 }

// next handles the next write. It returns false once yield has.
func (r *replay) next(h kvstore.HistoryRecord) bool {
	r.gap(h)
	r.expire(h.Time, h.Key)
	if h.Key == "" {
		return !r.done
	}
	r.revision = h.Revision
	s := step{kind: kvstore.Put, entry: record.Of(h.Record), before: r.live[h.Key]}
	r.lost(s)
	switch {
	case h.Deleted:
		s.kind = kvstore.Deleted
		delete(r.live, h.Key)
	case h.TTL > 0:
		r.live[h.Key] = s.entry
		heap.Push(&r.ends, end{h.Time.Add(h.TTL), h.Key, h.Revision})
	default:
		delete(r.live, h.Key)
	}
	if c, ok := endBefore(s); ok {
		r.add(c)
	}
	if c, ok := changeOf(s); ok {
		r.add(c)
	}
	r.last = h.Time
	until := h.Time
	if len(r.ends) > 0 && r.ends[0].at.Before(until) { // this end may still turn up
		until = r.ends[0].at
	}
	r.flush(until)
	return !r.done
}

// gap records the writes that are missing before h.
func (r *replay) gap(h kvstore.HistoryRecord) {
	if r.last.IsZero() {
		r.last = h.After
	}
	if h.Remade {
		clear(r.live) // it is unknown how the old bucket's records ended
		r.missing = nil
	}
	if h.Missed > 0 {
		// The last write before the gap may have been to a key that matches no pattern.
		r.missing = append(r.missing, span{max(r.revision, h.Revision-min(h.Revision, h.Missed+1)), h.Revision})
	}
	if h.Remade || h.Missed > 0 {
		r.add(Change{Type: EventGap, Time: h.After, Until: h.Time, Missed: h.Missed, Remade: h.Remade})
	}
}

// lost records the writes to the lock of s that s proves to be missing. A token contains the revision
// of its claim's first write, so if a gap contains that revision, the write is missing. If the claim
// follows another one whose TTL was not over, the tombstone between the two is missing.
//
// lost cannot find a claim whose writes are all missing, or the missing tombstone of a record whose TTL
// ended before the next claim.
func (r *replay) lost(s step) {
	if len(r.missing) == 0 || s.entry.Unreadable {
		return
	}
	k, ok := record.ParseKey(s.entry.Key)
	if !ok || s.before.From(s.entry.ID) {
		return
	}
	n := uint64(0)
	origin := s.entry.Body.Token
	if !k.Waits() {
		origin = record.TokenRevision(origin)
	}
	if r.lacks(origin, origin) {
		n++
	}
	if b := s.before; b.Live() && !s.entry.Adopts(b) && !b.Unreadable && b.Record.TTL > 0 && r.lacks(b.Revision+1, s.entry.Revision-1) &&
		b.Time.Add(b.Record.TTL).After(s.entry.Time.Add(record.OverdueSlack)) {
		n++
	}
	if n > 0 {
		r.add(Change{Type: EventGap, Kind: k.Kind(), Name: k.Name, Time: r.last, Until: s.entry.Time, Missed: n})
	}
}

// lacks reports whether any writes between two revisions, inclusive, are missing.
func (r *replay) lacks(from, to uint64) bool {
	i, _ := slices.BinarySearchFunc(r.missing, from, func(m span, rev uint64) int { return cmp.Compare(m.before, rev+1) })
	return i < len(r.missing) && r.missing[i].after < to
}

// expire ends the records whose TTL is over at time now. It skips the record under key, because the
// write to that key, which follows, says more about how the record ended.
func (r *replay) expire(now time.Time, key string) {
	for len(r.ends) > 0 && !now.Before(r.ends[0].at.Add(record.OverdueSlack)) {
		e := heap.Pop(&r.ends).(end)
		if old := r.live[e.key]; old.Revision == e.revision && e.key != key {
			delete(r.live, e.key)
			if c, ok := changeOf(step{kind: kvstore.Expired, entry: old}); ok {
				r.add(c)
			}
		}
	}
}

// end handles the end of the history.
func (r *replay) end(h *kvstore.History) {
	if h.Behind > 0 {
		r.add(Change{Type: EventGap, Time: r.last, Until: h.Now, Missed: h.Behind})
	}
	r.expire(h.Now, "")
	r.flush(h.Now)
}

// add inserts a change in order, and holds it back until no change with an earlier time can follow.
func (r *replay) add(c Change) {
	at := len(r.held)
	for at > 0 && r.held[at-1].Time.After(c.Time) {
		at--
	}
	r.held = slices.Insert(r.held, at, &c)
}

// flush yields the changes up to until.
func (r *replay) flush(until time.Time) {
	n := 0
	for _, c := range r.held {
		if r.done || c.Time.After(until) {
			break
		}
		n++
		if last := c.Until; !last.Before(r.since) || !c.Time.Before(r.since) {
			r.done = !r.yield(*c)
		}
	}
	r.held = r.held[n:]
}

// end is the end of a record's TTL.
type end struct {
	at       time.Time
	key      string
	revision uint64
}

// ends is a heap with the earliest end on top.
type ends []end

func (e ends) Len() int           { return len(e) }
func (e ends) Less(i, j int) bool { return e[i].at.Before(e[j].at) }
func (e ends) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *ends) Push(x any)        { *e = append(*e, x.(end)) }
func (e *ends) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}
