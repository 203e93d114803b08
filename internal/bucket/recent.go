package bucket

import (
	"strings"
	"sync"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
)

// recentMax limits how many tombstones of locks and places a client remembers.
const recentMax = 4096

// Recent remembers the tombstones that this client has left, which live for a second. Before [Known.Until], a claim
// that replaces one of these tombstones needs no read. The client's next place in a queue reuses the key of its last
// one, so that lists contain few tombstones. The zero value is ready to use.
type Recent struct {
	mu     sync.Mutex
	m      map[string]trace
	places map[string][]vacancy // keyed by the queue's key prefix
	vacant int                  // number of vacancies in places
	// swept is when expired entries were last removed, or 0 if never. It limits how often they are removed, because
	// scanning all entries costs more than a release.
	swept clock.Instant
}

type trace struct {
	tombstone uint64 // 0 if there is none
	at        clock.Instant
	empty     clock.Instant // when the queue was last seen empty; 0 if never
}

// vacancy is a place that this client has left in a queue. Other clients expect a random key to be free, so only this
// client may reuse the vacancy's key.
type vacancy struct {
	key       string
	tombstone uint64
	at        clock.Instant
}

// Left records that the client has left a tombstone for a lock or a place.
func (r *Recent) Left(now clock.Instant, key string, place bool, revision uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.m)+r.vacant >= recentMax && (r.swept == 0 || now.Sub(r.swept) > record.Bypass) {
		r.sweep(now)
	}
	full := len(r.m)+r.vacant >= recentMax
	if place {
		if full {
			return // the next place will use a new key
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
		return // the next claim will read the lock
	}
	t.tombstone, t.at = revision, now
	r.m[key] = t
}

// sweep removes expired entries. The caller must hold mu.
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

// fade drops the expired vacancies of a queue, which come first. The caller must hold mu.
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

// Vacancy removes and returns the key and tombstone of a place that this client has just left in the queue. Both are
// zero if there is none.
func (r *Recent) Vacancy(now clock.Instant, queue string) (key string, tombstone uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fade(queue, now)
	all := r.places[queue]
	if len(all) == 0 {
		return "", 0
	}
	v := all[len(all)-1] // the newest, which expires last
	r.vacant--
	if r.places[queue] = all[:len(all)-1]; len(all) == 1 {
		delete(r.places, queue)
	}
	return v.key, v.tombstone
}

// Unqueued records that no waiter was queued for the lock at the given time.
func (r *Recent) Unqueued(key string, at clock.Instant) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if t, ok := r.m[key]; ok {
		t.empty = at
		r.m[key] = t
	}
}

// Known is what a client knows about a lock without sending a request.
type Known struct {
	Tombstone uint64 // the client's own tombstone, less than a second old; 0 if there is none
	// Until is the deadline for taking the lock without reading the queue: [record.Bypass] after the queue was last
	// seen empty. It is 0 if the queue has to be read now.
	Until clock.Instant
}

// Known returns what the client knows about a lock that it is about to take.
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
