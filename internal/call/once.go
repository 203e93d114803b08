package call

import (
	"context"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
)

// Confirmed returns a result that was true at some point during a one-shot acquire. That is r itself, unless r is a
// denial that [core.Denial] doubts, in which case it is the result of a later read.
func (a *Call) Confirmed(r result) result {
	b := a.c.b
	d := core.Denial{Leader: b.Alone(), Named: a.named}
	for r.Outcome == free || r.Outcome == busy {
		queued := a.queue != nil && *a.queue > 0
		doubt := d.LockRead(r.Outcome == busy, r.Entry, queued)
		if doubt == core.AskClock {
			overdue, err := b.Overdue(a.ctx, r.Entry)
			if err != nil {
				return a.noAnswer(err)
			}
			doubt = d.ClockRead(overdue)
		}
		if doubt == core.NoDoubt {
			return r
		}
		if err := a.ask(); err != nil {
			return a.noAnswer(err)
		}
		shown, queue := r, a.queue
		r, d.Leader = a.survey(a.asOf), true
		if r.Outcome == failed && bucket.IsAny(r.Err, kvstore.ErrWithheld) && (shown.Entry.Live() || queued) {
			a.queue = queue
			return shown // this user is not allowed to query the leader
		}
	}
	return r
}

// CurrentReader returns a reader that is inside, for a one-shot writer that is about to take the gate. If the server
// does not answer, CurrentReader returns none and leaves the decision to the drain.
func (a *Call) CurrentReader() (record.Entry, bool) {
	b := a.c.b
	list := func() []record.Entry {
		ctx, cancel := context.WithTimeout(a.ctx, bucket.AnswerTimeout)
		defer cancel()
		l, err := b.List(ctx, a.Keys.Reader("*"), a.asOf)
		if err != nil {
			return nil
		}
		readers := make([]record.Entry, len(l.Records))
		for i, r := range l.Records {
			readers[i] = record.Of(r)
		}
		if readers, err = b.Clear(ctx, readers); err != nil {
			return nil // the remaining readers may be overdue
		}
		return readers
	}
	readers := list()
	if len(readers) > 0 && !b.Alone() {
		if a.ask() != nil {
			return record.Entry{}, false
		}
		readers = list()
	}
	if len(readers) == 0 {
		return record.Entry{}, false
	}
	return readers[0], true
}
