package kvstore

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/internal/worker"
)

const (
	defaultAPI = "$JS.API."
	// notifications is how many events may wait for the dispatcher; further
	// ones are dropped, which watchers must live with anyway.
	notifications = 8192
)

// line is the way from a store to the server and back: messages and their answers, and the state of the
// connection. It knows the prefixes of the subjects, and neither records nor watches.
type line struct {
	nc        *nats.Conn
	bucket    string
	prefix    string // of the keys' subjects, as the stream stores them
	apiPrefix string // of the JetStream API
	putPrefix string // prefix as this connection has to publish it
	inboxes   string // the prefix of every inbox of the connection

	// The store's, which they are called for on the goroutine of the replies, and of the dispatcher.
	onWritten func(awaited, *nats.Msg, error) // the answer to a write
	onEvent   func(*nats.Msg)                 // a notification
	onReturn  func()                          // what came meanwhile is lost: the connection was away

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
	conn    map[int]func(ConnState)
	connID  int

	lastErr    error     // of the connection, as read last
	lookedAt   time.Time // when that read began
	lastDenied error
	deniedAt   time.Time

	health health
}

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

func newLine(js jetstream.JetStream, bucket string) *line {
	l := &line{
		nc:        js.Conn(),
		bucket:    bucket,
		prefix:    subjectPrefix(bucket),
		apiPrefix: API(js),
		inbox:     js.Conn().NewInbox(),
		pending:   make(map[uint64]awaited),
		health:    health{made: time.Now()},
		conn:      make(map[int]func(ConnState)),
		sender:    worker.New(),
	}
	l.ctx, l.end = context.WithCancel(context.Background())
	l.inboxes = cmp.Or(l.nc.Opts.InboxPrefix, strings.TrimSuffix(nats.InboxPrefix, ".")) + "."
	l.putPrefix = l.prefix
	if l.apiPrefix != defaultAPI {
		// Through a domain or an import, publishes travel under the prefix too.
		l.putPrefix = l.apiPrefix + l.prefix
	}
	l.reconnects = l.nc.Stats().Reconnects
	l.OnConnection(func(state ConnState) {
		if state == Connected { // the answers to earlier writes are lost, which says nothing of the stream
			l.storing()
		}
	})
	return l
}

// run starts the reply subscription and the dispatcher, unless they run. It runs on the sender.
func (l *line) run() error {
	if l.runs {
		return nil
	}
	l.events = make(chan *nats.Msg, notifications)
	sub, err := l.nc.Subscribe(l.inbox+".*", l.onReply)
	if err != nil {
		return connError(err)
	}
	// An answer dropped here would be an unknown outcome made at home.
	_ = sub.SetPendingLimits(-1, -1)
	status := l.nc.StatusChanged(nats.CONNECTED, nats.RECONNECTING, nats.CLOSED)
	now := l.nc.Status()
	l.mu.Lock()
	closed := l.closed
	if !closed {
		l.runs, l.replies, l.status = true, sub, status
		l.state.Store(int32(now)) // before the dispatcher tells what came since
		missed := now == nats.CONNECTED && l.nc.Stats().Reconnects != l.reconnects
		l.wg.Go(func() {
			if missed { // the connection was away before the store listened //safety:reconnect-missed
				l.connChanged(nats.CONNECTED)
			}
			l.dispatch()
		})
	}
	l.mu.Unlock()
	if closed { // meanwhile, by a Close that could not know of these
		_ = sub.Unsubscribe()
		l.nc.RemoveStatusListener(status)
		return ErrClosed
	}
	return nil
}

// away reports whether the connection is down, as far as it has told the store.
func (l *line) away() bool { return l.state.Load() == int32(nats.RECONNECTING) }

// dispatch hands notifications and changes of the connection to the watches.
// It does no I/O, so a stuck network cannot stop it.
func (l *line) dispatch() {
	for {
		select {
		case <-l.ctx.Done():
			return
		case m := <-l.events:
			l.onEvent(m)
		case st, ok := <-l.status:
			if !ok {
				return
			}
			l.connChanged(st)
		}
	}
}

func (l *line) connChanged(st nats.Status) {
	var state ConnState
	switch st {
	case nats.CONNECTED:
		state = Connected
	case nats.RECONNECTING:
		state = Disconnected
	case nats.CLOSED:
		state = Closed
	default:
		return
	}
	l.state.Store(int32(st))
	if st == nats.CONNECTED {
		l.upSince.Store(int64(l.health.now()))
		// Maybe to a server with another limit.
		l.sender.Add(func() { l.maxPayload.Store(l.nc.MaxPayload()) })
	}
	l.callHooks(state)
	// Notifications that were sent meanwhile are lost: each waiter has to check.
	if state == Connected || state == Closed { //safety:recheck
		l.onReturn()
	}
}

func (l *line) callHooks(state ConnState) {
	l.mu.Lock()
	hooks := slices.Collect(maps.Values(l.conn))
	l.mu.Unlock()
	for _, fn := range hooks {
		fn(state)
	}
}

// reportClosed reports a connection that was found closed: it may have been closed
// before the store listened.
func (l *line) reportClosed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.wg.Go(func() { l.connChanged(nats.CLOSED) })
	}
}

// OnConnection registers fn, which the store calls on changes of the connection; see
// [KV].
func (l *line) OnConnection(fn func(ConnState)) (stop func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	id := l.connID
	l.connID++
	l.conn[id] = fn
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.conn, id)
	}
}

// close ends what the line awaits, its subscription and its goroutines, and waits for none of it.
func (l *line) close() {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return
	}
	l.closed = true
	clear(l.pending)
	clear(l.conn)
	replies, status := l.replies, l.status
	l.mu.Unlock()
	l.end()
	l.sender.Add(func() {
		if replies != nil {
			_ = replies.Unsubscribe()
		}
		if status != nil {
			l.nc.RemoveStatusListener(status)
		}
	})
}

// awaitGoroutines waits for them, unless the network holds them up.
func (l *line) awaitGoroutines() {
	ctx, cancel := context.WithTimeout(context.Background(), stuckAfter)
	defer cancel()
	if l.stuck() {
		cancel()
	}
	l.sender.Stop(ctx)
	over := make(chan struct{})
	go func() { l.wg.Wait(); close(over) }()
	select {
	case <-over:
	case <-ctx.Done():
	}
}
