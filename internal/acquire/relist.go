package acquire

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
	"github.com/natslock/locks/kvstore"
)

// A client lists the queues of its idle leases now and then: a notification may be lost.

const (
	// freshFor is for how long a list of the queue counts that has shown no other client. If
	// a notification is lost, its client waits no longer than that.
	freshFor = 5 * time.Second
	// listEvery is how often the client lists the queues of its idle leases, so many of
	// them with one request.
	listEvery       = 4 * time.Second
	listTogetherMax = 128
	// tendAgain is the shortest time between two rounds through the idle leases.
	tendAgain = 10 * time.Millisecond
)

// tend gives up the idle leases whose time is over. When the list of a queue is old, it
// lists that queue and those of the leases whose lists are half as old.
func (rs *runs) tend() {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	i, now := &rs.idle, rs.c.b.Instant()
	i.rings = 0
	ends, relistAt := now.Add(listEvery), now.Add(listEvery)
	var due []*run
	for e := i.idle.Front(); e != nil; {
		r := e.Value.(*run)
		e = e.Next()
		if now >= r.rest.ends {
			r.recall()
			continue
		}
		ends = min(ends, r.rest.ends)
		if !r.rest.listing {
			at := r.listedAt().Add(listEvery)
			if relistAt = min(relistAt, at); now >= at.Add(-listEvery/2) {
				due = append(due, r)
			}
		}
	}
	if now >= relistAt {
		relistAt = now.Add(listEvery / 2)
		rs.listDue(due)
	}
	if i.idle.Len() > 0 {
		rs.tendAt(max(min(ends, relistAt), now.Add(tendAgain)), now)
	}
}

// listDue lists the queues of runs in the background, unless a round before does so.
// Under mu.
func (rs *runs) listDue(due []*run) {
	if rs.idle.listing {
		return
	}
	rs.idle.listing = true
	rs.c.s.Background(func(ctx context.Context) {
		for due := range slices.Chunk(due, listTogetherMax) {
			rs.listRuns(ctx, due)
		}
		rs.mu.Lock()
		defer rs.mu.Unlock()
		rs.idle.listing = false
	})
}

// listRuns lists the queues of idle runs: with one request, if that can answer. Otherwise no
// run waits for the lists of the others.
func (rs *runs) listRuns(ctx context.Context, due []*run) {
	if rs.listTogether(ctx, due) {
		rs.mu.Lock()
		defer rs.mu.Unlock()
		for _, r := range due {
			r.relisted(rs.c.b.Instant())
		}
		return
	}
	var all sync.WaitGroup
	for _, r := range due {
		all.Go(func() { r.relistNow(ctx) })
	}
	all.Wait()
}

// relist lists the queue in the background, from a subscription. Under mu.
func (r *run) relist() {
	if !r.rest.listing {
		r.rest.listing = true
		r.line.c.s.Background(r.relistNow)
	}
}

// relistNow lists the queue, from a subscription.
func (r *run) relistNow(ctx context.Context) {
	r.line.inform(ctx, r.reads())
	r.line.mu.Lock()
	defer r.line.mu.Unlock()
	r.rest.listing = false // first: a goroutine that waits from now on wants another list
	r.relisted(r.line.c.b.Instant())
}

// listTogether lists the queues of several locks, with their gates. It says whether it has
// done so for all of them.
func (rs *runs) listTogether(ctx context.Context, due []*run) bool {
	b := rs.c.b
	queues, gates := make(map[string]*line, len(due)), make(map[string]*kvstore.Record, len(due))
	unseen := make(map[string]*session.Lease, len(due))
	unproven := make(map[*others]uint64)
	var patterns []string
	rs.mu.Lock()
	for _, r := range due {
		o := r.line.others
		switch {
		case r.over:
			continue
		case o == nil || o.watch == nil || r.reads() && o.gate.watch == nil: // its own list subscribes
			rs.mu.Unlock()
			return false
		case o.proven == 0:
			unproven[o] = o.epoch
		}
		queues[r.line.keys.Place("")], gates[r.line.keys.Gate] = r.line, new(kvstore.Record)
		unseen[r.lease.Key] = r.lease
		patterns = append(patterns, r.line.keys.Place("*"), r.line.keys.Gate)
		if r.reads() { // a replica names no state in which it has nothing
			patterns = append(patterns, r.lease.Key)
		}
	}
	rs.mu.Unlock()
	if len(patterns) == 0 {
		return true
	}
	if len(unproven) > 0 { // one answer proves all that were made before
		if _, err := b.Probe(ctx, patterns[1]); err != nil {
			return false
		}
		rs.mu.Lock()
		for o, epoch := range unproven {
			o.prove(b.Instant(), epoch)
		}
		rs.mu.Unlock()
	}
	at, revision, err := rs.asOf(ctx)
	if err != nil {
		return false
	}
	got, err := b.ListSoon(ctx, patterns[0], revision, kvstore.Also(patterns[1:]...))
	if err != nil {
		rs.c.s.Logger.Debug("list the queues of idle locks", "locks", len(due), "error", err)
		return false
	}
	places := make(map[*line][]kvstore.Record)
	for _, rec := range got.Records {
		if l := unseen[rec.Key]; l != nil {
			if e := record.Of(rec); e.Live() && e.From(l.ID()) && e.Status == record.StatusHeld {
				delete(unseen, rec.Key)
			}
		}
		if g := gates[rec.Key]; g != nil {
			*g = rec
		} else if l := queues[rec.Key[:strings.LastIndexByte(rec.Key, '.')+1]]; l != nil {
			places[l] = append(places[l], rec)
		}
	}
	for _, l := range unseen { // broken, or gone with its bucket: nothing else shows that soon
		l.Suspect() //safety:idle-unseen
	}
	for _, l := range queues {
		l.listed(record.Queue(places[l]), 0, gates[l.keys.Gate], at)
	}
	return true
}

// relisted follows a list of the queue. Under mu.
func (r *run) relisted(now clock.Instant) {
	switch {
	case r.over || r.rest.idle == nil && !r.rest.waits:
	case !r.informed(now):
		r.recall()
	case !r.rest.waits:
	case len(r.members) > 0:
		r.rest.waits = false
		r.serve(nil)
	default: // they have given up
		r.recall()
	}
}
