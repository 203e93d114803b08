package bucket

import (
	"strings"
	"sync"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
)

// recentMax limits the tombstones of locks and places that a client remembers.
const recentMax = 4096

// Recent remembers the tombstones that this client has left, for the second that they live. A claim at such a tombstone
// needs no read while [Known.Until] allows that. The next place in a queue reuses the key of the last one, so that
// lists contain few tombstones. The zero value is ready.
type Recent struct {
	mu     sync.Mutex
	m      map[string]trace
	places map[string][]vacancy // by the prefix of the queue's keys
	vacant int                  // the number of places
	// swept is when expired entries were last removed; 0 if never. It limits how often that is done, because going
	// through all entries costs more than a release.
	swept clock.Instant
}

type trace struct {
	tombstone uint64 // 0 if there is none
	at        clock.Instant
	empty     clock.Instant // when the queue was last seen empty; 0 if never
}

// vacancy is a place that was left in a queue. Only the client that left it may reuse its key: other clients expect a
// random key to be free.
type vacancy struct {
	key       string
	tombstone uint64
	at        clock.Instant
}

// Left records the client's own tombstone of a lock or a place.
func (r *Recent) Left(now clock.Instant, key string, place bool, revision uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.m)+r.vacant >= recentMax && (r.swept == 0 || now.Sub(r.swept) > record.Bypass) {
		r.sweep(now)
	}
	full := len(r.m)+r.vacant >= recentMax
	if place {
		if full {
			return // a new key will do
		}
		if r.places == nil {
			r.places = make(map[string][]vacancy)
		}
		queue := key[:strings.LastIndexByte(key, '.')+1]
		r.fade(queue, now)
		r.places[queue] = append(r.places[queue], vacancy{key, revision, now})
		r.vacant++
		return
	}
	if r.m == nil {
		r.m = make(map[string]trace)
	}
	t, known := r.m[key]
	if !known && full || t.tombstone > revision {
		return // a read will do
	}
	t.tombstone, t.at = revision, now
	r.m[key] = t
}

// sweep removes what has expired. Under mu.
func (r *Recent) sweep(now clock.Instant) {
	r.swept = now
	for k, t := range r.m {
		if now.Sub(t.at) > record.TombstoneLife {
			delete(r.m, k)
		}
	}
	for queue := range r.places {
		r.fade(queue, now)
	}
}

// fade drops the expired vacancies of a queue. The oldest come first. Under mu.
func (r *Recent) fade(queue string, now clock.Instant) {
	all := r.places[queue]
	n := 0
	for n < len(all) && now.Sub(all[n].at) >= record.TombstoneLife {
		n++
	}
	r.vacant -= n
	if n == len(all) {
		delete(r.places, queue)
	} else {
		r.places[queue] = all[n:]
	}
}

// Vacancy returns the key and the tombstone of a place that this client has just left in the queue. Both are zero if
// there is none.
func (r *Recent) Vacancy(now clock.Instant, queue string) (key string, tombstone uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fade(queue, now)
	all := r.places[queue]
	if len(all) == 0 {
		return "", 0
	}
	v := all[len(all)-1] // the newest: it expires last
	r.vacant--
	if r.places[queue] = all[:len(all)-1]; len(all) == 1 {
		delete(r.places, queue)
	}
	return v.key, v.tombstone
}

// Unqueued records that no waiter was queued for the lock at time at.
func (r *Recent) Unqueued(key string, at clock.Instant) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if t, ok := r.m[key]; ok {
		t.empty = at
		r.m[key] = t
	}
}

// Known is what a client knows about a lock without a request.
type Known struct {
	Tombstone uint64 // its own, of the last second; 0 if there is none
	// Until is the end of the time in which the lock may be taken without reading the queue: [record.Bypass] after the
	// queue was seen empty. It is 0 if a read is needed now.
	Until clock.Instant
}

// Known returns what is known about a lock that the client is about to take.
func (r *Recent) Known(now clock.Instant, key string) (k Known) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t, ok := r.m[key]
	if !ok {
		return k
	}
	if now.Sub(t.at) >= record.TombstoneLife {
		delete(r.m, key)
		return k
	}
	k.Tombstone = t.tombstone
	if t.empty != 0 && now.Sub(t.empty) < record.Bypass {
		k.Until = t.empty.Add(record.Bypass)
	}
	return k
}
