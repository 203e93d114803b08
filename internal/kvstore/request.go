package kvstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/natslock/locks/internal/plain"
)

const (
	// repeatAfter is how long a request waits for a reply before it is sent again.
	repeatAfter = time.Second
	// lateAnswers limits the wait for a reply on a draining connection, where each reply
	// needs its own goroutine.
	lateAnswers = 30 * time.Second
	// pollMost is the longest interval between checks for a denial. The interval doubles up
	// to this limit.
	pollMost = 400 * time.Millisecond
)

const (
	hdrStatus   = "Status"
	hdrSequence = "Nats-Sequence" // of a stored record
)

// errIncomplete means that a multi-key read did not, or could not, return everything.
var errIncomplete = errors.New("incomplete answer")

// exchange queues o for sending and passes every reply to a, until a expects no more or the
// caller calls forget. It does not lock the connection's mutex, except on the shared route
// that Open uses.
func (l *line) exchange(o *outgoing, a awaited) (forget func(), err error) {
	if err := l.down(); err != nil {
		o.free()
		return nil, unsent{err}
	}
	id := o.id
	if !l.register(id, a) {
		o.free()
		return nil, ErrClosed
	}
	if o.route == shared { // used by Open, which leaves nothing running and limits the wait itself
		l.transmit(o)
	} else {
		l.calls.Add(o.send)
	}
	return func() { l.forget(id) }, nil
}

// sendRequest sends a message without headers and passes its replies to answers.
func (l *line) sendRequest(subject string, body []byte, route route, answers answerTo) (forget func(), err error) {
	o := l.outgoing(subject, "", 0)
	o.msg.Data, o.route, o.ends = body, route, false
	return l.exchange(o, awaited{answers: answers})
}

// down returns the reason that nothing can be sent now, if there is one, as far as the
// store knows without asking the connection.
func (l *line) down() error {
	switch {
	case l.away():
		return errAway
	case l.stuck():
		return errStuck
	case l.state.Load() == int32(nats.CLOSED):
		return l.gone()
	}
	return nil
}

// gone tells the hooks that the connection was found closed, and returns the error.
func (l *line) gone() error {
	l.reportClosed()
	return fmt.Errorf("%w: not sent: %w", ErrUnavailable, ErrConnectionClosed)
}

// transmit sends a message unless its caller no longer wants it. A claim that was queued
// for longer than its caller waits would only have to be deleted. A tombstone is sent no
// matter how late it is, even if the caller has closed the store. transmit runs on the
// sender.
func (l *line) transmit(o *outgoing) {
	defer o.free()
	a, wanted := l.registered(o.id)
	if !wanted && !o.ends {
		return
	}
	err := errStuck
	if o.ends || a.answers != nil || l.now()-a.write.at <= stuckAfter {
		err = l.publish(o)
	}
	if err != nil {
		l.deliver(o.id, nil, unsent{err})
	}
}

// publish passes a message to nats.go. It runs on the sender.
func (l *line) publish(o *outgoing) error {
	st := l.nc.Status()
	if o.route != shared && !l.runs && (st == nats.CONNECTED || st == nats.RECONNECTING) {
		// From here on, the store learns when the connection comes back. Callers that fail
		// now wait for that.
		if err := l.run(); err != nil && !o.late(err) {
			return err
		}
		st = l.nc.Status()
	}
	switch st {
	case nats.CONNECTED:
	case nats.DRAINING_SUBS:
		if o.route == whole {
			return errIncomplete
		}
		o.route = shared
	case nats.RECONNECTING, nats.CONNECTING:
		// nats.go's reconnect buffer would send the message later, when no caller wants it
		// anymore.
		return errAway //safety:not-buffered
	case nats.CLOSED:
		return l.gone()
	default:
		return fmt.Errorf("%w: not sent: connection is %s", ErrUnavailable, strings.ToLower(st.String()))
	}
	if st == nats.DRAINING_SUBS && l.nc.Opts.UseOldRequestStyle {
		// No reply subscription is left and none can be created, but the message is still
		// sent before the connection closes.
		o.msg.Reply = ""
		if err := l.nc.PublishMsg(&o.msg); err != nil {
			return connError(err)
		}
		l.deliver(o.id, &nats.Msg{Header: nats.Header{hdrStatus: []string{statusUnanswerable}}}, nil)
		return nil
	}
	if o.route == shared {
		if err := l.request(o.id, copyOf(&o.msg), o.ends); !o.late(err) {
			return err
		}
	}
	if err := l.nc.PublishMsg(&o.msg); err != nil {
		if errors.Is(err, nats.ErrMaxPayload) {
			l.maxPayload.Store(l.nc.MaxPayload())
			return fmt.Errorf("%w: message to %s has %d bytes plus headers, but the server accepts only %d: raise its max_payload", ErrTooLarge, o.msg.Subject, len(o.msg.Data), l.maxPayload.Load())
		}
		return connError(err)
	}
	return nil
}

// request sends msg on the shared route, from its own goroutine.
func (l *line) request(id uint64, msg *nats.Msg, ends bool) error {
	if !l.goroutines.Begin() {
		return ErrClosed
	}
	go func() {
		defer l.goroutines.Done()
		ctx, cancel := context.WithTimeout(l.goroutines.Context(), lateAnswers)
		defer cancel()
		m, err := l.nc.RequestMsgWithContext(ctx, msg)
		switch {
		case errors.Is(err, nats.ErrNoResponders):
			m = &nats.Msg{Header: nats.Header{hdrStatus: []string{"503"}}}
		case errors.Is(err, nats.ErrConnectionClosed):
			l.deliver(id, nil, fmt.Errorf("%w: no answer: %w", ErrUnavailable, err))
			return
		case err != nil && ends && l.goroutines.Context().Err() != nil: // the message may not have been sent; if it was, the server refuses this second tombstone
			_ = l.nc.PublishMsg(msg)
			return
		case err != nil:
			return
		}
		l.deliver(id, m, nil)
	}()
	return nil
}

func copyOf(m *nats.Msg) *nats.Msg {
	h := make(nats.Header, len(m.Header))
	for name, values := range m.Header {
		h[name] = slices.Clone(values)
	}
	return &nats.Msg{Subject: m.Subject, Reply: m.Reply, Header: h, Data: slices.Clone(m.Data)}
}

// statusUnanswerable marks a reply that the client generates itself. It means that no reply
// will arrive from a server, because a draining connection with old-style requests no
// longer receives anything.
const statusUnanswerable = "unanswerable"

// unanswerable returns an error if m has statusUnanswerable, and nil otherwise.
func unanswerable(m *nats.Msg) error {
	if len(m.Data) > 0 || m.Subject != "" || statusOf(m) != statusUnanswerable {
		return nil
	}
	return fmt.Errorf("%w: sent, but no reply can arrive on a draining connection with UseOldRequestStyle: %w", ErrUnavailable, nats.ErrConnectionDraining)
}

// errNoAnswer means that a request was not answered in time.
var errNoAnswer = fmt.Errorf("%w: no answer", ErrUnavailable)

// roundTrip makes a request and waits for the reply until ctx ends, but no longer than
// replyTimeout. It repeats the request in the meantime, because servers stay silent about a
// stream that has no leader yet. Use it only for requests that can safely be repeated. It
// sends nothing once ctx has ended.
func (l *line) roundTrip(ctx context.Context, subject string, body []byte, route route) (*nats.Msg, error) {
	const attempts = int(replyTimeout / repeatAfter)
	type answer struct {
		m       *nats.Msg
		failure error
	}
	ch := make(chan answer, attempts)
	for try := 1; ; try++ {
		switch { // a request that nobody waits for could still create a bucket
		case ctx.Err() != nil && try == 1:
			return nil, fmt.Errorf("not sent to %s: %w", subject, plain.EndOf(ctx))
		case ctx.Err() != nil:
			return nil, fmt.Errorf("%w on %s: %w", errNoAnswer, subject, plain.EndOf(ctx))
		}
		forget, err := l.sendRequest(subject, body, route, func(m *nats.Msg, failure error) bool {
			ch <- answer{m, failure}
			return false
		})
		if err != nil {
			return nil, err
		}
		defer forget()
		a, err := await(ctx, l, ch, subject, repeatAfter)
		m := a.m
		switch {
		case errors.Is(err, errNoAnswer) && try < attempts:
			continue
		case err != nil:
			return nil, err
		case a.failure != nil:
			return nil, a.failure
		case unanswerable(m) != nil:
			return nil, unanswerable(m)
		case noResponders(m):
			return nil, fmt.Errorf("%w: no server answers on %s: JetStream is off, has no leader, or %s: %w", ErrUnavailable, subject, l.elsewhere(), nats.ErrNoResponders)
		}
		return m, nil
	}
}

// elsewhere suggests where else the bucket may be, or why the prefix does not lead to it.
func (l *line) elsewhere() string {
	if l.apiPrefix == defaultAPI {
		return "is in another domain or account (use jetstream.NewWithDomain or NewWithAPIPrefix)"
	}
	return "cannot be reached with this domain or API prefix: the domain may be misspelled, or an account's import or export may be missing"
}

// statusOf returns the status of a status message. It returns "" for a record, which may
// have been stored with its own Status header.
func statusOf(m *nats.Msg) string {
	// A message with a sequence is a stored record, whatever headers its writer set.
	if m.Header.Get(hdrSequence) != "" { //safety:stored-status
		return ""
	}
	return m.Header.Get(hdrStatus)
}

func noResponders(m *nats.Msg) bool {
	return len(m.Data) == 0 && statusOf(m) == "503"
}

// denied returns an error if the server has recently denied this connection access to the
// subject, or the subscription to its inbox, where replies arrive. The server reports a
// denial on the connection rather than in a reply, and nats.go keeps only the last error.
// An old error does not concern this request, and an error that is immediately followed by
// another is missed.
func (l *line) denied(ctx context.Context, subject string) error {
	if l.away() { // nothing was sent
		return nil
	}
	at, err := l.lastDenial(ctx)
	if err == nil || time.Since(at) >= replyTimeout {
		return nil
	}
	text := err.Error()
	publish := func(subject string) bool { return strings.Contains(text, `Publish to "`+subject+`"`) }
	if !(publish(subject) || publish(l.mapped(subject)) || strings.Contains(text, `Subscription to "`+l.inboxes)) {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrPermission, err)
}

// mapped returns the subject on which a server in the domain itself checks permissions.
func (l *line) mapped(subject string) string {
	rest, ok := strings.CutPrefix(subject, l.apiPrefix)
	switch {
	case !ok:
		return subject
	case strings.HasPrefix(rest, l.prefix):
		return rest
	}
	return defaultAPI + rest
}

// await receives from ch. It fails if ctx ends, limit passes (errNoAnswer), the server
// denies the subject, or the store or the connection is closed.
func await[T any](ctx context.Context, l *line, ch <-chan T, subject string, limit time.Duration) (T, error) {
	var zero T
	select { // the reply usually arrives before a timer would be worth its cost
	case v := <-ch:
		return v, nil
	default:
	}
	// A denial arrives soon, if at all. Checking often after that would only add load to a
	// busy machine.
	pause := permissionPoll
	poll := time.NewTimer(pause)
	defer poll.Stop()
	begun := time.Now()
	for {
		select {
		case v := <-ch:
			return v, nil
		case <-ctx.Done():
			return zero, fmt.Errorf("%w on %s: %w", errNoAnswer, subject, plain.EndOf(ctx))
		case <-l.goroutines.Context().Done():
			return zero, ErrClosed
		case <-poll.C:
			if err := l.denied(ctx, subject); err != nil {
				return zero, err
			}
			if l.state.Load() == int32(nats.CLOSED) {
				return zero, fmt.Errorf("%w: no answer on %s: %w", ErrUnavailable, subject, nats.ErrConnectionClosed)
			}
			left := limit - time.Since(begun)
			if left <= 0 {
				return zero, fmt.Errorf("%w on %s", errNoAnswer, subject)
			}
			pause = min(2*pause, pollMost)
			poll.Reset(min(pause, left))
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return plain.EndOf(ctx)
	}
}

// outgoing is a message under construction. nats.go has copied everything it sends by the
// time a publish returns, so messages are reused.
type outgoing struct {
	line   *line
	send   func() // calls transmit
	msg    nats.Msg
	expect string    // revision that a write expects
	values [4]string // values of the headers
	id     uint64    // identifies the reply
	route  route
	ends   bool // is a tombstone
}

// route determines how a message and its replies travel.
type route uint8

const (
	// own means that the replies arrive on the store's own subscription. A draining
	// connection no longer has that subscription, but its handlers may still hold locks, so
	// the message's route then becomes shared.
	own route = iota
	// whole is like own, but for requests with several replies. Such requests are not sent
	// while the connection is draining.
	whole
	// shared means that the reply arrives on nats.go's own reply subscription, which lives
	// as long as the connection and passes on only one reply. Open uses it so that the
	// subscription exists before the connection drains.
	shared
)

var outgoings = sync.Pool{New: func() any { return &outgoing{msg: nats.Msg{Header: make(nats.Header, 4)}} }}

// outgoing returns a message to the subject prefix+key, without headers or data. A single
// string holds everything that differs between messages: the subject, the reply subject and
// the expected revision.
func (l *line) outgoing(prefix, key string, expect uint64) *outgoing {
	o := outgoings.Get().(*outgoing)
	clear(o.msg.Header)
	if o.line, o.id = l, l.nextID.Add(1); o.send == nil { // newly allocated
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

// late reports whether err refuses a tombstone only because the store is closed. The
// tombstone is sent anyway, although no caller waits for the reply.
func (o *outgoing) late(err error) bool { return o.ends && errors.Is(err, ErrClosed) }

// free returns o to the pool.
func (o *outgoing) free() {
	o.line, o.msg.Data = nil, nil // let them be collected
	outgoings.Put(o)
}
