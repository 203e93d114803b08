package acquire

import (
	"context"
	"slices"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
)

// Contended returns a channel that is closed when a goroutine or another client waits for
// what the member holds. The first call has the client subscribe to the queue and list it,
// in the background. The subscription ends with the lease.
func (m *member) Contended() <-chan struct{} {
	rs := m.runs
	rs.mu.Lock()
	defer rs.mu.Unlock()
	hint, first := m.Hint()
	now := rs.c.b.Instant()
	if !first || m.Lease().Ended(now) {
		return hint
	}
	r := m.lined()
	switch {
	case r == nil: // it has left
	case r.line == nil || r.contended(now): // or other goroutines wait
		close(hint)
	default:
		if r.line.hints == nil {
			r.line.hints = make(map[*member]chan struct{})
		}
		r.line.hints[m] = hint
		if r.listen(); !r.over && !r.informed(now) {
			rs.c.s.Background(func(ctx context.Context) { r.line.inform(ctx, r.reads()) })
		}
	}
	return hint
}

// lined returns the run of a holder. It has a line, unless it is that of a one-shot acquire
// and other goroutines wait. lined returns nil if the holder has left. Under mu.
func (m *member) lined() *run {
	rs := m.runs
	encoded, err := record.EncodeName(m.Name())
	if err != nil {
		return nil
	}
	keys := record.KeysOf(m.Lease().Kind, encoded)
	switch r := m.run; {
	case r == nil && rs.alone[keys.Gate] == m:
		rs.line(keys)
	case r == nil || r.line != nil || r.inside == 0:
	case keys.Kind == record.Semaphore: // each permit by itself
		r.heads(&line{runs: rs, keys: keys}, m)
	case rs.lines[keys.Gate] == nil:
		r.heads(rs.line(keys), m)
	}
	if m.run == nil || m.run.over || m.run.inside == 0 {
		return nil
	}
	return m.run
}

// contended says whether a goroutine or another client waits for the lease of the run.
// Readers keep only writers waiting. Under mu.
func (r *run) contended(now clock.Instant) bool {
	return r.asked(now) || slices.ContainsFunc(r.line.all, func(x *run) bool { //safety:contended-asked
		return len(x.members) > 0 && !(r.reads() && x.reads())
	})
}

// contend notifies the holders that want to know whether a goroutine waits. Under mu.
func (l *line) contend(now clock.Instant) {
	for m, hint := range l.hints {
		if m.run.contended(now) {
			close(hint)
			delete(l.hints, m)
		}
	}
}

// unhint has the member notified no more. Under mu.
func (m *member) unhint() {
	if l := m.run.line; l != nil {
		delete(l.hints, m)
	}
}
