package call

import (
	"github.com/natslock/locks/internal/claim"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/kvstore"
)

// Survey reads the lock and its queue, from a state that contains revision, and
// takes the lock if it is free and nobody is queued.
func (a *Call) survey(revision uint64) result {
	if a.Counts() {
		return a.surveySlots(revision)
	}
	b := a.c.b
	at := b.Instant()
	a.queue = nil
	// Free a moment ago: waiters go first. A state that contains the
	// tombstone has every waiter that queued before it. Where no replica can lag,
	// no proof is needed. It would cost a request for an empty queue.
	opts := []kvstore.ListOption{kvstore.Beside(a.Keys.Gate), kvstore.Reached(revision)}
	if b.Alone() { //safety:newcomer-as-of
		revision = 0
	}
	if !a.Req.Once { // else the length is reported
		opts = append(opts, kvstore.AtMost(enough))
	}
	l, err := b.ListSoon(a.ctx, a.Keys.Place("*"), revision, opts...)
	if err != nil {
		a.Heard(err)
		if !a.Req.Once {
			return result{Outcome: busy} // for all that is known
		}
		if entry, e := b.Read(a.ctx, a.Keys.Gate, revision); e == nil && entry.Live() && !a.bid.Mine(entry) {
			return result{Outcome: busy, Entry: entry} // the queue is not known
		}
		return a.noAnswer(err)
	}
	if l.More {
		a.c.long.isLong(at, a.Keys.Place("*"))
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
	held := entry.Live() && !a.bid.Mine(entry) //safety:newcomer-held
	// An overdue record is older than the queue: a replica that lags may show it
	// without the waiters, so a newcomer queues behind it.
	if held && err == nil && a.Req.Once && (b.Alone() || a.asOf > 0) {
		var overdue bool
		overdue, err = b.AskOverdue(a.ctx, entry)
		held = !overdue
	}
	switch {
	case err != nil && a.Req.Once: // an overdue record neither holds nor queues
		return a.noAnswer(err)
	case err != nil:
		a.c.s.Logger.Debug("delete overdue places", "lock", a.Req.Name, "error", err)
		return result{Outcome: busy, Entry: entry}
	case held:
		a.Heard(nil)
		return result{Outcome: busy, Entry: entry}
	// The waiters go first, and a part of the queue does not show all of them.
	case len(queue) > 0 || l.More: //safety:newcomer-queues
		a.Heard(nil)
		return result{Outcome: busy}
	}
	a.c.b.Recent.Unqueued(a.Keys.Gate, at)
	r := result{Outcome: free, Entry: entry}
	if a.bid.Mine(entry) { // an earlier attempt, to be adopted
		r.Entry = record.Entry{}
	}
	a.bid.Until = at.Add(record.Bypass)
	defer func() { a.bid.Until = 0 }()
	// There can be a newer tombstone: others may be quicker just now.
	for {
		r = a.bid.Offer(a.ctx, r.Entry.Revision)
		if r.Outcome != free || b.Instant() >= a.bid.Until {
			return r
		}
	}
}

// AtOnce tries to take the lock without queueing. That is one write if the client knows
// the state of the lock, or guesses it. Otherwise it reads the lock and its queue first.
func (a *Call) AtOnce() claim.Result {
	if a.Counts() {
		return a.survey(0)
	}
	known := a.c.b.Recent.Known(a.c.b.Instant(), a.Keys.Gate)
	if a.Req.Patient { //safety:patient-bypass
		known.Until = 0
	}
	revision := known.Tombstone
	a.named = 0
	switch {
	// After its own release the client skips a read of the queue only for as long as
	// [record.Bypass]: nobody starves.
	case known.Tombstone == 0 || known.Until != 0: //safety:bypass-bounded
		a.bid.Blind, a.bid.Until = true, known.Until
		r := a.bid.Offer(a.ctx, known.Tombstone)
		a.bid.Blind, a.bid.Until = false, 0
		if r.Outcome != unread {
			return r
		}
		revision, a.named = r.Entry.Revision, r.Entry.Revision
	}
	return a.survey(revision)
}
