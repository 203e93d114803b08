package kvstore

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// A stream can stop accepting writes for good while its servers go on answering
// requests about it, and a network can swallow both. Unanswered writes
// show both: the store keeps the oldest one since the last acknowledgement.

const (
	// silentAfter is how long a write goes unanswered before that counts.
	silentAfter = replyTimeout
	// silentUntil is how long after the last write its silence counts: an idle
	// client knows nothing of the stream.
	silentUntil = time.Minute
	// maxOrphans bounds how many answers are kept of writes whose callers have given up. The
	// first ones are the oldest, which count.
	maxOrphans = 64
)

// sentWrite is a write that was sent. The zero value is none.
type sentWrite struct {
	n      uint64        // its number in the store
	at     time.Duration // since the store was made
	key    string
	expect uint64 // the revision that it expects
}

// health is what the store knows of its writes.
type health struct {
	made time.Time
	last atomic.Int64  // when the last write was sent, since made
	sent atomic.Uint64 // how many were
	// stored is how many of them had been sent when the last one was acknowledged,
	// or the connection came back, with which answers are lost.
	stored atomic.Uint64
	// failed is the oldest write since then whose answer says that the stream has
	// not judged it. Under Store.mu.
	failed sentWrite
	// failure is the last such answer. Under Store.mu.
	failure error
	// orphans are the ids of answers that only the store awaits. Under Store.mu.
	orphans []uint64
}

func (h *health) now() time.Duration { return time.Since(h.made) }

// sending notes that a write is about to be sent.
func (l *line) sending(key string, expect uint64) sentWrite {
	h := &l.health
	w := sentWrite{n: h.sent.Add(1), at: h.now(), key: key, expect: expect}
	h.last.Store(int64(w.at))
	return w
}

// storing notes that the stream accepts writes, as far as is known.
func (l *line) storing() { l.health.stored.Store(l.health.sent.Load()) }

// answered notes the answer to a write. A refusal by the stream says nothing: a
// leader without followers refuses too, and stores nothing.
func (l *line) answered(w sentWrite, a Answer) {
	h := &l.health
	switch {
	case a.Err == nil:
		l.storing()
	case errors.Is(a.Err, ErrUnavailable):
		l.mu.Lock()
		if stored := h.stored.Load(); w.n > 0 && (h.failed.n <= stored || w.n < h.failed.n) {
			h.failed = w
		}
		if h.failure = a.Err; errors.Is(a.Err, ErrNoStream) { // nobody has answered
			h.failure = nil
		}
		l.mu.Unlock()
	}
}

// orphan keeps the answer to a write whose caller has given up, until the next
// acknowledgement makes it worthless. Under mu.
func (l *line) orphan(id uint64) bool {
	h := &l.health
	stored := h.stored.Load()
	h.orphans = slices.DeleteFunc(h.orphans, func(id uint64) bool {
		worthless := l.pending[id].write.n <= stored
		if worthless {
			delete(l.pending, id)
		}
		return worthless
	})
	w := l.pending[id].write
	switch {
	case slices.Contains(h.orphans, id):
		return true
	case w.n <= stored || len(h.orphans) == maxOrphans:
		return false
	}
	h.orphans = append(h.orphans, id)
	l.pending[id] = awaited{write: w}
	return true
}

// refused makes the writes to key, which the server has refused to this user
// without an answer, count no longer.
func (l *line) refused(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, p := range l.pending {
		if p.write.key == key {
			p.write.n = 0
			l.pending[id] = p
		}
	}
	if l.health.failed.key == key {
		l.health.failed = sentWrite{}
	}
}

// Denied reports a recent refusal of writes to key; see [KV].
func (l *line) Denied(key string) error {
	err := l.denied(l.ctx, l.putPrefix+key)
	if err != nil {
		l.refused(key)
	}
	return err
}

// unanswered returns the oldest write since the last acknowledgement that has gone
// unanswered, or was refused, for so long that it counts. refusal is the last answer then.
func (l *line) unanswered() (oldest sentWrite, refusal error, found bool) {
	h := &l.health
	now, stored := h.now(), h.stored.Load()
	if now-time.Duration(h.last.Load()) > silentUntil {
		return oldest, nil, false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	consider := func(w sentWrite) {
		if w.n > stored && now-w.at >= silentAfter && (!found || w.n < oldest.n) {
			oldest, found = w, true
		}
	}
	consider(h.failed)
	if found {
		refusal = h.failure
	}
	for _, p := range l.pending {
		consider(p.write)
	}
	return oldest, refusal, found
}

// Healthy returns nil if the connection is up and the stream accepts writes, as far as
// the store knows without I/O. Otherwise the error matches [ErrUnavailable]. It does so
// once a write has gone unanswered for 5 l, or refused by more than a conflict, and the
// server has acknowledged none that was sent later. The next acknowledgement ends that state, and so does a minute
// without writes.
func (l *line) Healthy() error {
	if l.away() {
		return fmt.Errorf("%w: connection is reconnecting", ErrUnavailable)
	}
	switch st, ok := fromConn(l.ctx, l, stuckAfter, l.nc.Status); {
	case !ok && l.ctx.Err() == nil:
		return fmt.Errorf("%w: connection is stuck: its network takes no bytes, or it is reconnecting", ErrUnavailable)
	case ok && st != nats.CONNECTED && st != nats.DRAINING_SUBS && st != nats.DRAINING_PUBS:
		return fmt.Errorf("%w: connection is %s", ErrUnavailable, strings.ToLower(st.String()))
	}
	for {
		w, refusal, found := l.unanswered()
		if !found {
			return nil
		}
		if refusal != nil {
			return fmt.Errorf("bucket %q has acknowledged no write for %v: %w; \"lockctl doctor\" shows what is wrong",
				l.bucket, (l.health.now() - w.at).Round(time.Second), refusal)
		}
		if l.Denied(w.key) == nil {
			return fmt.Errorf("%w: the write of %q has gone unanswered for %v, and bucket %q has acknowledged none since: "+
				"its stream may have no leader, or have stopped; \"lockctl doctor\" shows it",
				ErrUnavailable, w.key, (l.health.now() - w.at).Round(time.Second), l.bucket)
		}
	}
}
