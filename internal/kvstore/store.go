package kvstore

import (
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	hdrExpect        = "Nats-Expected-Last-Subject-Sequence"
	hdrExpectSubject = "Nats-Expected-Last-Subject-Sequence-Subject"
	hdrTTL           = "Nats-TTL"
	hdrOperation     = "KV-Operation"
)

// Store is a bucket reached over a connection. It implements [KV].
type Store struct {
	*line
	cfg       Config
	stream    string
	seen      atomic.Pointer[view]
	imported  bool        // each request gets one answer only
	multiOff  atomic.Bool // the multi-key read is forbidden to this user
	leaderOff atomic.Bool // the leader's read is
	clock     serverClock

	roomUntil  atomic.Uint64 // the revision up to which there is room for records
	doubtedAt  atomic.Int64  // when a refusal had the bucket verified, since the store was made
	mirrorSeen atomic.Bool   // a mirror has answered a read: a bucket on one server may have one unnoticed

	topics map[string]*topic // under mu

	flood    flood
	notified atomic.Bool            // a notification has arrived, or the store has warned that none does
	silence  int                    // own writes without the notification that they should have caused. Under mu
	silentAt time.Time              // the last of them that counts. Under mu
	ackHead  atomic.Pointer[[]byte] // of acknowledgements, up to the sequence
}

// flood is what is known of notifications that come faster than they are delivered.
type flood struct {
	high    bool           // some may have been dropped. The dispatcher's, as the next two
	since   time.Time      // the time of the record before which none was; zero: not known
	left    int            // how many more to deliver before the counts of dropped ones are read
	dropped map[*topic]int // those that were reported. The sender's
}

var _ KV = (*Store)(nil)

func newStore(js jetstream.JetStream, cfg Config) *Store {
	s := &Store{line: newLine(js, cfg.Bucket), cfg: cfg, stream: streamName(cfg.Bucket), topics: make(map[string]*topic)}
	s.onWritten = s.written
	s.onEvent = func(m *nats.Msg) {
		s.notify(m)
		s.flooded(m)
	}
	s.onReturn = func() { s.recheck(time.Time{}) }
	if js.Options().Domain == "" {
		// A service import passes one answer per request, unless its export says
		// otherwise. Then each record needs a request of its own.
		s.imported = s.apiPrefix != defaultAPI
		s.multiOff.Store(s.imported)
	}
	s.seen.Store(&view{})
	s.doubtedAt.Store(-int64(doubtEvery))
	return s
}

// Now estimates the servers' wall clock; see [KV].
func (s *Store) Now() time.Time { return s.clock.now() }

// Bucket returns the bucket's name.
func (s *Store) Bucket() string { return s.cfg.Bucket }

// Close ends the store's watches, subscriptions and goroutines and waits for
// the goroutines, so it must not be called from one of its callbacks. The
// connection is the caller's and stays open. Answers still to come are dropped,
// calls still waiting for one return [ErrClosed].
func (s *Store) Close() {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		s.awaitGoroutines()
		return
	}
	s.closed = true
	clear(s.pending)
	topics := s.topics
	s.topics = map[string]*topic{}
	var watches []*watch
	for _, t := range topics {
		watches = append(watches, t.watches...)
	}
	clear(s.conn)
	replies, status := s.replies, s.status
	s.mu.Unlock()
	s.end()
	s.sender.Add(func() {
		if replies != nil {
			_ = replies.Unsubscribe()
		}
		if status != nil {
			s.nc.RemoveStatusListener(status)
		}
		for _, t := range topics {
			t.unsubscribe()
		}
	})
	for _, w := range watches {
		w.end()
	}
	s.awaitGoroutines()
}
