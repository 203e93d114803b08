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
	// notifications is the number of events that may wait for the dispatcher. Further
	// ones are dropped, which watchers must tolerate anyway.
	notifications = 8192
)

// line carries messages from a store to the server and their answers back, and tracks
// the state of the connection. It knows the subject prefixes, but neither records nor
// watches.
type line struct {
	sender
	inFlight

	bucket    string
	prefix    string // of the subjects of keys, as the stream stores them
	apiPrefix string // of the JetStream API
	putPrefix string // prefix as this connection has to publish it
	inboxes   string // the prefix of every inbox of the connection

	// Set by the watcher, called on the goroutine of the dispatcher.
	onEvent  func(*nats.Msg) // a notification
	onReturn func()          // the connection was down and is back: notifications sent meanwhile are lost

	// Used by the sender only.
	runs       bool // whether the subscription to the answers and the dispatcher run
	replies    *nats.Subscription
	events     chan *nats.Msg
	status     chan nats.Status
	reconnects uint64 // of the connection, when the store was created

	inbox      string // of this store's answers
	nextID     atomic.Uint64
	maxPayload atomic.Int64 // of the server of the last connection
	state      atomic.Int32 // the last nats.Status reported; DISCONNECTED if the store does not listen yet
	goroutines *worker.Group
	hooks      hooks
}

// hooks are called when the connection changes.
type hooks struct {
	mu   sync.Mutex
	fns  map[int]func(ConnState)
	last int
}

// API returns the prefix of the subjects of js, including the final dot.
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
		// Through a domain or an import, publishes travel under the API prefix too.
		l.putPrefix = l.apiPrefix + l.prefix
	}
	l.reconnects = l.nc.Stats().Reconnects
	return l
}

// run starts the reply subscription and the dispatcher if they are not running. It
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
	// An answer dropped here would make the outcome unknown although the server
	// answered.
	_ = sub.SetPendingLimits(-1, -1)
	l.runs, l.replies = true, sub
	l.status = l.nc.StatusChanged(nats.CONNECTED, nats.RECONNECTING, nats.CLOSED)
	now := l.nc.Status()
	l.state.Store(int32(now)) // before the dispatcher reports later changes
	missed := now == nats.CONNECTED && l.nc.Stats().Reconnects != l.reconnects
	go func() {
		defer l.goroutines.Done()
		if missed { // the connection was down before the store listened //safety:reconnect-missed
			l.connChanged(nats.CONNECTED)
		}
		l.dispatch()
	}()
	return nil
}

// away reports whether the connection is down, as far as it has told the store.
func (l *line) away() bool { return l.state.Load() == int32(nats.RECONNECTING) }

// dispatch passes notifications and connection changes to the watches. It does no
// I/O, so a stuck network cannot stop it.
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
		l.storing() // the answers to earlier writes are lost, which says nothing about the stream
		l.upSince.Store(int64(l.now()))
		// The new server may have another limit.
		l.calls.Add(func() { l.maxPayload.Store(l.nc.MaxPayload()) })
	}
	l.callHooks(state)
	// Notifications sent in the meantime are lost, so each waiter has to check.
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

// reportClosed reports a connection that was found closed. It may have been closed
// before the store listened.
func (l *line) reportClosed() {
	l.goroutines.Go(func(context.Context) { l.connChanged(nats.CLOSED) })
}

// OnConnection registers fn, which the store calls when the connection changes; see
// [KV].
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

// close ends the pending answers, the subscription and the goroutines of the line,
// and waits for none of them.
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

// awaitGoroutines waits for the goroutines to end, unless the network holds them up.
func (l *line) awaitGoroutines() {
	ctx, cancel := context.WithTimeout(context.Background(), stuckAfter)
	defer cancel()
	if l.stuck() {
		cancel()
	}
	l.calls.Stop(ctx)
	l.goroutines.Wait(ctx)
}
