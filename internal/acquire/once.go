package acquire

import (
	"context"
	"errors"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/kvstore"
)

// A one-shot acquire returns what a list or a read has shown. Where there are
// replicas, the server that answers may lag. It may show a holder, a reader or a
// waiter that has left. A yes is safe, since the server checks the write. The leader
// confirms a no: the record that was shown has to be of a revision that the bucket
// reached during the call.

// confirmed returns the result of a one-shot acquire when it is a yes, or a no that is
// true.
func (a *acquisition) confirmed(r result) result {
	b := a.c.b
	sure := b.Alone()
	for r.outcome == free || r.outcome == busy {
		held := r.entry.Live() && (sure || a.named > 0 && r.entry.Revision >= a.named)
		if held && !sure {
			overdue, err := b.AskOverdue(a.ctx, r.entry)
			if err != nil {
				return a.noAnswer(err)
			}
			held = !overdue
		}
		queued := a.queue != nil && *a.queue > 0 && sure
		if r.outcome == busy && (held || queued) {
			return r
		}
		if err := a.ask(); err != nil {
			return a.noAnswer(err)
		}
		shown, queue := r, a.queue
		r, sure = a.survey(a.asOf), true
		if r.outcome == failed && bucket.IsAny(r.err, bucket.ErrPermission) && (shown.entry.Live() || queue != nil && *queue > 0) {
			a.queue = queue
			return shown // the leader's word is withheld from this user
		}
	}
	return r
}

// ask has the leader name a revision that the bucket has reached.
func (a *acquisition) ask() error {
	st, err := a.c.b.Leader(a.ctx, 2*bucket.AnswerTimeout)
	a.asOf = max(a.asOf, st.LastRevision)
	return err
}

// noAnswer is the result of a failed request: the end of the wait, if that has come.
func (a *acquisition) noAnswer(err error) result {
	if cause := a.over(); cause != nil {
		return result{outcome: ended, err: cause}
	}
	return result{outcome: failed, err: err}
}

// over is the cause of the end of the wait, if that has come.
func (a *acquisition) over() error {
	if a.ctx.Err() != nil {
		return context.Cause(a.ctx)
	}
	return context.Cause(a.c.b.Granting())
}

// unfit is why the bucket is unfit, if the client knows that.
func (a *acquisition) unfit() error {
	if err := context.Cause(a.c.b.Granting()); errors.Is(err, kvstore.ErrBucketConfig) {
		return err
	}
	return nil
}

// currentReader returns one that reads, before a one-shot writer takes the gate.
// Without an answer there is none: the drain has the last word.
func (a *acquisition) currentReader() (record.Entry, bool) {
	b := a.c.b
	list := func() []record.Entry {
		ctx, cancel := context.WithTimeout(a.ctx, bucket.AnswerTimeout)
		defer cancel()
		l, err := b.List(ctx, a.keys.Reader("*"), a.asOf)
		if err != nil {
			return nil
		}
		readers := make([]record.Entry, len(l.Records))
		for i, r := range l.Records {
			readers[i] = record.Of(r)
		}
		if readers, err = b.Clear(ctx, readers); err != nil {
			return nil // the rest may be overdue
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
