package acquire

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/natslock/locks/internal/call"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
)

// This file is what the client does for leases that linger: see internal/core/linger.go. It lists
// the queues of its idle leases now and then, so many with one request: a notification may be lost.

const (
	// readyWithin bounds how long a one-shot acquire waits for such a list.
	readyWithin = 250 * time.Millisecond
	// listTogetherMax is the number of queues that one request lists.
	listTogetherMax = 128
)

// lingersNext is called before the claim of a run that is to linger. Its client subscribes
// first: the answer to the claim proves the subscription. A member that takes over the claim
// of another one does not begin a new claim: what has become known since the first one still
// counts as news.
func (r *run) lingersNext(a *call.Call) {
	l := r.line
	if l == nil || a.Req.Linger == 0 {
		return
	}
	l.mu.Lock()
	begins := l.Others == nil && !a.Claims()
	l.unlock()
	l.listen(r.Reads())
	l.mu.Lock()
	defer l.unlock()
	if begins { //safety:linger-begun
		r.Claiming(l.b.Instant())
	}
}

// readyIdle says whether the client has an idle lease that a one-shot acquire can use at once.
// It gives up one that the acquire cannot use, and waits for that. It waits for a list
// where one is still to come.
func (rs *runs) readyIdle(a *call.Call) bool {
	rs.mu.Lock()
	l := rs.lines[a.Keys.Gate]
	if l == nil || l.Spare() == nil || !l.Spare().Idle() {
		rs.unlock()
		return false
	}
	now := rs.b.Instant()
	r := l.Spare()
	takes, informed := r.Takes(&a.Want), r.Informed(now)
	if !takes {
		r.Recall(now)
		rs.perform()
	}
	released := ownerOf(r).released
	rs.unlock()
	ctx, cancel := context.WithTimeout(a.Context(), readyWithin)
	defer cancel()
	switch {
	case !takes:
		select {
		case <-released:
		case <-ctx.Done():
		}
	case !informed:
		l.inform(ctx, r.Reads()) //safety:idle-listed
	}
	rs.mu.Lock()
	defer rs.unlock()
	return r.Idle()
}

// setAlarm sets the alarm of the next round through the idle leases. Under mu.
func (rs *runs) setAlarm(at clock.Instant) {
	in := at.Sub(rs.b.Instant())
	if rs.alarm == nil {
		rs.alarm = time.AfterFunc(in, rs.sweep)
	} else {
		rs.alarm.Reset(in)
	}
}

// sweep is a round through the idle leases.
func (rs *runs) sweep() {
	rs.mu.Lock()
	defer rs.unlock()
	due := rs.core.Sweep(rs.b.Instant())
	if len(due) == 0 || rs.listing { // a round before lists
		return
	}
	rs.listing = true
	rs.s.Background(func(ctx context.Context) {
		for due := range slices.Chunk(due, listTogetherMax) {
			rs.listRuns(ctx, due)
		}
		rs.mu.Lock()
		defer rs.unlock()
		rs.listing = false
	})
}

// listRuns lists the queues of idle runs: with one request, if that can answer. Otherwise no
// run waits for the lists of the others.
func (rs *runs) listRuns(ctx context.Context, due []*core.Run) {
	if rs.listTogether(ctx, due) {
		rs.mu.Lock()
		defer rs.unlock()
		for _, r := range due {
			r.ListedTogether(rs.b.Instant())
		}
		return
	}
	var all sync.WaitGroup
	for _, r := range due {
		all.Go(func() { ownerOf(r).relist(ctx) })
	}
	all.Wait()
}

// relist lists the queue, from a subscription.
func (r *run) relist(ctx context.Context) {
	r.line.inform(ctx, r.Reads())
	r.line.mu.Lock()
	defer r.line.unlock()
	r.Relisted(r.line.b.Instant())
}

// listTogether lists the queues of several locks, with their gates. It says whether it has
// done so for all of them.
func (rs *runs) listTogether(ctx context.Context, due []*core.Run) bool {
	b := rs.b
	queues, gates := make(map[string]*line, len(due)), make(map[string]*kvstore.Record, len(due))
	unseen := make(map[string]*session.Lease, len(due))
	unproven := make(map[*core.Others]uint32)
	var patterns []string
	rs.mu.Lock()
	for _, state := range due {
		r := ownerOf(state)
		o := r.line.Others
		switch {
		case r.Over:
			continue
		case o == nil || !o.Queue || r.Reads() && !o.Gate: // its own list subscribes
			rs.unlock()
			return false
		}
		if proven, epoch := o.Proven(); !proven {
			unproven[o] = epoch
		}
		queues[r.line.keys.Place("")], gates[r.line.keys.Gate] = r.line, new(kvstore.Record)
		unseen[r.lease.Key] = r.lease
		patterns = append(patterns, r.line.keys.Place("*"), r.line.keys.Gate)
		if r.Reads() { // a replica names no state in which it has nothing
			patterns = append(patterns, r.lease.Key)
		}
	}
	rs.unlock()
	if len(patterns) == 0 {
		return true
	}
	if len(unproven) > 0 { // one answer proves all that were made before
		if _, err := b.Probe(ctx, patterns[1]); err != nil {
			return false
		}
		rs.mu.Lock()
		for o, epoch := range unproven {
			o.Prove(b.Instant(), epoch)
		}
		rs.unlock()
	}
	at, revision, err := rs.calls.AsOf(ctx)
	if err != nil {
		return false
	}
	got, err := b.ListSoon(ctx, patterns[0], revision, kvstore.Also(patterns[1:]...))
	if err != nil {
		rs.s.Logger.Debug("list the queues of idle locks", "locks", len(due), "error", err)
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
		l.noteList(record.Queue(places[l]), 0, gates[l.keys.Gate], at)
	}
	return true
}
