package lease

import (
	"sync"
	"time"
)

const (
	// tombstoneLife is how long the server keeps a tombstone.
	tombstoneLife = time.Second
	// bypass is how long after it has seen a queue empty a client may take the
	// lock again without looking: the hot path stays one round trip, and nobody
	// queued waits longer than that for it.
	bypass = 100 * time.Millisecond
	// recentMax bounds the memory of locks released a moment ago.
	recentMax = 4096
)

// recent remembers the tombstones this client has left, so that taking a lock
// again needs no read.
type recent struct {
	mu sync.Mutex
	m  map[string]trace
	// swept is when what has expired was last thrown out: looking at all of
	// it costs more than a release. 0: never.
	swept Instant
}

type trace struct {
	tombstone uint64 // 0: none
	at        Instant
	empty     Instant // when the queue was last seen empty; 0: never
}

// left notes the own tombstone of a lock.
func (e *Engine) left(s spec, revision uint64) {
	if !s.lock || s.once {
		return
	}
	now := e.now()
	r := &e.recent
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.m == nil {
		r.m = make(map[string]trace)
	}
	if len(r.m) >= recentMax && (r.swept == 0 || now.Sub(r.swept) > bypass) {
		r.swept = now
		for k, t := range r.m {
			if now.Sub(t.at) > tombstoneLife {
				delete(r.m, k)
			}
		}
	}
	t, known := r.m[s.key]
	if !known && len(r.m) >= recentMax || t.tombstone > revision {
		return // a read will do
	}
	t.tombstone, t.at = revision, now
	r.m[s.key] = t
}

// emptySeen notes that nobody was queued for the lock.
func (e *Engine) emptySeen(key string, at Instant) {
	r := &e.recent
	r.mu.Lock()
	defer r.mu.Unlock()
	if t, ok := r.m[key]; ok {
		t.empty = at
		r.m[key] = t
	}
}

// again returns the own tombstone of a lock, 0 when there is none any more,
// and whether the queue was seen empty a moment ago.
func (e *Engine) again(key string) (tombstone uint64, unqueued bool) {
	now := e.now()
	r := &e.recent
	r.mu.Lock()
	defer r.mu.Unlock()
	t, ok := r.m[key]
	if !ok {
		return 0, false
	}
	if now.Sub(t.at) >= tombstoneLife {
		delete(r.m, key)
		return 0, false
	}
	return t.tombstone, t.empty != 0 && now.Sub(t.empty) < bypass
}
