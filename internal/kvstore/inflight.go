package kvstore

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// A stream can stop accepting writes for good while its servers keep answering requests
// about it, and a network can lose both. Unanswered writes reveal both cases, so the store
// keeps the oldest one since the last acknowledgement.

const (
	// replyTimeout limits a request whose context has no earlier deadline.
	replyTimeout = 5 * time.Second
	// silentAfter is the age at which an unanswered write counts.
	silentAfter = replyTimeout
	// silentUntil is the time after the last write for which the stream's silence counts:
	// an idle client knows nothing about the stream.
	silentUntil = time.Minute
	// maxOrphans limits the answers kept for writes whose callers have given up. The first
	// ones kept are the oldest, and only those count.
	maxOrphans = 64
)

// inFlight holds the messages that await an answer, and what the answers say about the
// stream. Times are relative to the creation of the store.
type inFlight struct {
	onWritten func(awaited, *nats.Msg, error) // the writer's: handles the answer to a write

	mu      sync.Mutex         // never held across I/O, nor during a call
	pending map[uint64]awaited // nil once the store is closed

	health health
}

// register registers who awaits the answers to a message. It returns false once the store
// is closed.
func (f *inFlight) register(id uint64, a awaited) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pending == nil {
		return false
	}
	f.pending[id] = a
	return true
}

// registered returns who awaits the answers to a message, if anyone does.
func (f *inFlight) registered(id uint64) (a awaited, wanted bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	a, wanted = f.pending[id]
	return a, wanted
}

// close drops what is awaited.
func (f *inFlight) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pending = nil
}

// sentWrite is a write that was sent. The zero value means none.
type sentWrite struct {
	n      uint64        // its number in the store
	at     time.Duration // since the store was made
	key    string
	expect uint64 // the revision that it expects
}

// health is what the store knows about its writes.
type health struct {
	last atomic.Int64  // when the last write was sent, since the store was made
	sent atomic.Uint64 // number of writes sent
	// stored is the number of them that had been sent at the last acknowledgement, or when
	// the connection came back, since a reconnect loses answers.
	stored atomic.Uint64
	// failed is the oldest write since then whose answer says that the stream did not
	// judge it. Under mu.
	failed sentWrite
	// failure is the last such answer. Under mu.
	failure error
	// orphans are the ids of answers that only the store still awaits. Under mu.
	orphans []uint64
}

// awaited is the recipient of the one answer to a write, or of the answers to a request.
type awaited struct {
	write   sentWrite
	written func(Answer) // nil if the caller has given up: see orphan
	answers answerTo     // nil for a write
}

// answerTo handles an answer, or the reason why there will be none: see [NotSent]. It
// reports whether it awaits more answers.
type answerTo func(m *nats.Msg, failure error) (more bool)

// sending records that a write is about to be sent.
func (f *inFlight) sending(at time.Duration, key string, expect uint64) sentWrite {
	h := &f.health
	w := sentWrite{n: h.sent.Add(1), at: at, key: key, expect: expect}
	h.last.Store(int64(w.at))
	return w
}

// storing records that the stream accepts writes, as far as the store knows.
func (f *inFlight) storing() { f.health.stored.Store(f.health.sent.Load()) }

func (f *inFlight) onReply(m *nats.Msg) {
	id, err := strconv.ParseUint(m.Subject[strings.LastIndexByte(m.Subject, '.')+1:], 36, 64)
	if err == nil {
		f.deliver(id, m, nil)
	}
}

// deliver passes an answer, or the reason why there will be none, to its recipient.
func (f *inFlight) deliver(id uint64, m *nats.Msg, failure error) {
	f.mu.Lock()
	a, found := f.pending[id]
	if a.answers == nil {
		delete(f.pending, id)
	}
	f.mu.Unlock()
	switch {
	case !found:
	case a.answers == nil:
		f.onWritten(a, m, failure)
	case !a.answers(m, failure):
		f.drop(id)
	}
}

func (f *inFlight) drop(id uint64) {
	f.mu.Lock()
	delete(f.pending, id)
	f.mu.Unlock()
}

// forget drops an answer that the caller no longer awaits. The store still awaits the
// answer to a write: see orphan. A request that is still queued for the sender is not
// sent.
func (f *inFlight) forget(id uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.orphan(id) {
		delete(f.pending, id)
	}
}

// answered records the answer to a write. A refusal by the stream proves nothing: a leader
// without followers refuses too, and stores nothing.
func (f *inFlight) answered(w sentWrite, a Answer) {
	h := &f.health
	switch {
	case a.Err == nil:
		f.storing()
	case errors.Is(a.Err, ErrUnavailable):
		f.mu.Lock()
		if stored := h.stored.Load(); w.n > 0 && (h.failed.n <= stored || w.n < h.failed.n) {
			h.failed = w
		}
		if h.failure = a.Err; errors.Is(a.Err, ErrNoStream) { // no server answered
			h.failure = nil
		}
		f.mu.Unlock()
	}
}

// orphan keeps the answer to a write whose caller has given up, until the next
// acknowledgement makes it worthless. Under mu.
func (f *inFlight) orphan(id uint64) bool {
	h := &f.health
	stored := h.stored.Load()
	h.orphans = slices.DeleteFunc(h.orphans, func(id uint64) bool {
		worthless := f.pending[id].write.n <= stored
		if worthless {
			delete(f.pending, id)
		}
		return worthless
	})
	w := f.pending[id].write
	switch {
	case slices.Contains(h.orphans, id):
		return true
	case w.n <= stored || len(h.orphans) == maxOrphans:
		return false
	}
	h.orphans = append(h.orphans, id)
	f.pending[id] = awaited{write: w}
	return true
}

// refused stops counting the writes to key, which the server has refused to this user
// without an answer.
func (f *inFlight) refused(key string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, p := range f.pending {
		if p.write.key == key {
			p.write.n = 0
			f.pending[id] = p
		}
	}
	if f.health.failed.key == key {
		f.health.failed = sentWrite{}
	}
}

// unanswered returns the oldest write since the last acknowledgement that has been
// unanswered, or refused, for long enough to count. If it was refused, refusal is the last
// such answer.
func (f *inFlight) unanswered(now time.Duration) (oldest sentWrite, refusal error, found bool) {
	h := &f.health
	stored := h.stored.Load()
	if now-time.Duration(h.last.Load()) > silentUntil {
		return oldest, nil, false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	consider := func(w sentWrite) {
		if w.n > stored && now-w.at >= silentAfter && (!found || w.n < oldest.n) {
			oldest, found = w, true
		}
	}
	consider(h.failed)
	if found {
		refusal = h.failure
	}
	for _, p := range f.pending {
		consider(p.write)
	}
	return oldest, refusal, found
}
