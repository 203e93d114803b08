package kvstore

import (
	"cmp"
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/internal/worker"
)

const (
	hdrExpect        = "Nats-Expected-Last-Subject-Sequence"
	hdrExpectSubject = "Nats-Expected-Last-Subject-Sequence-Subject"
	hdrTTL           = "Nats-TTL"
	hdrOperation     = "KV-Operation"
	hdrStatus        = "Status"

	defaultAPI = "$JS.API."
	// notifications is how many events may wait for the dispatcher; further
	// ones are dropped, which watchers must live with anyway.
	notifications = 8192
)

// Store is a bucket reached over a connection. It implements [KV].
type Store struct {
	nc        *nats.Conn
	cfg       Config
	stream    string
	prefix    string // of the keys' subjects, as the stream stores them
	apiPrefix string // of the JetStream API
	putPrefix string // prefix as this connection has to publish it
	inboxes   string // the prefix of every inbox of the connection
	seen      atomic.Pointer[view]
	imported  bool                         // each request gets one answer only
	multiOff  atomic.Bool                  // the multi-key read is forbidden to this user
	leaderOff atomic.Bool                  // the leader's read is
	clock     atomic.Pointer[clockReading] // the last reading of the server's time

	roomUntil  atomic.Uint64 // the revision up to which there is room for records
	doubtedAt  atomic.Int64  // when a refusal had the bucket verified, since the store was made
	mirrorSeen atomic.Bool   // a mirror has answered a read: a bucket on one server may have one unnoticed

	runs       bool   // the subscription to the answers, and the dispatcher. The sender's
	inbox      string // of this store's answers
	nextID     atomic.Uint64
	replies    *nats.Subscription
	events     chan *nats.Msg
	status     chan nats.Status
	maxPayload atomic.Int64 // of the server, as of the last connection
	state      atomic.Int32 // a nats.Status: the last one reported; DISCONNECTED: the store does not listen yet
	reconnects uint64       // of the connection, when the store was made
	upSince    atomic.Int64 // when the connection came back the last time, since the store was made
	sender     *worker.Worker
	ctx        context.Context // ends with the store
	end        context.CancelFunc
	wg         sync.WaitGroup

	mu      sync.Mutex // never held across I/O
	closed  bool
	pending map[uint64]awaited
	topics  map[string]*topic
	conn    map[int]func(ConnState)
	connID  int

	flood    flood
	notified atomic.Bool            // a notification has arrived, or the store has warned that none does
	silence  int                    // own writes without the notification that they should have caused
	silentAt time.Time              // the last of them that counts
	ackHead  atomic.Pointer[[]byte] // of acknowledgements, up to the sequence

	lastErr    error     // of the connection, as read last
	lookedAt   time.Time // when that read began
	lastDenied error
	deniedAt   time.Time

	health health
}

// flood is what is known of notifications that come faster than they are delivered.
type flood struct {
	high    bool           // some may have been dropped. The dispatcher's, as the next two
	since   time.Time      // the time of the record before which none was; zero: not known
	left    int            // how many more to deliver before the counts of dropped ones are read
	dropped map[*topic]int // those that were reported. The sender's
}

var _ KV = (*Store)(nil)

// API is the prefix of the subjects of js, with a dot.
func API(js jetstream.JetStream) string {
	switch opts := js.Options(); {
	case opts.Domain != "":
		return "$JS." + opts.Domain + ".API."
	case opts.APIPrefix != "":
		return strings.TrimSuffix(opts.APIPrefix, ".") + "."
	}
	return defaultAPI
}

func newStore(js jetstream.JetStream, cfg Config) *Store {
	s := &Store{
		nc:        js.Conn(),
		inbox:     js.Conn().NewInbox(),
		cfg:       cfg,
		stream:    streamName(cfg.Bucket),
		prefix:    subjectPrefix(cfg.Bucket),
		apiPrefix: API(js),
		pending:   make(map[uint64]awaited),
		health:    health{made: time.Now()},
		topics:    make(map[string]*topic),
		conn:      make(map[int]func(ConnState)),
		sender:    worker.New(),
	}
	s.ctx, s.end = context.WithCancel(context.Background())
	if js.Options().Domain == "" {
		// A service import passes one answer per request, unless its export says
		// otherwise. Then each record needs a request of its own.
		s.imported = s.apiPrefix != defaultAPI
		s.multiOff.Store(s.imported)
	}
	s.inboxes = cmp.Or(s.nc.Opts.InboxPrefix, strings.TrimSuffix(nats.InboxPrefix, ".")) + "."
	s.putPrefix = s.prefix
	if s.apiPrefix != defaultAPI {
		// Through a domain or an import, publishes travel under the prefix too.
		s.putPrefix = s.apiPrefix + s.prefix
	}
	s.reconnects = s.nc.Stats().Reconnects
	s.seen.Store(&view{})
	s.doubtedAt.Store(-int64(doubtEvery))
	s.OnConnection(func(state ConnState) {
		if state == Connected { // the answers to earlier writes are lost, which says nothing of the stream
			s.storing()
		}
	})
	return s
}

// Bucket returns the bucket's name.
func (s *Store) Bucket() string { return s.cfg.Bucket }

// run starts the reply subscription and the dispatcher, unless they run. It runs on the sender.
func (s *Store) run() error {
	if s.runs {
		return nil
	}
	s.events = make(chan *nats.Msg, notifications)
	sub, err := s.nc.Subscribe(s.inbox+".*", s.onReply)
	if err != nil {
		return connError(err)
	}
	// An answer dropped here would be an unknown outcome made at home.
	_ = sub.SetPendingLimits(-1, -1)
	status := s.nc.StatusChanged(nats.CONNECTED, nats.RECONNECTING, nats.CLOSED)
	now := s.nc.Status()
	s.mu.Lock()
	closed := s.closed
	if !closed {
		s.runs, s.replies, s.status = true, sub, status
		s.state.Store(int32(now)) // before the dispatcher tells what came since
		missed := now == nats.CONNECTED && s.nc.Stats().Reconnects != s.reconnects
		s.wg.Go(func() {
			if missed { // the connection was away before the store listened //safety:reconnect-missed
				s.connChanged(nats.CONNECTED)
			}
			s.dispatch()
		})
	}
	s.mu.Unlock()
	if closed { // meanwhile, by a Close that could not know of these
		_ = sub.Unsubscribe()
		s.nc.RemoveStatusListener(status)
		return ErrClosed
	}
	return nil
}

// away says whether the connection is down, as far as it has told the store.
func (s *Store) away() bool { return s.state.Load() == int32(nats.RECONNECTING) }

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

// awaitGoroutines waits for them, unless the network holds them up.
func (s *Store) awaitGoroutines() {
	ctx, cancel := context.WithTimeout(context.Background(), stuckAfter)
	defer cancel()
	if s.stuck() {
		cancel()
	}
	s.sender.Stop(ctx)
	over := make(chan struct{})
	go func() { s.wg.Wait(); close(over) }()
	select {
	case <-over:
	case <-ctx.Done():
	}
}

// OnConnection registers fn, which the store calls on changes of the connection; see
// [KV].
func (s *Store) OnConnection(fn func(ConnState)) (stop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := s.connID
	s.connID++
	s.conn[id] = fn
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.conn, id)
	}
}
