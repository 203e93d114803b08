package lease

import (
	"context"
)

// A one-shot acquire returns what a list or a read has shown. Where there are
// replicas, the one that answers may lag and show a holder, a reader or a waiter
// that has left. Its yes is safe, since the server checks the write; its no is
// confirmed by the leader: what was shown has to be of a revision that the bucket
// reached during the call.

// sure returns the verdict of a one-shot acquire when it is a yes, or a no that is
// true. named is what the leader has called the gate's last revision during this
// call; 0: nothing.
func (a *acquire) sure(v verdict, named uint64) verdict {
	confirmed := a.e.kv.Alone()
	for v.outcome == free || v.outcome == busy {
		held := v.entry.Live() && (confirmed || named > 0 && v.entry.Revision >= named)
		if held && !confirmed {
			overdue, err := a.e.askOverdue(a.ctx, v.entry)
			if err != nil {
				return a.noAnswer(err)
			}
			held = !overdue
		}
		queued := a.queue != nil && *a.queue > 0 && confirmed
		if v.outcome == busy && (held || queued) {
			return v
		}
		if err := a.ask(); err != nil {
			return a.noAnswer(err)
		}
		shown, queue := v, a.queue
		v, confirmed = a.enter(a.asOf), true
		if v.outcome == failed && isAny(v.err, ErrPermission) && (shown.entry.Live() || queue != nil && *queue > 0) {
			a.queue = queue
			return shown // the leader's word is withheld from this user
		}
	}
	return v
}

// ask has the leader name a revision that the bucket has reached.
func (a *acquire) ask() error {
	ctx, cancel := answerIn(a.ctx, 2*answerTimeout)
	defer cancel()
	st, err := a.e.kv.State(ctx, "")
	a.asOf = max(a.asOf, st.LastRevision)
	return late(a.ctx, ctx, err)
}

// noAnswer is the verdict on a failed request: the end of the wait, if that has come.
func (a *acquire) noAnswer(err error) verdict {
	switch {
	case a.ctx.Err() != nil:
		return verdict{outcome: ended, err: context.Cause(a.ctx)}
	case a.e.life.Err() != nil:
		return verdict{outcome: ended, err: context.Cause(a.e.life)}
	}
	return verdict{outcome: failed, err: err}
}

// currentReader returns one that reads, before a one-shot writer takes the gate.
// Without an answer there is none: the drain has the last word.
func (a *acquire) currentReader() (Entry, bool) {
	list := func() []Entry {
		ctx, cancel := context.WithTimeout(a.ctx, answerTimeout)
		defer cancel()
		l, err := a.e.kv.List(ctx, a.readerKey("*"), a.asOf)
		if err != nil {
			return nil
		}
		readers := make([]Entry, len(l.Records))
		for i, r := range l.Records {
			readers[i] = entryOf(r)
		}
		if readers, err = a.e.clear(ctx, readers); err != nil {
			return nil // those that are left may be overdue
		}
		return readers
	}
	readers := list()
	if len(readers) > 0 && !a.e.kv.Alone() {
		if a.ask() != nil {
			return Entry{}, false
		}
		readers = list()
	}
	if len(readers) == 0 {
		return Entry{}, false
	}
	return readers[0], true
}

// readerInside returns one of the readers that an answer has shown behind the gate
// of a one-shot writer: it was there after the gate's write, so during this call.
func (a *acquire) readerInside(r roll, d *departures) (Entry, bool) {
	for _, shown := range r.live {
		if shown.Zero() { // listed, and not to be read: it has just ended, or a replica lags
			continue
		}
		if a.e.kv.Alone() {
			return shown, true
		}
		key := shown.Record.Key
		switch entry, err := a.e.read(a.ctx, key, r.revision); {
		case err == nil && entry.Live():
			return entry, true
		case err == nil && entry.Deleted:
			d.gone[key] = true
		case isAny(err, ErrPermission): // the leader's word is withheld from this user
			return shown, true
		}
	}
	return Entry{}, false
}
