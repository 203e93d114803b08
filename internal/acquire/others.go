package acquire

import (
	"context"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/kvstore"
)

// others is what a client knows of the places of other clients in the queue of a lock. A
// client with one waiter for a lock knows nothing, and has none: nil. The second waiter
// subscribes to the queue and lists it. Under runs.mu.
type others struct {
	watch   kvstore.Watch // nil: the subscription is being made
	proven  clock.Instant // since when it is known to be in place; 0: it is not
	epoch   uint64        // how often another server has taken it over
	listed  clock.Instant // when the queue was last listed; 0: never
	from    uint64        // the list was of the places from this revision on
	listing bool
	count   uint64 // of the places that have become known

	places map[string]seat
	gone   map[string]departure
	swept  clock.Instant
}

// seat is the place of another client.
type seat struct {
	ticket uint64
	until  clock.Instant // the end of its TTL, at the latest
}

// departure is the tombstone of a place, which an older list may still show.
type departure struct {
	revision uint64
	at       clock.Instant
}

// known says whether the places from a ticket on are known: no notification has been
// missed since they were listed, and the list is not old. Under mu.
func (o *others) known(ticket uint64, now clock.Instant) bool {
	if o == nil || o.proven == 0 || o.listed == 0 || o.from > ticket {
		return false
	}
	// An older list does not show the places between it and the subscription.
	if o.listed < o.proven {
		return false
	}
	return now.Sub(o.listed) < silence //safety:silence-bounded
}

// news counts the places that have become known. Under mu.
func (o *others) news() uint64 {
	if o == nil {
		return 0
	}
	return o.count
}

// after says whether another client is queued with a later ticket. Under mu.
func (o *others) after(ticket uint64, now clock.Instant) bool {
	for key, s := range o.places {
		switch {
		case now >= s.until:
			delete(o.places, key)
		case s.ticket > ticket:
			return true
		}
	}
	return false
}

// seen notes a place of another client, as a notification shows it, or a list that was
// asked for at an instant. The list is right about a tombstone that was known before: a
// notification can be forged. Under mu.
func (o *others) seen(e record.Entry, listed, now clock.Instant) {
	if e.Unreadable || e.Status != record.StatusWaiting {
		return
	}
	if d := o.gone[e.Key]; d.revision > e.Revision && (listed == 0 || listed <= d.at) { //safety:departure-listed
		return
	}
	if s, known := o.places[e.Key]; !known || s.ticket != e.TokenOrTicket() { // keys are used again
		o.count++
	}
	if o.places == nil {
		o.places = make(map[string]seat)
	}
	o.places[e.Key] = seat{e.TokenOrTicket(), now.Add(e.Record.TTL + record.OverdueSlack)}
}

// left notes that a place has gone. Under mu.
func (o *others) left(key string, revision uint64, now clock.Instant) {
	delete(o.places, key)
	if o.gone == nil {
		o.gone = make(map[string]departure)
	}
	o.gone[key] = departure{revision, now}
	if now.Sub(o.swept) > bucket.TombstoneLife {
		o.swept = now
		for key, d := range o.gone {
			if now.Sub(d.at) > 2*bucket.TombstoneLife {
				delete(o.gone, key)
			}
		}
	}
}

// prove notes that the subscription is in place, since an instant at the latest, unless
// another server has taken it over since epoch. Under mu.
func (o *others) prove(since clock.Instant, epoch uint64) {
	if o.proven == 0 && o.epoch == epoch {
		o.proven = since
	}
}

// subscribe begins to watch the queue, when a second goroutine waits. The write of a place
// that follows proves that the subscription is in place.
func (l *line) subscribe() {
	l.mu.Lock()
	if l.others != nil {
		l.mu.Unlock()
		return
	}
	o := &others{}
	l.others = o
	l.mu.Unlock()
	w, err := l.c.b.Watch(l.keys.Place("*"), func(ev kvstore.Event) { l.notified(o, ev) })
	l.mu.Lock()
	switch {
	case err != nil:
		l.others = nil
	case len(l.all) > 0:
		o.watch, w = w, nil
	}
	l.mu.Unlock()
	if w != nil && err == nil {
		w.Stop()
	}
}

// notified takes a change in the queue.
func (l *line) notified(o *others, ev kvstore.Event) {
	now := l.c.b.Instant()
	var e record.Entry
	if ev.Kind == kvstore.Put {
		if e = record.Of(ev.Record); e.Client == l.c.b.Client {
			return
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch ev.Kind {
	case kvstore.Put:
		o.seen(e, 0, now)
	case kvstore.Deleted:
		o.left(ev.Record.Key, ev.Record.Revision, now)
	case kvstore.Recheck: // another server serves the subscription now
		o.proven = 0 //safety:queue-recheck
		o.epoch++
	}
}

// listed notes what a list has shown of the queue from a revision on. The list was asked
// for at an instant.
func (l *line) listed(queue []record.Entry, from uint64, at clock.Instant) {
	now, estimate := l.c.b.Instant(), l.c.b.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	o := l.others
	if o == nil {
		return
	}
	for _, e := range queue {
		if e.Client != l.c.b.Client && !e.OverdueAt(estimate) {
			o.seen(e, at, now)
		}
	}
	o.listed, o.from = at, from
}

// refresh lists the queue again, in the background, before the last list is too old to
// count. Under mu.
func (l *line) refresh(now clock.Instant) {
	o := l.others
	if o == nil || o.watch == nil || o.listing || o.listed == 0 || now.Sub(o.listed) < silence/2 {
		return
	}
	o.listing = true
	l.c.s.Background(func(ctx context.Context) {
		err := l.list(ctx, o)
		l.mu.Lock()
		defer l.mu.Unlock()
		o.listing = false
		if err != nil {
			l.c.s.Logger.Debug("list the queue", "key", l.keys.Gate, "error", err)
		}
	})
}

// list lists the queue as the leader has it, from a subscription that is in place.
func (l *line) list(ctx context.Context, o *others) error {
	b := l.c.b
	l.mu.Lock()
	proven, epoch := o.proven != 0, o.epoch
	l.mu.Unlock()
	if !proven {
		if _, err := b.Probe(ctx, l.keys.Gate); err != nil {
			return err
		}
		l.mu.Lock()
		o.prove(b.Instant(), epoch)
		l.mu.Unlock()
	}
	at := b.Instant()
	revision := uint64(0)
	// Another server than the leader may answer, and lag.
	if !b.Alone() { //safety:silence-of-leader
		st, err := b.Leader(ctx, bucket.AnswerTimeout)
		if err != nil {
			return err
		}
		revision = st.LastRevision
	}
	got, err := b.ListSoon(ctx, l.keys.Place("*"), revision)
	if err != nil {
		return err
	}
	l.listed(record.Queue(got.Records), 0, at)
	return nil
}
