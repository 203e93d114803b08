package acquire

import (
	"errors"
	"slices"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
	"github.com/natslock/locks/kvstore"
)

// writing is the first write of a record of a run, without an answer yet, or without the
// list of the queue that follows the answer.
type writing struct {
	begun  clock.Instant // 0: none
	news   uint64        // others.count by then
	epoch  uint64        // others.epoch by then
	place  bool          // not a claim
	proves bool          // the subscription is older
}

// begin notes that a first write of a record is sent now. Under mu.
func (r *run) begin() {
	o := r.line.others
	r.writing = writing{begun: r.line.c.b.Instant(), news: o.news()}
	if o != nil && o.watch != nil {
		r.writing.proves, r.writing.epoch = true, o.epoch
	}
}

// queueing is called before a place is written, with a first answer or without.
func (r *run) queueing() {
	l := r.line
	if l == nil {
		return
	}
	l.mu.Lock()
	shared := r.behind || len(l.all) > 1 || len(r.members) > 1
	l.mu.Unlock()
	if shared { // before the write: its answer proves the subscription
		l.subscribe() //safety:queue-subscribed
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	r.begin()
	r.writing.place = true
	for _, m := range r.members {
		m.early = m.early || !r.placed
	}
	r.placed = true
}

// inOrder waits until the run before has a record. A place that is sent while the claim of
// an earlier run is not answered may get the earlier ticket.
func (r *run) inOrder(a *acquisition) error {
	for r.line != nil {
		r.line.mu.Lock()
		var before *run
		if i := slices.Index(r.line.all, r); i > 0 {
			before = r.line.all[i-1]
		}
		if before == nil || before.place != nil || before.lease != nil { //safety:run-in-order
			r.line.mu.Unlock()
			return nil
		}
		if before.settled == nil {
			before.settled = make(chan struct{})
		}
		settled := before.settled
		r.line.mu.Unlock()
		select {
		case <-settled:
		case <-a.ctx.Done():
			return a.over()
		}
	}
	return nil
}

// settle lets the run behind queue. Under mu.
func (r *run) settle() {
	if r.settled != nil {
		close(r.settled)
		r.settled = nil
	}
}

// setPlace makes p the place of a run; nil: it has none any more. Under mu.
func (rs *runs) setPlace(r *run, p *session.Place) {
	switch {
	case r.line != nil: // which counts its members
	case r.place == nil && p != nil:
		rs.apart++
	case r.place != nil && p == nil:
		rs.apart--
	}
	r.place = p
}

// queued makes p the place of the run; nil: it has none any more.
func (r *run) queued(p *session.Place, m *member) {
	m.runs.mu.Lock()
	defer m.runs.mu.Unlock()
	m.runs.setPlace(r, p)
	switch {
	case p == nil:
		r.writing = writing{}
		if l := r.line; l != nil && !r.over { // it queues again behind the others
			l.all = append(slices.DeleteFunc(l.all, func(x *run) bool { return x == r }), r) //safety:requeued-behind
		}
		return
	case r.line == nil:
		r.announce(m)
		return
	}
	for _, m := range r.members {
		r.announce(m)
	}
	// The first list is still to come: see listed.
	if w, o := r.writing, r.line.others; o != nil && w.proves {
		o.prove(r.line.c.b.Instant(), w.epoch)
	}
	r.settle()
	r.resize()
}

// listed notes what a list of the queue has shown to the driver, from a revision on. The
// list contains the place of the run, and was asked for at an instant.
func (r *run) listed(queue []record.Entry, from uint64, at clock.Instant) {
	if r.line == nil {
		return
	}
	r.line.listed(queue, from, nil, at)
	r.line.mu.Lock()
	defer r.line.mu.Unlock()
	r.writing = writing{}
}

// announce publishes that a member waits: with the ticket of the place, or behind the
// holder of the lease. Under mu.
func (r *run) announce(m *member) {
	ev := session.Event{Type: session.EventQueued, Kind: m.a.req.Kind, Name: m.a.req.Name}
	if r.place != nil {
		ev.ID, ev.Token = r.place.ID(), r.place.Ticket()
	} else {
		ev.ID = r.lease.ID()
	}
	m.queued = true
	m.runs.c.s.Notify(m.a.parent, ev)
}

// hears notes what the last request of the driver has come to: see [acquisition.heard]. That
// another write is being replicated is neither an outage nor the end of one.
func (r *run) hears(err error) {
	if r.line != nil {
		r.line.mu.Lock()
		defer r.line.mu.Unlock()
	}
	if (r.heard || r.trouble != nil) && errors.Is(err, kvstore.ErrInFlight) {
		return
	}
	r.heard, r.trouble = err == nil, err
}

// saw notes what the driver has seen of the lock.
func (r *run) saw(s shown) {
	if r.line != nil {
		r.line.mu.Lock()
		defer r.line.mu.Unlock()
	}
	r.shown = &s
}
