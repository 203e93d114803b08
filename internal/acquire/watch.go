package acquire

import (
	"context"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
)

// This file keeps a client informed of the places of other clients in the queue of a lock: the client
// subscribes to the queue and lists it, and [core.Others] judges what that shows.

// inform subscribes to the queue of a lock and lists it, with the gate if the client reads.
func (l *line) inform(ctx context.Context, reads bool) {
	if o := l.listen(reads); o != nil {
		l.list(ctx, o)
	}
}

// listen subscribes to the queue of a lock, and to the gate too if the client reads. It
// returns nil where that fails.
func (l *line) listen(reads bool) *core.Others {
	l.subscribe()
	l.mu.Lock()
	o := l.Others
	gate := reads && o != nil && !o.GateAsked
	if gate {
		o.GateAsked = true
	}
	l.unlock()
	if gate && !l.watch(o, l.keys.Gate, true) {
		l.mu.Lock()
		o.GateAsked = false
		l.unlock()
	}
	l.mu.Lock()
	defer l.unlock()
	if o == nil || o != l.Others || !o.Queue || reads && !o.Gate {
		return nil
	}
	return o
}

// subscribe begins to watch the queue, when a second goroutine waits. The write of a place
// that follows proves that the subscription is in place.
func (l *line) subscribe() {
	l.mu.Lock()
	if l.Others != nil || len(l.Runs) == 0 { // or nobody waits any more
		l.unlock()
		return
	}
	o := &core.Others{}
	l.Others = o
	l.unlock()
	if !l.watch(o, l.keys.Place("*"), false) {
		l.mu.Lock()
		l.Others = nil
		l.unlock()
	}
}

// watch subscribes to a part of what a client knows of others: the queue or the gate.
func (l *line) watch(o *core.Others, pattern string, gate bool) bool {
	w, err := l.b.Watch(pattern, func(ev kvstore.Event) { l.notified(o, ev) })
	if err != nil {
		return false
	}
	l.mu.Lock()
	defer l.unlock()
	if gate {
		l.gate = w
	} else {
		l.queue = w
	}
	o.Subscribed(gate)
	if len(l.Runs) == 0 {
		l.unwatch()
	}
	return true
}

// unwatch ends the subscriptions, and forgets what they have delivered. Under mu.
func (l *line) unwatch() {
	for _, w := range []*kvstore.Watch{&l.queue, &l.gate} {
		if *w != nil {
			l.s.Send((*w).Stop)
			*w = nil
		}
	}
	l.Others = nil
}

// notified takes a change in the queue.
func (l *line) notified(o *core.Others, ev kvstore.Event) {
	now := l.b.Instant()
	var e record.Entry
	if ev.Kind == kvstore.Put || ev.Record.Key == l.keys.Gate {
		if e = record.Of(ev.Record); ev.Kind == kvstore.Put && e.Client == l.b.Client && e.Key != l.keys.Gate {
			return
		}
	}
	l.mu.Lock()
	defer l.unlock()
	switch {
	case ev.Kind != kvstore.Recheck && ev.Record.Key == l.keys.Gate:
		l.GateSeen(o, e, now)
	case ev.Kind == kvstore.Put:
		l.PlaceSeen(o, e, now)
	case ev.Kind == kvstore.Deleted:
		o.PlaceGone(ev.Record.Key, ev.Record.Revision, now)
	case ev.Kind == kvstore.Recheck: // another server serves the subscription now
		o.Moved()
	}
}

// noteList notes what a list of the queue contained from a revision on. A gate that is not
// nil was read beside it. The client requested the list at an instant.
func (l *line) noteList(queue []record.Entry, from uint64, gate *kvstore.Record, at clock.Instant) {
	var entry *record.Entry
	if gate != nil {
		e := record.Of(*gate)
		entry = &e
	}
	now, server := l.b.Instant(), l.b.Now()
	l.mu.Lock()
	defer l.unlock()
	l.Listed(queue, from, entry, at, now, server)
}

// refresh lists the queue again, before the last list is too old to count.
func (l *line) refresh(ctx context.Context) {
	l.mu.Lock()
	o := l.Others
	l.unlock()
	if o == nil {
		return
	}
	l.list(ctx, o)
	l.mu.Lock()
	defer l.unlock()
	o.Refreshed()
}

// list lists the queue as the leader has it, from a subscription that is in place, and the
// gate beside it if the client has subscribed to that.
func (l *line) list(ctx context.Context, o *core.Others) {
	if err := l.tryList(ctx, o); err != nil { // the next run that is opened lists
		l.s.Logger.Debug("list the queue", "key", l.keys.Gate, "error", err)
	}
}

func (l *line) tryList(ctx context.Context, o *core.Others) error {
	b := l.b
	l.mu.Lock()
	proven, epoch := o.Proven()
	var opts []kvstore.ListOption
	if o.Gate {
		opts = append(opts, kvstore.Beside(l.keys.Gate))
	}
	l.unlock()
	if !proven {
		if _, err := b.Probe(ctx, l.keys.Gate); err != nil {
			return err
		}
		l.mu.Lock()
		o.Prove(b.Instant(), epoch)
		l.unlock()
	}
	at, revision, err := l.calls.AsOf(ctx)
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
	l.noteList(record.Queue(got.Records), 0, gate, at)
	return nil
}
