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
	// notifications is the capacity of the dispatcher's queue. When the queue is full,
	// events are dropped, which watchers must tolerate anyway.
	notifications = 8192
)

// line carries messages between a store and the server and tracks the state of the
// connection. It knows the subject prefixes but nothing about records or watches.
type line struct {
	sender
	inFlight

	bucket    string
	prefix    string // prefix of the keys' subjects as the stream stores them
	apiPrefix string // prefix of the JetStream API's subjects
	putPrefix string // prefix under which this connection publishes keys
	inboxes   string // prefix of all the connection's inboxes

	// Set by the watcher and called on the dispatcher's goroutine.
	onEvent  func(*nats.Msg) // handles a notification
	onReturn func()          // called after a reconnect or a close, because notifications were lost

	// Used only by the sender.
	runs       bool // whether the reply subscription and the dispatcher are running
	replies    *nats.Subscription
	events     chan *nats.Msg
	status     chan nats.Status
	reconnects uint64 // the connection's reconnect count when the store was created

	inbox      string // prefix of this store's reply subjects
	nextID     atomic.Uint64
	maxPayload atomic.Int64 // the limit of the server last connected to
	state      atomic.Int32 // last nats.Status reported, or DISCONNECTED before the store listens
	goroutines *worker.Group
	hooks      hooks
}

// hooks holds the functions to call when the connection changes.
type hooks struct {
	mu   sync.Mutex
	fns  map[int]func(ConnState)
	last int
}

// API returns the JetStream API prefix that js uses, including the trailing dot.
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
		sender:     sender{calls: worker.New(), nc: js.Conn(), made: time.Now()},
		inFlight:   inFlight{pending: make(map[uint64]awaited)},
		bucket:     bucket,
		prefix:     subjectPrefix(bucket),
		apiPrefix:  API(js),
		inbox:      js.Conn().NewInbox(),
		goroutines: worker.NewGroup(),
		hooks:      hooks{fns: make(map[int]func(ConnState))},
	}
	l.inboxes = cmp.Or(l.nc.Opts.InboxPrefix, strings.TrimSuffix(nats.InboxPrefix, ".")) + "."
	l.putPrefix = l.prefix
	if l.apiPrefix != defaultAPI {
		// Through a domain or an import, writes are published under the API prefix, as API requests are.
		l.putPrefix = l.apiPrefix + l.prefix
	}
	l.reconnects = l.nc.Stats().Reconnects
	return l
}

// run starts the reply subscription and the dispatcher unless they are already running. It
// runs on the sender.
func (l *line) run() error {
	switch {
	case l.runs:
		return nil
	case !l.goroutines.Begin():
		return ErrClosed
	}
	l.events = make(chan *nats.Msg, notifications)
	sub, err := l.nc.Subscribe(l.inbox+".*", l.onReply)
	if err != nil {
		l.goroutines.Done()
		return connError(err)
	}
	// If a reply were dropped here, the write's outcome would be unknown even though the
	// server replied.
	_ = sub.SetPendingLimits(-1, -1)
	l.runs, l.replies = true, sub
	l.status = l.nc.StatusChanged(nats.CONNECTED, nats.RECONNECTING, nats.CLOSED)
	now := l.nc.Status()
	l.state.Store(int32(now)) // before the dispatcher can report later changes
	missed := now == nats.CONNECTED && l.nc.Stats().Reconnects != l.reconnects
	go func() {
		defer l.goroutines.Done()
		if missed { // the connection was down before the store started listening //safety:reconnect-missed
			l.connChanged(nats.CONNECTED)
		}
		l.dispatch()
	}()
	return nil
}

// away reports whether the connection is down, as far as the store has been told.
func (l *line) away() bool { return l.state.Load() == int32(nats.RECONNECTING) }

// dispatch passes notifications and connection changes on to the watches. It does no I/O,
// so a stuck network cannot block it.
func (l *line) dispatch() {
	for {
		select {
		case <-l.goroutines.Context().Done():
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
		l.storing() // replies to earlier writes are lost, which says nothing about the stream
		l.upSince.Store(int64(l.now()))
		// The new server may have a different limit.
		l.calls.Add(func() { l.maxPayload.Store(l.nc.MaxPayload()) })
	}
	l.callHooks(state)
	// Notifications sent while the connection was down are lost, so every waiter has to
	// check.
	if state == Connected || state == Closed { //safety:recheck
		l.onReturn()
	}
}

func (l *line) callHooks(state ConnState) {
	l.hooks.mu.Lock()
	hooks := slices.Collect(maps.Values(l.hooks.fns))
	l.hooks.mu.Unlock()
	for _, fn := range hooks {
		fn(state)
	}
}

// reportClosed reports that the connection was found closed. It may have been closed before
// the store started listening.
func (l *line) reportClosed() {
	l.goroutines.Go(func(context.Context) { l.connChanged(nats.CLOSED) })
}

// OnConnection registers fn to be called when the connection changes; see [KV].
func (l *line) OnConnection(fn func(ConnState)) (stop func()) {
	h := &l.hooks
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last++
	id := h.last
	h.fns[id] = fn
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.fns, id)
	}
}

// close drops pending replies and ends the line's subscription and goroutines, without
// waiting for any of them.
func (l *line) close() {
	l.inFlight.close()
	l.hooks.mu.Lock()
	clear(l.hooks.fns)
	l.hooks.mu.Unlock()
	l.goroutines.Cancel()
	l.calls.Add(func() {
		if l.runs {
			_ = l.replies.Unsubscribe()
			l.nc.RemoveStatusListener(l.status)
		}
	})
}

// awaitGoroutines waits for the goroutines to end, unless a stuck network holds them up.
func (l *line) awaitGoroutines() {
	ctx, cancel := context.WithTimeout(context.Background(), stuckAfter)
	defer cancel()
	if l.stuck() {
		cancel()
	}
	l.calls.Stop(ctx)
	l.goroutines.Wait(ctx)
}
