package acquire

import (
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/kvstore"
)

// enough is how many records a newcomer reads of a lock and its queue to see that
// it has to queue.
const enough = 16

// survey reads the lock and its queue, from a state that contains revision, and
// takes the lock if it is free and nobody is queued.
func (a *acquisition) survey(revision uint64) result {
	if a.counts() {
		return a.surveySlots(revision)
	}
	b := a.c.b
	at := b.Instant()
	a.queue = nil
	// Free a moment ago: waiters go first. A state that contains the
	// tombstone has every waiter that queued before it. Where no replica can lag,
	// no proof is needed. It would cost a request for an empty queue.
	opts := []kvstore.ListOption{kvstore.Beside(a.keys.Gate), kvstore.Reached(revision)}
	if b.Alone() { //safety:newcomer-as-of
		revision = 0
	}
	if !a.req.Once { // else the length is reported
		opts = append(opts, kvstore.AtMost(enough))
	}
	l, err := b.ListSoon(a.ctx, a.keys.Place("*"), revision, opts...)
	if err != nil {
		a.heard(err)
		if !a.req.Once {
			return result{outcome: busy} // for all that is known
		}
		if entry, e := b.Read(a.ctx, a.keys.Gate, revision); e == nil && entry.Live() && !a.bid.mine(entry) {
			return result{outcome: busy, entry: entry} // the queue is not known
		}
		return a.noAnswer(err)
	}
	if l.More {
		a.c.long.isLong(at, a.keys.Place("*"))
	}
	var entry record.Entry
	if l.Beside.Revision != 0 {
		entry = record.Of(l.Beside)
	}
	queue, err := b.Clear(a.ctx, record.Queue(l.Records))
	a.queue, a.apart = new(0), 0
	for _, e := range queue {
		*a.queue += e.Goroutines()
		if !entry.Live() || e.Client != entry.Client { //safety:knock-own-place
			a.apart++
		}
	}
	// A claim at the revision of a live record would replace it.
	held := entry.Live() && !a.bid.mine(entry) //safety:newcomer-held
	// An overdue record is older than the queue: a replica that lags may show it
	// without the waiters, so a newcomer queues behind it.
	if held && err == nil && a.req.Once && (b.Alone() || a.asOf > 0) {
		var overdue bool
		overdue, err = b.AskOverdue(a.ctx, entry)
		held = !overdue
	}
	switch {
	case err != nil && a.req.Once: // an overdue record neither holds nor queues
		return a.noAnswer(err)
	case err != nil:
		a.c.s.Logger.Debug("delete overdue places", "lock", a.req.Name, "error", err)
		return result{outcome: busy, entry: entry}
	case held:
		a.heard(nil)
		return result{outcome: busy, entry: entry}
	// The waiters go first, and a part of the queue does not show all of them.
	case len(queue) > 0 || l.More: //safety:newcomer-queues
		a.heard(nil)
		return result{outcome: busy}
	}
	a.c.b.Recent.Unqueued(a.keys.Gate, at)
	r := result{outcome: free, entry: entry}
	if a.bid.mine(entry) { // an earlier attempt, to be adopted
		r.entry = record.Entry{}
	}
	a.bid.until = at.Add(record.Bypass)
	defer func() { a.bid.until = 0 }()
	// There can be a newer tombstone: others may be quicker just now.
	for {
		r = a.bid.offer(r.entry.Revision)
		if r.outcome != free || b.Instant() >= a.bid.until {
			return r
		}
	}
}
