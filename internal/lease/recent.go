package lease

import (
	"strings"
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

// recent remembers the tombstones this client has left: of locks, so that taking
// one again needs no read; of places in queues, so that the next place has the key
// of the last one and lists of the queue are not full of tombstones.
type recent struct {
	mu     sync.Mutex
	m      map[string]trace
	places map[string][]vacancy // by what the keys of the queue begin with
	vacant int                  // how many places
	// waiting counts the waiters of this client, by the lock.
	waiting map[string]int
	// swept is when what has expired was last thrown out: looking at all of
	// it costs more than a release. 0: never.
	swept Instant
}

type trace struct {
	tombstone uint64 // 0: none
	at        Instant
	empty     Instant // when the queue was last seen empty; 0: never
}

// vacancy is a place in a queue that was left. Only who has left it may use its
// key again: the others expect a random one to be free.
type vacancy struct {
	key       string
	tombstone uint64
	at        Instant
}

// left notes the own tombstone of a lock or a place.
func (e *Engine) left(s spec, revision uint64) {
	if s.once {
		return
	}
	now := e.now()
	r := &e.recent
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.m)+r.vacant >= recentMax && (r.swept == 0 || now.Sub(r.swept) > bypass) {
		r.sweep(now)
	}
	full := len(r.m)+r.vacant >= recentMax
	if !s.lock {
		if full {
			return // a new key will do
		}
		if r.places == nil {
			r.places = make(map[string][]vacancy)
		}
		queue := s.key[:strings.LastIndexByte(s.key, '.')+1]
		r.fade(queue, now)
		r.places[queue] = append(r.places[queue], vacancy{s.key, revision, now})
		r.vacant++
		return
	}
	if r.m == nil {
		r.m = make(map[string]trace)
	}
	t, known := r.m[s.key]
	if !known && full || t.tombstone > revision {
		return // a read will do
	}
	t.tombstone, t.at = revision, now
	r.m[s.key] = t
}

// sweep throws out what has expired. Under mu.
func (r *recent) sweep(now Instant) {
	r.swept = now
	for k, t := range r.m {
		if now.Sub(t.at) > tombstoneLife {
			delete(r.m, k)
		}
	}
	for queue := range r.places {
		r.fade(queue, now)
	}
}

// fade drops the vacancies of a queue that have expired, the oldest of which come
// first. Under mu.
func (r *recent) fade(queue string, now Instant) {
	all := r.places[queue]
	n := 0
	for n < len(all) && now.Sub(all[n].at) >= tombstoneLife {
		n++
	}
	r.vacant -= n
	if n == len(all) {
		delete(r.places, queue)
	} else {
		r.places[queue] = all[n:]
	}
}

// vacancy returns the key of a place that this client has left in the queue a
// moment ago, and its tombstone; "" and 0 when there is none.
func (e *Engine) vacancy(queue string) (key string, tombstone uint64) {
	now := e.now()
	r := &e.recent
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

// known is what a client knows of a lock without asking.
type known struct {
	tombstone uint64 // its own, of the last second; 0: none
	unqueued  bool   // it saw the queue empty a moment ago
	queued    bool   // others of this client are queued
}

// again returns what is known of a lock that is to be taken.
func (e *Engine) again(key string) (k known) {
	now := e.now()
	r := &e.recent
	r.mu.Lock()
	defer r.mu.Unlock()
	k.queued = r.waiting[key] > 0
	t, ok := r.m[key]
	if !ok {
		return k
	}
	if now.Sub(t.at) >= tombstoneLife {
		delete(r.m, key)
		return k
	}
	k.tombstone, k.unqueued = t.tombstone, t.empty != 0 && now.Sub(t.empty) < bypass
	return k
}

// waits counts who of this client is queued for a lock.
func (e *Engine) waits(key string, n int) {
	r := &e.recent
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting == nil {
		r.waiting = make(map[string]int)
	}
	if r.waiting[key] += n; r.waiting[key] == 0 {
		delete(r.waiting, key)
	}
}
