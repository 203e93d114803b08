package acquire

import (
	"context"
	"maps"
	"slices"

	"github.com/natslock/locks/internal/record"
)

// A run has one mode. The members of a run that writes, or that wants a mutex, are inside
// one after the other. Those of a run that reads are inside together, behind one lease.
// The last reader that leaves releases it. All have the token of its join. So only their
// order against writers is known, not that among them.
//
// A goroutine that reads joins the lease of its client's last run while the client knows
// that no writer has come since the join. The client knows that from subscriptions to the
// queue and to the gate, and from a list of both, as the leader has them, of the last
// second. A single reader pays for none of that. The second reader subscribes and lists.
// A reader that comes after a second without another lists again. If a writer has come, a
// goroutine opens a run, which passes no writer.

func (r *run) reads() bool { return r.mode == record.Shared }

// takes says whether the record of the run can be that of another goroutine too. A record
// has one TTL and one end, and that of readers who are inside together has one metadata.
// Under mu.
func (r *run) takes(a *acquisition) bool {
	return !r.private && !a.private() && r.ttl == a.ttl && //safety:run-own-record
		r.mode == a.req.Mode && (!r.reads() || maps.Equal(r.meta, a.req.Meta))
}

// letIn counts a member among those inside, which may still have to enter. Under mu.
func (r *run) letIn(m *member) {
	m.inside = true
	r.inside++
}

// host returns the run before, if its lease can be that of the members of this run too:
// both read. Under mu.
func (r *run) host(a *acquisition) *run {
	i := slices.Index(r.line.all, r)
	if i < 1 || !r.reads() {
		return nil
	}
	h := r.line.all[i-1]
	if !h.reads() || h.lease == nil || h.inside == 0 || h.lease.Ended(r.line.c.b.Instant()) || !h.takes(a) {
		return nil
	}
	return h
}

// merge has the members of the run join those of another one, which are inside. Under mu.
func (r *run) merge(host *run) {
	for _, m := range r.members {
		m.run = host
		host.letIn(m)
		m.poke()
	}
	r.close()
	host.listen()
}

// behind gets the lock for a run behind others of its client. Readers join the readers
// inside. Behind readers inside a run may try as a newcomer does, behind all others it has
// to queue.
func (a *acquisition) behind(r *run) result {
	defer a.whileGranting()()
	l := r.line
	if a.reads() && !a.req.Once {
		if err := r.inOrder(a); err != nil {
			return result{outcome: ended, err: err}
		}
	}
	l.mu.Lock()
	h := r.host(a)
	unsure := h != nil && !h.joinable(a.c.b.Instant())
	l.mu.Unlock()
	if unsure {
		l.inform(a.ctx, true)
	}
	l.mu.Lock()
	now := a.c.b.Instant()
	if h := r.host(a); h != nil && h.joinable(now) {
		r.merge(h)
		l.mu.Unlock()
		return result{outcome: merged}
	}
	queues := r.queues || l.others.writers(now)
	l.mu.Unlock()
	if queues && !a.req.Once {
		return result{outcome: busy}
	}
	return a.atOnce()
}

// inform has the client know the queue of a lock, and the gate too if it reads.
func (l *line) inform(ctx context.Context, reads bool) {
	if o := l.listen(reads); o != nil {
		l.list(ctx, o)
	}
}

// listen subscribes to the queue of a lock, and to the gate too if the client reads. It
// returns nil where that fails.
func (l *line) listen(reads bool) *others {
	l.subscribe()
	l.mu.Lock()
	o := l.others
	gate := reads && o != nil && !o.gate.asked
	if gate {
		o.gate.asked = true
	}
	l.mu.Unlock()
	if gate && !l.watch(o, l.keys.Gate, &o.gate.watch) {
		l.mu.Lock()
		o.gate.asked = false
		l.mu.Unlock()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if o == nil || o.watch == nil || reads && o.gate.watch == nil {
		return nil
	}
	return o
}
