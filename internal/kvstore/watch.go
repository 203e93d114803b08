package kvstore

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// watcher subscribes to the changes that the bucket publishes and passes them to the
// watches.
type watcher struct {
	*stream

	mu     sync.Mutex        // never held across I/O or together with the line's mutex
	topics map[string]*topic // nil once the store is closed

	flood    flood
	notified atomic.Bool // a notification has arrived, or the store has warned that none has
	silence  int         // own writes without a notification, as counted by unnotified; guarded by mu
	silentAt time.Time   // when the last such write was counted; guarded by mu
}

// flood tracks whether notifications arrive faster than they are delivered.
type flood struct {
	high    bool           // some may have been dropped; used by the dispatcher, like since and left
	since   time.Time      // time of a record before which no notification was dropped; zero if unknown
	left    int            // notifications to deliver before reading the drop counts
	dropped map[*topic]int // drops already reported; used by the sender
}

func newWatcher(s *stream) *watcher {
	w := &watcher{stream: s, topics: make(map[string]*topic)}
	s.onEvent = func(m *nats.Msg) {
		w.notify(m)
		w.flooded(m)
	}
	s.onReturn = func() { w.recheck(time.Time{}) }
	return w
}

// close ends the watches and their subscriptions.
func (s *watcher) close() {
	s.mu.Lock()
	topics, all := s.topics, s.all()
	s.topics = nil
	s.mu.Unlock()
	s.calls.Add(func() {
		for _, t := range topics {
			t.unsubscribe()
		}
	})
	for _, w := range all {
		w.end()
	}
}

// all returns all watches. The caller must hold mu.
func (s *watcher) all() (all []*watch) {
	for _, t := range s.topics {
		all = append(all, t.watches...)
	}
	return all
}

// topic is a subscription to republished changes, shared by the watches on the same
// pattern.
type topic struct {
	pattern string
	cut     uint32             // where the key pattern begins in pattern
	over    bool               // unsubscribed; used only by the sender
	since   time.Duration      // when it was created, relative to the store's creation
	sub     *nats.Subscription // used only by the sender
	watches []*watch           // nearly always one; guarded by watcher.mu, and replaced rather than modified
}

// topicOf returns the topic for the given key pattern under the notification prefix,
// creating it if necessary. The caller must hold mu.
func (s *watcher) topicOf(prefix, keys string) *topic {
	pattern := prefix + keys
	t := s.topics[pattern]
	if t == nil {
		t = &topic{pattern: pattern, cut: uint32(len(prefix)), since: s.now()}
		s.topics[pattern] = t
	}
	return t
}

// keys returns the topic's key pattern.
func (t *topic) keys() string { return t.pattern[t.cut:] }

// subscribe runs on the sender. All subscriptions share one channel, so none needs its own
// goroutine.
func (t *topic) subscribe(s *watcher) error {
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

// watch implements [Watch] for a watcher.
type watch struct {
	tracking
	s     *watcher
	topic *topic // guarded by watcher.mu
}

// Watch subscribes to changes to keys that match pattern; see [KV]. When it returns, the
// subscription is on its way to the server. The reply to any later write proves that the
// subscription has arrived there (see [NoRevision]).
func (s *watcher) Watch(pattern string, deliver func(Event)) (Watch, error) {
	if err := checkPattern(pattern); err != nil {
		return nil, err
	}
	w := &watch{s: s, tracking: tracking{deliver: deliver, now: s.Now}}
	t, err := s.join(w, pattern)
	if err != nil {
		return nil, err
	}
	made := make(chan error, 1)
	s.calls.Add(func() { made <- t.subscribe(s) })
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

// join adds a watch to the topic for its pattern.
func (s *watcher) join(w *watch, pattern string) (*topic, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	notify := s.seen.Load().notify // loaded under mu, because move could otherwise miss this watch
	switch {
	case s.topics == nil:
		return nil, ErrClosed
	case notify == "":
		return nil, ErrNoWatch
	}
	w.topic = s.topicOf(notify, pattern)
	w.topic.watches = append(slices.Clip(w.topic.watches), w)
	return w.topic, nil
}

// Stop ends the watch. Stopping the last watch on a pattern also ends the subscription.
func (w *watch) Stop() {
	if !w.end() {
		return
	}
	s := w.s
	s.mu.Lock()
	defer s.mu.Unlock()
	t := w.topic
	t.watches = slices.DeleteFunc(slices.Clone(t.watches), func(o *watch) bool { return o == w })
	if len(t.watches) > 0 {
		return
	}
	if s.topics[t.pattern] == t {
		delete(s.topics, t.pattern)
	}
	// Queue this under mu. Otherwise a Close, which no longer knows about the topic, could
	// stop the sender first.
	s.calls.Add(t.unsubscribe)
}

// move moves the watches to other subjects, because the bucket was re-created or an update
// changed its notifications. It reports whether there were any watches to move. If the
// bucket has no notifications, the watches stay where they are and are told that none will
// arrive.
func (s *watcher) move(to string) (moved bool) {
	if to == "" {
		s.tell(Event{Kind: Recheck, Silent: true})
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for pattern, old := range maps.Clone(s.topics) {
		if pattern == to+old.keys() {
			continue
		}
		now := s.topicOf(to, old.keys())
		now.watches = append(slices.Clip(now.watches), old.watches...)
		for _, w := range old.watches {
			w.topic = now
		}
		old.watches = nil
		delete(s.topics, pattern)
		moved = true
		s.calls.Add(func() { // under mu; see Stop
			old.unsubscribe()
			_ = now.subscribe(s) // fails if the connection is closed, which ends all watches
		})
	}
	return moved
}

// flooded checks whether nats.go has dropped notifications because the queue was full. Once
// the queue has been half full, flooded checks as soon as the queue is empty or a full
// queue's worth has been delivered. Dropped notifications are newer than everything that
// was queued when the queue was half full. flooded runs on the dispatcher.
func (s *watcher) flooded(m *nats.Msg) {
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
		s.calls.Add(func() {
			if s.dropped() {
				s.recheck(since)
			}
		})
	}
}

// dropped reports whether notifications have been dropped since the last call. It runs on
// the sender.
func (s *watcher) dropped() (some bool) {
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

func (s *watcher) notify(m *nats.Msg) {
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

func (s *watcher) watchesOf(pattern string) []*watch {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.topics[pattern]
	if t == nil {
		return nil
	}
	return t.watches
}

// recheck tells all watches that they may have missed events.
func (s *watcher) recheck(since time.Time) { s.tell(Event{Kind: Recheck, Since: since}) }

// tell delivers an event to all watches.
func (s *watcher) tell(ev Event) {
	s.mu.Lock()
	all := s.all()
	s.mu.Unlock()
	for _, w := range all {
		w.deliver(ev)
	}
}
