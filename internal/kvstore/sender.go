package kvstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// nats.go holds the mutex of a connection while it writes to the network, for a minute at
// most (its FlusherTimeout), and while it tries to connect. No context ends the wait for
// that mutex. So one goroutine, the sender, makes all calls that take it. Others queue
// their calls, and wait as long as they like. Queued calls are made in order: a
// subscription comes before a write that is sent later.

const (
	// stuckAfter is how long a call into the connection may take before the store counts it
	// as stuck, and queues no more messages.
	stuckAfter = time.Second
	// subscribeWithin is how long a watch waits for its subscription, which is made all the
	// same: it learns whether the connection is closed, or drains.
	subscribeWithin = 100 * time.Millisecond
)

// stuck reports whether the sender has been waiting for the connection for more than stuckAfter.
// That time begins again when the connection comes back.
func (l *line) stuck() bool {
	return l.sender.Busy() > stuckAfter && l.health.now()-time.Duration(l.upSince.Load()) > stuckAfter
}

// fromConn returns what fn, which calls the connection, returns on the sender. It waits
// for d at most, and not longer than ctx.
func fromConn[T any](ctx context.Context, l *line, d time.Duration, fn func() T) (v T, ok bool) {
	answer := make(chan T, 1)
	if l.stuck() || !l.sender.Add(func() { answer <- fn() }) {
		return v, false
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case v = <-answer:
		return v, true
	case <-ctx.Done():
	case <-t.C:
	}
	return v, false
}

// unsent is the error of a message that was certainly not sent.
type unsent struct{ error }

func (u unsent) Unwrap() error { return u.error }

// NotSent reports whether err is that of a write which the connection has not taken and will
// never send. The outcome of a write without an answer is unknown otherwise.
func NotSent(err error) bool {
	_, ok := errors.AsType[unsent](err)
	return ok
}

var (
	errAway  = fmt.Errorf("%w: not sent, connection is reconnecting", ErrUnavailable)
	errStuck = fmt.Errorf("%w: not sent, connection has taken no message for %v: its network is stuck, or it is reconnecting", ErrUnavailable, stuckAfter)
)

// outgoing is a message that is put together. nats.go has copied what it sends
// when a publish returns, so its parts are used again.
type outgoing struct {
	line   *line
	send   func() // transmits it
	msg    nats.Msg
	expect string    // the revision that a write expects
	values [4]string // of the headers
	id     uint64    // of the answer
	route  route
	ends   bool // a tombstone
}

// route is how a message and its answers travel.
type route uint8

const (
	// own: the answers come on the subscription of the store. While the connection
	// drains that subscription is gone, but handlers may still hold locks: the exchange then
	// travels as with shared.
	own route = iota
	// whole is own for requests with several answers, which a connection that drains does
	// not take.
	whole
	// shared: through nats.go's own reply subscription, which lives to the end and passes
	// one answer. Open uses it, so that it exists before draining.
	shared
)

var outgoings = sync.Pool{New: func() any { return &outgoing{msg: nats.Msg{Header: make(nats.Header, 4)}} }}

// outgoing is a message without headers and data to the subject of prefix and key. What differs from
// message to message is one string: the subject, the subject of the answer and the expected revision.
func (l *line) outgoing(prefix, key string, expect uint64) *outgoing {
	o := outgoings.Get().(*outgoing)
	clear(o.msg.Header)
	if o.line, o.id = l, l.nextID.Add(1); o.send == nil { // it is new
		o.send = func() { o.line.transmit(o) }
	}
	var buf [256]byte
	b := append(append(buf[:0], prefix...), key...)
	subject := len(b)
	b = strconv.AppendUint(append(append(b, l.inbox...), '.'), o.id, 36)
	reply := len(b)
	text := string(strconv.AppendUint(b, expect, 10))
	o.msg.Subject, o.msg.Reply, o.expect = text[:subject], text[subject:reply], text[reply:]
	return o
}

// free gives o back.
func (o *outgoing) free() {
	o.line, o.msg.Data = nil, nil // not kept from the collector
	outgoings.Put(o)
}
