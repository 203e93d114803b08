package kvstore

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/natslock/locks/internal/plain"
)

// Memory is an in-memory bucket for tests without a server. Its stores see one another's
// records, and they behave like a [Store] on a single-replica bucket whose connection never
// fails. Memory gets the time from package time, so it works inside a testing/synctest
// bubble. Use [NewMemory] to create one.
type Memory struct {
	bucket  string
	created time.Time

	mu      sync.Mutex
	last    uint64            // the last revision
	records map[string]Record // including tombstones
	sweepAt int               // number of records at which to sweep expired ones
	stores  map[*memoryStore]struct{}
}

// minSweep is the smallest number of records at which a Memory sweeps expired ones.
const minSweep = 64

// NewMemory returns an empty bucket. It starts no goroutines and need not be closed.
func NewMemory(bucket string) *Memory {
	now := time.Now()
	return &Memory{
		bucket: bucket, created: now, last: firstSeq(now) - 1, records: make(map[string]Record), sweepAt: minSweep,
		stores: make(map[*memoryStore]struct{}),
	}
}

// Open returns a store on the bucket, as if for another client. Closing the store keeps the
// records.
func (m *Memory) Open() KV {
	s := &memoryStore{m: m, watches: make(map[*memoryWatch]struct{})}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stores[s] = struct{}{}
	return s
}

// at returns the record under key at time now, or the zero Record if there is none. The
// caller must hold mu.
func (m *Memory) at(key string, now time.Time) Record {
	r := m.records[key]
	if r.TTL > 0 && now.Sub(r.Time) >= r.TTL {
		delete(m.records, key)
		return Record{}
	}
	return r
}

// match returns the records whose keys match any of the patterns, in revision order. The
// caller must hold mu.
func (m *Memory) match(patterns ...string) []Record {
	var found []Record
	now := time.Now()
	for key := range m.records {
		if slices.ContainsFunc(patterns, func(p string) bool { return matches(p, key) }) {
			if r := m.at(key, now); r.Revision > 0 {
				found = append(found, r)
			}
		}
	}
	slices.SortFunc(found, byRevision)
	return found
}

// apply applies a write as a server would. The caller must hold mu.
func (m *Memory) apply(w Write, ttl time.Duration) Answer {
	now := time.Now()
	expected := w.Key
	if w.Guard != "" {
		expected = w.Guard
	}
	if last := m.at(expected, now).Revision; last != w.Expect {
		return Answer{Err: &ConflictError{Key: w.Key, Expected: w.Expect, Last: last}}
	}
	m.last++
	r := Record{Key: w.Key, Value: slices.Clone(w.Value), Revision: m.last, Time: now, TTL: ttl, Deleted: w.Delete}
	m.records[w.Key] = r
	if len(m.records) >= m.sweepAt {
		for key := range m.records {
			m.at(key, now)
		}
		m.sweepAt = max(2*len(m.records), minSweep)
	}
	e := Event{Kind: Put, Record: r}
	if r.Deleted {
		e.Kind = Deleted
	}
	for s := range m.stores {
		if len(s.watches) > 0 {
			s.later(func() { s.notify(e) })
		}
	}
	return Answer{Revision: r.Revision}
}

// matches reports whether a NATS pattern matches a key.
func matches(pattern, key string) bool {
	for {
		want, wantMore, more := strings.Cut(pattern, ".")
		have, haveMore, left := strings.Cut(key, ".")
		switch {
		case want == ">" && !more:
			return true
		case want != "*" && want != have, more != left:
			return false
		case !more:
			return true
		}
		pattern, key = wantMore, haveMore
	}
}

// memoryStore is one client's [KV] on a [Memory]. The Memory's mutex guards its fields.
type memoryStore struct {
	m       *Memory
	watches map[*memoryWatch]struct{}
	closed  bool
	queue   []func() // replies and notifications to deliver
	running bool     // deliver is running
	wg      sync.WaitGroup
}

var _ KV = (*memoryStore)(nil)

// later queues fn for the delivery goroutine, which runs only while there is something to
// deliver. The caller must hold the mutex.
func (s *memoryStore) later(fn func()) {
	if s.closed {
		return
	}
	s.queue = append(s.queue, fn)
	if !s.running {
		s.running = true
		s.wg.Go(s.deliver)
	}
}

func (s *memoryStore) deliver() {
	for {
		s.m.mu.Lock()
		queue := s.queue
		s.queue = nil
		if len(queue) == 0 {
			s.running = false
			s.m.mu.Unlock()
			return
		}
		s.m.mu.Unlock()
		for _, fn := range queue {
			fn()
		}
	}
}

func (s *memoryStore) notify(e Event) {
	var to []*memoryWatch
	s.m.mu.Lock()
	for w := range s.watches {
		if matches(w.pattern, e.Record.Key) {
			to = append(to, w)
		}
	}
	s.m.mu.Unlock()
	for _, w := range to {
		w.event(e)
	}
}

// Send applies a write; see [KV].
func (s *memoryStore) Send(w Write, done func(Answer)) (forget func(), err error) {
	ttl, err := w.check()
	if err != nil {
		return nil, err
	}
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	a := s.m.apply(w, parseTTL(ttl))
	var forgotten atomic.Bool
	s.later(func() {
		if !forgotten.Load() {
			done(a)
		}
	})
	return func() { forgotten.Store(true) }, nil
}

// begin starts a read. If it returns nil, it has locked the mutex and the caller must
// unlock it.
func (s *memoryStore) begin(ctx context.Context) error {
	if ctx.Err() != nil {
		return plain.EndOf(ctx)
	}
	s.m.mu.Lock()
	if s.closed {
		s.m.mu.Unlock()
		return ErrClosed
	}
	return nil
}

// Get returns the record under key; see [KV].
func (s *memoryStore) Get(ctx context.Context, key string, _ uint64) (Record, error) {
	if err := checkKey(key); err != nil {
		return Record{}, err
	}
	err := s.begin(ctx)
	if err == nil {
		defer s.m.mu.Unlock()
		if r := s.m.at(key, time.Now()); r.Revision > 0 {
			return r, nil
		}
		err = ErrNotFound
	}
	return Record{}, fmt.Errorf("read %q: %w", key, err)
}

// List returns the records under pattern; see [KV].
func (s *memoryStore) List(ctx context.Context, pattern string, _ uint64, opts ...ListOption) (Listing, error) {
	what, err := parseOptions(pattern, opts)
	if err != nil {
		return Listing{}, err
	}
	if err := s.begin(ctx); err != nil {
		return Listing{}, fmt.Errorf("list %q: %w", pattern, err)
	}
	defer s.m.mu.Unlock()
	l := Listing{Revision: s.m.last}
	found := s.m.match(append([]string{pattern, what.beside}, what.also...)...)
	if len(what.keys) > 0 {
		found = s.m.match(what.keys...)
	}
	for _, r := range found {
		switch {
		case what.parts && len(found) > batchMax: // like a real server
			l.Keys = append(l.Keys, r.Key)
		case r.Revision < what.from && r.Key != what.beside:
		case what.atMost > 0 && len(l.Records) == what.atMost:
			l.More = true
			l.Left++
		default:
			l.Records = append(l.Records, r)
		}
	}
	if what.from > 0 && what.atMost == 1 && len(l.Records) == 1 { // a server does not count the rest
		l.More, l.Left = true, 0
	}
	l.answer(what)
	return l, nil
}

// State returns the state of the bucket; see [KV].
func (s *memoryStore) State(ctx context.Context, pattern string) (State, error) {
	if pattern != "" {
		if err := checkPattern(pattern); err != nil {
			return State{}, err
		}
	}
	if err := s.begin(ctx); err != nil {
		return State{}, err
	}
	defer s.m.mu.Unlock()
	st := State{LastRevision: s.m.last, Created: s.m.created, Time: time.Now(), Replicas: 1, Notifies: true, Complete: true}
	for _, r := range s.m.match(pattern) {
		st.Keys = append(st.Keys, r.Key)
	}
	slices.Sort(st.Keys)
	return st, nil
}

// memoryWatch implements [Watch] for a [Memory].
type memoryWatch struct {
	tracking
	s       *memoryStore
	pattern string
}

// Watch delivers the changes under pattern; see [KV].
func (s *memoryStore) Watch(pattern string, deliver func(Event)) (Watch, error) {
	if err := checkPattern(pattern); err != nil {
		return nil, err
	}
	w := &memoryWatch{tracking: tracking{deliver: deliver, now: time.Now}, s: s, pattern: pattern}
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	s.watches[w] = struct{}{}
	return w, nil
}

// Stop ends the watch.
func (w *memoryWatch) Stop() {
	w.end()
	w.s.m.mu.Lock()
	defer w.s.m.mu.Unlock()
	delete(w.s.watches, w)
}

// Close ends the watches and waits for the delivery goroutine to finish its current batch.
func (s *memoryStore) Close() {
	s.m.mu.Lock()
	s.closed, s.queue = true, nil
	delete(s.m.stores, s)
	for w := range s.watches {
		w.end()
	}
	clear(s.watches)
	s.m.mu.Unlock()
	s.wg.Wait()
}

// The remaining methods of [KV] are trivial.

func (s *memoryStore) Bucket() string                             { return s.m.bucket }
func (s *memoryStore) Denied(string) error                        { return nil }
func (s *memoryStore) MaxValue() int                              { return MaxRecord }
func (s *memoryStore) Room() error                                { return nil }
func (s *memoryStore) Alone() bool                                { return true }
func (s *memoryStore) Current() bool                              { return true }
func (s *memoryStore) Now() time.Time                             { return time.Now() }
func (s *memoryStore) Verify(context.Context) error               { return nil }
func (s *memoryStore) OnConnection(func(ConnState)) (stop func()) { return func() {} }
func (s *memoryStore) Healthy() error                             { return nil }
