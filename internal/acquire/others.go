package acquire

import (
	"context"
	"math"
	"time"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
	"github.com/natslock/locks/kvstore"
)

// others is what a client knows of the places of other clients in the queue of a lock. A
// client with one waiter for a lock knows nothing, and has none: nil. The second waiter
// subscribes to the queue and lists it. Under runs.mu.
type others struct {
	watch   kvstore.Watch // of the queue; nil: the subscription is being made
	proven  clock.Instant // since when it is known to be in place; 0: it is not
	epoch   uint64        // how often another server has taken it over
	listed  clock.Instant // when the queue was last listed; 0: never
	from    uint64        // the list was of the places from this revision on
	listing bool
	count   uint64 // of the places and gates that have become known
	gate    gate

	places map[string]seat
	gone   map[string]departure
	swept  clock.Instant
}

// seat is the place of another client.
type seat struct {
	ticket uint64
	reads  bool
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
	return o != nil && o.from <= ticket && o.fresh(o.listed, now, silence) //safety:silence-bounded
}

// fresh says whether what was listed at an instant is not older than an age. Under mu.
func (o *others) fresh(at, now clock.Instant, age time.Duration) bool {
	// An older list does not show what came between it and the subscription.
	return o.proven != 0 && at != 0 && at >= o.proven && now.Sub(at) < age
}

// news counts the places and the gates that have become known. Under mu.
func (o *others) news() uint64 {
	if o == nil {
		return 0
	}
	return o.count
}

// after says whether another client is queued with a later ticket. To a goroutine that
// reads only writers matter: readers pass readers. Under mu.
func (o *others) after(ticket uint64, now clock.Instant, reads bool) bool {
	for key, s := range o.places {
		switch {
		case now >= s.until:
			delete(o.places, key)
		case s.ticket > ticket && !(reads && s.reads):
			return true
		}
	}
	return false
}

// unwritten says whether no writer has come since readers joined at a revision: the gate
// has not stood since, and no writer is queued. Under mu.
func (o *others) unwritten(since uint64, now clock.Instant) bool {
	return o.known(0, now) && o.fresh(o.gate.listed, now, silence) && //safety:read-joined
		!o.after(0, now, true) && !(o.gate.revision > since && o.gate.stands(now))
}

// writers says whether a writer is known to have the gate or to wait. Under mu.
func (o *others) writers(now clock.Instant) bool {
	return o != nil && (o.after(0, now, true) || o.gate.stands(now))
}

// gate is what a client knows of the gate of a lock that it reads: the last record.
type gate struct {
	asked    bool // for the subscription
	live     bool // it is no tombstone
	watch    kvstore.Watch
	listed   clock.Instant // when it was last asked for beside the queue; 0: never
	revision uint64
	claim    string        // of the last live record
	at       clock.Instant // when it became known
	until    clock.Instant // the end of its TTL, at the latest
}

func (g *gate) stands(now clock.Instant) bool { return g.live && now < g.until }

// gateSeen notes a record of the gate, as a notification shows it, or a list that was asked
// for at an instant. The list is right about what was known before: a notification can be
// forged. Under mu.
func (l *line) gateSeen(o *others, r kvstore.Record, listed, now clock.Instant) {
	g := &o.gate
	if listed != 0 {
		g.listed = listed
	}
	if r.Revision < g.revision && (listed == 0 || listed <= g.at) {
		return
	}
	// Nobody joins readers whose join has no answer yet: the writer may have come first.
	if e := record.Of(r); r.Revision > g.revision && !r.Deleted && e.ClaimID() != g.claim { // no renewal
		if g.claim = e.ClaimID(); e.Client != l.c.b.Client {
			o.count++ //safety:gate-news
		}
	}
	g.revision, g.live, g.at = r.Revision, r.Revision != 0 && !r.Deleted, now
	if g.until = now.Add(r.TTL + record.OverdueSlack); r.TTL == 0 {
		g.until = math.MaxInt64
	}
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
	o.places[e.Key] = seat{e.TokenOrTicket(), record.Mode(e.Mode) == record.Shared, now.Add(e.Record.TTL + record.OverdueSlack)}
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
	if !l.watch(o, l.keys.Place("*"), &o.watch) {
		l.mu.Lock()
		l.others = nil
		l.mu.Unlock()
	}
}

// watch subscribes to a part of what a client knows of others.
func (l *line) watch(o *others, pattern string, to *kvstore.Watch) bool {
	w, err := l.c.b.Watch(pattern, func(ev kvstore.Event) { l.notified(o, ev) })
	if err != nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	*to = w
	o.proven = 0 // an answer to an earlier write is no proof of this one //safety:gate-subscribed
	o.epoch++
	if len(l.all) == 0 {
		o.stop(l.c.s)
	}
	return true
}

// stop ends the subscriptions. Under mu.
func (o *others) stop(s *session.Session) {
	for _, w := range []*kvstore.Watch{&o.watch, &o.gate.watch} {
		if *w != nil {
			s.Send((*w).Stop)
			*w = nil
		}
	}
}

// notified takes a change in the queue.
func (l *line) notified(o *others, ev kvstore.Event) {
	now := l.c.b.Instant()
	var e record.Entry
	if ev.Kind == kvstore.Put {
		if e = record.Of(ev.Record); e.Client == l.c.b.Client && e.Key != l.keys.Gate && e.Status != record.StatusTrying {
			return
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case ev.Kind != kvstore.Recheck && ev.Record.Key == l.keys.Gate:
		l.gateSeen(o, ev.Record, 0, now)
		l.asked(now)
	case ev.Kind == kvstore.Put && e.Status == record.StatusTrying:
		l.knockedAt(e)
	case ev.Kind == kvstore.Put:
		o.seen(e, 0, now)
		l.asked(now)
	case ev.Kind == kvstore.Deleted:
		o.left(ev.Record.Key, ev.Record.Revision, now)
	case ev.Kind == kvstore.Recheck: // another server serves the subscription now
		o.proven = 0 //safety:queue-recheck
		o.epoch++
	}
}

// listed notes what a list has shown of the queue from a revision on. A gate that is not
// nil was listed beside it. The list was asked for at an instant.
func (l *line) listed(queue []record.Entry, from uint64, gate *kvstore.Record, at clock.Instant) {
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
	if gate != nil && o.gate.watch != nil {
		l.gateSeen(o, *gate, at, now)
	}
	l.asked(now) //safety:linger-listed
}

// refresh lists the queue again, in the background, before the last list is too old to
// count. Under mu.
func (l *line) refresh(now clock.Instant) {
	o := l.others
	if o == nil || o.watch == nil || o.listing {
		return
	}
	listed := o.listed
	if o.gate.watch != nil {
		listed = o.gate.listed
	}
	// When it is too old, the next run that is opened lists.
	if age := now.Sub(listed); listed == 0 || age < silence/2 || age >= silence {
		return
	}
	o.listing = true
	l.c.s.Background(func(ctx context.Context) {
		l.list(ctx, o)
		l.mu.Lock()
		defer l.mu.Unlock()
		o.listing = false
	})
}

// list lists the queue as the leader has it, from a subscription that is in place, and the
// gate beside it if the client has subscribed to that.
func (l *line) list(ctx context.Context, o *others) {
	if err := l.tryList(ctx, o); err != nil { // the next run that is opened lists
		l.c.s.Logger.Debug("list the queue", "key", l.keys.Gate, "error", err)
	}
}

func (l *line) tryList(ctx context.Context, o *others) error {
	b := l.c.b
	l.mu.Lock()
	proven, epoch := o.proven != 0, o.epoch
	var opts []kvstore.ListOption
	if o.gate.watch != nil {
		opts = append(opts, kvstore.Beside(l.keys.Gate))
	}
	l.mu.Unlock()
	if !proven {
		if _, err := b.Probe(ctx, l.keys.Gate); err != nil {
			return err
		}
		l.mu.Lock()
		o.prove(b.Instant(), epoch)
		l.mu.Unlock()
	}
	at, revision, err := l.asOf(ctx)
	if err != nil {
		return err
	}
	got, err := b.ListSoon(ctx, l.keys.Place("*"), revision, opts...)
	if err != nil {
		return err
	}
	var gate *kvstore.Record
	if opts != nil {
		gate = &got.Beside
	}
	l.listed(record.Queue(got.Records), 0, gate, at)
	return nil
}

// asOf returns an instant, and a revision that a list has to contain which is asked for
// then: another server than the leader may answer, and lag.
func (rs *runs) asOf(ctx context.Context) (at clock.Instant, revision uint64, err error) {
	b := rs.c.b
	at = b.Instant()
	if !b.Alone() { //safety:silence-of-leader
		var st kvstore.State
		st, err = b.Leader(ctx, bucket.AnswerTimeout)
		revision = st.LastRevision
	}
	return at, revision, err
}
