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
// about it, and a network can lose writes and requests alike. Unanswered writes reveal
// either problem, so the store remembers the oldest unanswered write since the last
// acknowledgment.

const (
	// replyTimeout limits a request whose context has no earlier deadline.
	replyTimeout = 5 * time.Second
	// silentAfter is the age at which an unanswered write makes the store unhealthy.
	silentAfter = replyTimeout
	// silentUntil is how long after the last write the stream's silence is still a sign of
	// trouble. A client that sends no writes learns nothing about the stream.
	silentUntil = time.Minute
	// maxOrphans limits the number of replies still awaited for writes whose callers have
	// given up. Beyond the limit, replies to newer writes are no longer awaited, because
	// only the oldest ones matter.
	maxOrphans = 64
)

// inFlight tracks the messages that are awaiting replies, and what the replies reveal about
// the stream. Times are relative to the store's creation.
type inFlight struct {
	onWritten func(awaited, *nats.Msg, error) // set by the writer; handles the reply to a write

	mu      sync.Mutex         // never held across I/O or a callback
	pending map[uint64]awaited // nil once the store is closed

	health health
}

// register registers the recipient of a message's replies. It returns false once the store
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

// registered returns the recipient of a message's replies, if it still has one.
func (f *inFlight) registered(id uint64) (a awaited, wanted bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	a, wanted = f.pending[id]
	return a, wanted
}

func (f *inFlight) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pending = nil
}

// sentWrite describes a write that was sent. The zero value means no write.
type sentWrite struct {
	n      uint64        // its number within the store
	at     time.Duration // relative to the store's creation
	key    string
	expect uint64 // the expected revision
}

// health is what the store knows about its writes.
type health struct {
	last atomic.Int64  // when the last write was sent, relative to the store's creation
	sent atomic.Uint64 // number of writes sent
	// stored is the value of sent at the last acknowledgment or reconnect. Reconnects are
	// included because they lose replies.
	stored atomic.Uint64
	// failed is the oldest of the writes sent since then whose replies show that the stream
	// did not evaluate them. Guarded by mu.
	failed sentWrite
	// failure is the error in the last reply showing that a write was not evaluated, or nil
	// if that reply said that there were no responders. Guarded by mu.
	failure error
	// orphans are the IDs of replies that only the store still awaits. Guarded by mu.
	orphans []uint64
}

// awaited is the recipient of the single reply to a write, or of the replies to a request.
type awaited struct {
	write   sentWrite
	written func(Answer) // nil once the caller has given up; see orphan
	answers answerTo     // nil for a write
}

// answerTo handles a reply, or the reason that none will arrive (see [NotSent]). It reports
// whether it expects more replies.
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

// deliver passes a reply, or the reason that none will arrive, to its recipient.
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

// forget drops a reply that the caller no longer awaits. If the message is a write, the
// store may keep awaiting the reply (see orphan). A request that is still queued for the
// sender is not sent.
func (f *inFlight) forget(id uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.orphan(id) {
		delete(f.pending, id)
	}
}

// answered records the reply to a write. A conflict proves nothing about the stream,
// because even a leader without followers, which can store nothing, reports conflicts.
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
		if h.failure = a.Err; errors.Is(a.Err, ErrNoStream) { // no server replied
			h.failure = nil
		}
		f.mu.Unlock()
	}
}

// orphan keeps awaiting the reply to a write whose caller has given up, until the next
// acknowledgment makes the reply irrelevant. It returns false if the reply is not worth
// keeping or too many are kept. The caller must hold mu.
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

// refused stops treating the writes to key as unanswered, because the server has denied
// them to this user without replying.
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

// unanswered returns the oldest write since the last acknowledgment that has gone
// unanswered, or stayed refused, for at least silentAfter. If a refused write qualifies,
// refusal is the error from the last refusal.
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
