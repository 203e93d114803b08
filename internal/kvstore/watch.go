package kvstore

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// topic is one subscription on re-published changes, shared by the watches of
// the same pattern.
type topic struct {
	pattern string
	cut     uint32             // where the pattern of the keys begins in pattern
	over    bool               // unsubscribed; used by the sender only
	sub     *nats.Subscription // used by the sender only
	watches []*watch           // nearly always one; under Store.mu, and replaced, not changed
}

// topicOf is the topic of keys whose notifications have a prefix.
func topicOf(prefix, keys string) *topic {
	return &topic{pattern: prefix + keys, cut: uint32(len(prefix))}
}

// keys is the pattern of the keys.
func (t *topic) keys() string { return t.pattern[t.cut:] }

// subscribe runs on the sender. All subscriptions share one channel, so that none of them
// costs a goroutine.
func (t *topic) subscribe(s *Store) error {
	if t.sub != nil || t.over {
		return nil
	}
	err := s.run()
	if err != nil {
		return err
	}
	if t.sub, err = s.nc.ChanSubscribe(t.pattern, s.events); err != nil {
		return connError(err)
	}
	return nil
}

// unsubscribe runs on the sender.
func (t *topic) unsubscribe() {
	if t.over = true; t.sub != nil {
		_ = t.sub.Unsubscribe()
	}
}

// watch implements [Watch] for a [Store].
type watch struct {
	tracking
	s     *Store
	topic *topic // under Store.mu
}

// tracking delivers events, and makes the silent ends of records events too.
type tracking struct {
	deliver func(Event)
	now     func() time.Time // estimates the servers' clock

	// order makes an event and what it changes in the map one step, so that the end
	// of a record is delivered before its successor. Taken before mu.
	order sync.Mutex

	mu       sync.Mutex // held only around the map
	stopped  bool
	tracks   atomic.Bool
	expiries map[string]*expiry
}

// expiry turns the silent end of a record into an event.
type expiry struct {
	record Record
	ends   time.Time
	timer  *time.Timer
}

// Watch subscribes to changes of the keys that match pattern; see [KV]. When it
// returns, the subscription is on its way to the server. The answer to a write that is
// sent later proves that it has arrived (see [NoRevision]).
func (s *Store) Watch(pattern string, deliver func(Event)) (Watch, error) {
	if err := checkPattern(pattern); err != nil {
		return nil, err
	}
	if s.seen.Load().notify == "" {
		return nil, ErrNoWatch
	}
	w := &watch{s: s, tracking: tracking{deliver: deliver, now: s.Now}}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, ErrClosed
	}
	notify := s.seen.Load().notify // under mu: or move could miss it
	t, found := s.topics[notify+pattern]
	if !found {
		t = topicOf(notify, pattern)
		s.topics[t.pattern] = t
	}
	w.topic = t
	t.watches = append(slices.Clip(t.watches), w)
	s.mu.Unlock()
	made := make(chan error, 1)
	s.sender.Add(func() { made <- t.subscribe(s) })
	if s.away() || s.stuck() {
		return w, nil
	}
	limit := time.NewTimer(subscribeWithin)
	defer limit.Stop()
	select {
	case err := <-made:
		if err != nil {
			w.Stop()
			return nil, err
		}
	case <-limit.C:
	}
	return w, nil
}

// Stop ends the watch; the last of its pattern ends the subscription.
func (w *watch) Stop() {
	if !w.end() {
		return
	}
	s := w.s
	s.mu.Lock()
	t := w.topic
	t.watches = slices.DeleteFunc(slices.Clone(t.watches), func(o *watch) bool { return o == w })
	last := len(t.watches) == 0
	if last && s.topics[t.pattern] == t {
		delete(s.topics, t.pattern)
	}
	s.mu.Unlock()
	if last {
		s.sender.Add(t.unsubscribe)
	}
}

// move has the watches subscribe to other subjects, and reports whether there were any: the
// bucket was re-created, or an update has changed its notifications. While it has none, the
// watches stay where they are, and are told so.
func (s *Store) move(to string) (moved bool) {
	if to == "" {
		s.tell(Event{Kind: Recheck, Silent: true})
		return false
	}
	type change struct{ old, now *topic }
	var changes []change
	s.mu.Lock()
	for pattern, old := range maps.Clone(s.topics) {
		if pattern == to+old.keys() {
			continue
		}
		now := s.topics[to+old.keys()]
		if now == nil {
			now = topicOf(to, old.keys())
			s.topics[now.pattern] = now
		}
		now.watches = append(slices.Clip(now.watches), old.watches...)
		for _, w := range old.watches {
			w.topic = now
		}
		old.watches = nil
		delete(s.topics, pattern)
		changes = append(changes, change{old, now})
	}
	s.mu.Unlock()
	for _, c := range changes {
		s.sender.Add(func() {
			c.old.unsubscribe()
			_ = c.now.subscribe(s) // fails where the connection is closed, which ends all watches
		})
	}
	return len(changes) > 0
}

// end stops the timers; false when that was done before.
func (w *tracking) end() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		return false
	}
	w.stopped = true
	for _, l := range w.expiries {
		l.timer.Stop()
	}
	clear(w.expiries)
	return true
}

// Track has the end of r's TTL delivered as an event, and the ends of all records to come.
func (w *tracking) Track(r Record) {
	w.tracks.Store(true)
	if r.TTL > 0 && !r.Deleted {
		w.track(r, r.Remaining(w.now()))
	}
}

// track begins to time r and returns the older record under its key.
func (w *tracking) track(r Record, left time.Duration) (before Record) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.expiries[r.Key]
	ends := time.Now().Add(left)
	switch {
	case w.stopped || (l != nil && l.record.Revision > r.Revision):
	case l == nil:
		if w.expiries == nil {
			w.expiries = make(map[string]*expiry)
		}
		l = &expiry{record: r, ends: ends}
		l.timer = time.AfterFunc(left, func() { w.expired(r.Key) })
		w.expiries[r.Key] = l
	default:
		if l.record.Revision < r.Revision {
			before = l.record
		}
		l.record, l.ends = r, ends
		l.timer.Reset(left)
	}
	return before
}

func (w *tracking) expired(key string) {
	w.order.Lock()
	defer w.order.Unlock()
	w.mu.Lock()
	l := w.expiries[key]
	if l == nil || time.Until(l.ends) > 0 { // deleted or renewed while the timer fired
		w.mu.Unlock()
		return
	}
	delete(w.expiries, key)
	w.mu.Unlock()
	w.deliver(Event{Kind: Expired, Record: l.record})
}

// forget ends the timing of a key that was deleted, or written forever, and
// returns what was there.
func (w *tracking) forget(r Record) (before Record) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l := w.expiries[r.Key]; l != nil && l.record.Revision < r.Revision {
		before = l.record
		l.timer.Stop()
		delete(w.expiries, r.Key)
	}
	return before
}

func (w *tracking) event(e Event) {
	w.order.Lock()
	defer w.order.Unlock()
	switch {
	case e.Kind == Put && e.Record.TTL > 0 && w.tracks.Load():
		// The server stored it a moment ago: no clocks to compare.
		e.Before = w.track(e.Record, e.Record.TTL)
	case e.Kind == Put && e.Record.TTL > 0:
	default:
		e.Before = w.forget(e.Record)
	}
	w.deliver(e)
}

// flooded checks whether nats.go has dropped notifications because their queue was full. It
// does so when a queue that was half full is empty again, or has been worked off once. What
// was dropped is newer than all that waited then. It runs on the dispatcher.
func (s *Store) flooded(m *nats.Msg) {
	f := &s.flood
	switch {
	case !f.high && len(s.events) < notifications/2:
	case !f.high:
		f.high, f.left, f.since = true, notifications, time.Time{}
		if r, err := s.record(m.Header, m.Data); err == nil {
			f.since = r.Time
		}
	case len(s.events) > 0 && f.left > 0:
		f.left--
	default:
		since := f.since
		f.high = false
		s.sender.Add(func() {
			if s.dropped() {
				s.recheck(since)
			}
		})
	}
}

// dropped reports whether notifications have been dropped since the last time. It runs on the
// sender.
func (s *Store) dropped() (some bool) {
	s.mu.Lock()
	topics := slices.Collect(maps.Values(s.topics))
	s.mu.Unlock()
	counts := make(map[*topic]int)
	for _, t := range topics {
		if t.sub == nil {
			continue
		}
		if n, err := t.sub.Dropped(); err == nil && n > 0 {
			counts[t] = n
			some = some || n > s.flood.dropped[t]
		}
	}
	s.flood.dropped = counts
	return some
}

func (s *Store) notify(m *nats.Msg) {
	if m.Sub == nil {
		return
	}
	r, err := s.record(m.Header, m.Data)
	if err != nil || checkKey(r.Key) != nil { //safety:notified-key
		return // a stray or forged message
	}
	s.notified.Store(true)
	e := Event{Kind: Put, Record: r}
	if r.Deleted {
		e.Kind = Deleted
	}
	for _, w := range s.watchesOf(m.Sub.Subject) {
		w.event(e)
	}
}

func (s *Store) watchesOf(pattern string) []*watch {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.topics[pattern]
	if t == nil {
		return nil
	}
	return t.watches
}

// recheck notifies all watches that they may have missed events.
func (s *Store) recheck(since time.Time) { s.tell(Event{Kind: Recheck, Since: since}) }

// tell delivers an event to all watches.
func (s *Store) tell(ev Event) {
	var all []*watch
	s.mu.Lock()
	for _, t := range s.topics {
		all = append(all, t.watches...)
	}
	s.mu.Unlock()
	for _, w := range all {
		w.deliver(ev)
	}
}
