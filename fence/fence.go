// Package fence makes the server refuse the writes of a stale lock holder.
//
// A holder that is paused past its lease can wake up and write while the next holder is
// working. No lock can stop it, because it runs its own code. A fence stops it at the
// stream that it writes to. A holder opens the fence with the fencing token of its lock.
// From then on the server stores no write of a holder with a lower token.
//
// # Usage
//
//	err := locks.Do(ctx, "orders", func(ctx context.Context, l *natslock.Lock) error {
//		f, err := fence.Open(ctx, js, "ORDERS", "orders.fence", l.Token())
//		if err != nil {
//			return err // errors.Is(err, fence.ErrSuperseded): a newer holder is at work
//		}
//		// Read now what you are going to change, and then write.
//		_, err = f.Publish(ctx, "orders.created", order)
//		return err // errors.Is(err, fence.ErrSuperseded): the server did not store it
//	})
//
// The stream is your own, and can be a key-value bucket: see [Fence.KV]. The fence needs one
// of its subjects to itself. [Check] is the same rule for resources outside NATS.
//
// # What it promises
//
// Once [Open] has returned, the stream stores no write of a fence on the same subject that
// was opened with a lower token, including writes in flight that the network delivers later.
// The fence costs a few messages per [Open], and none per write.
//
// How it works: Open stores its token under the fence's subject, on the condition that the
// subject has not changed since it was read. Each later write carries the condition that the
// sequence of that message is still the last one of its subject. The next holder's Open
// moves the sequence. The stream's leader checks each condition, even on replicated streams.
//
// # What it does not promise
//
// Nothing is excluded before Open has returned: open first, then read what you are going to
// change. The fence covers only writes made through it. A plain publish to the stream is not
// stopped, nor is a holder that opens another subject.
//
// The stream remembers the highest token in the fence's message. If an operator purges that
// message, the stream forgets it. All open fences are then refused with [ErrLost], but the
// next Open succeeds with any token. Deny deletes and purges where that matters.
//
// Stop all holders before you restore the stream from a backup, or delete and re-create it.
// Both repeat sequences, so the condition of an old fence may hold again. A first sequence
// (first_seq) above the last one of the old stream prevents that.
//
// # Permissions
//
// The user of the connection needs to publish to the subject of the fence (with lanes, also
// to the names below it), to $JS.API.STREAM.INFO.<stream> and to
// $JS.API.STREAM.MSG.GET.<stream>. All holders need the same. [KV.Create] also reads the
// key, through $JS.API.DIRECT.GET.<stream>.<subject>. [KV.Create] and [KV.Update] publish to
// the fence's subject followed by ".guard".
package fence

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// A server closes a connection that sends it a much longer subject or stream name.
const (
	maxSubject = 2048
	maxStream  = 255
)

// MaxLanes is the largest number of lanes for [WithLanes].
const MaxLanes = 64

const (
	// openPatience limits an Open whose context has no deadline. A stream replaces a
	// killed leader within 4 to 9 s.
	openPatience = 30 * time.Second
	// writePatience limits a write whose context has no deadline, as nats.go does.
	writePatience = 5 * time.Second
	// tryPatience limits the wait for one answer within an Open.
	tryPatience = 5 * time.Second
)

// Errors to branch on with errors.Is. An error that matches none of them and
// contains a *[jetstream.APIError] is the server's refusal: it stored nothing.
var (
	// ErrSuperseded: a holder with a higher token has opened the fence, or another Open
	// had the same token. The stream has not stored the write, and will store no later
	// one. Stop working: the lock is lost.
	ErrSuperseded = errors.New("the fence was superseded")
	// ErrLost: the stream no longer has the fence's message, because an operator deleted
	// or purged it, or the stream was re-created. The stream has not stored the write, and
	// will store no later one. A holder that still has its lock can open the fence again.
	ErrLost = errors.New("the stream has lost the fence")
	// ErrUnknown: no answer came. A write may be stored, now or later, as long as no
	// higher token opens the fence. An Open may have moved the fence, but excludes
	// nothing yet. To find out, open the fence again with the same token and read the
	// stream: once Open has returned, no earlier write can still be stored.
	ErrUnknown = errors.New("the outcome is unknown")
	// ErrUnfit: the stream cannot keep a fence. The error names the setting and the remedy.
	ErrUnfit = errors.New("the stream cannot keep the fence")
	// ErrInvalid: an argument, a message or an option is invalid. Nothing was sent.
	ErrInvalid = errors.New("invalid argument")
)

// Fence lets a holder write to a stream for as long as no higher token has opened the
// fence. Create it with [Open]. It does not need to be closed, and is safe for concurrent
// use.
type Fence struct {
	nc      *nats.Conn
	js      jetstream.JetStream
	api     string // prefix of the JetStream API
	stream  string
	subject string
	token   uint64
	lanes   int
	free    chan *lane // the lanes without a write in flight
	ended   atomic.Pointer[error]

	batches bool // the stream takes atomic batches
}

// lane is a fence subject with at most one write in flight, because a replicated stream
// refuses concurrent writes guarded by the same subject. The goroutine that took the
// lane from [Fence.free] owns it.
type lane struct {
	subject  string
	sequence uint64 // of this fence's message there, never 0
}

// Option configures [Open].
type Option func(*Fence) error

// WithLanes gives the fence n subjects, 1 to [MaxLanes], so that n writes can be in
// flight at a time. The default is 1. The additional subjects are the fence's followed
// by ".1", ".2" and so on, and the stream must have them. The holders of a lock can
// use different numbers: an Open costs two messages per lane of the holder that had
// the most.
func WithLanes(n int) Option {
	return func(f *Fence) error {
		if n < 1 || n > MaxLanes {
			return fmt.Errorf("%w: WithLanes: %d lanes, must be from 1 to %d", ErrInvalid, n, MaxLanes)
		}
		f.lanes = n
		return nil
	}
}

// Check is the fencing rule for any resource that remembers the highest token it has
// seen: a request with a lower token comes from a stale holder. If Check returns nil,
// the resource has to accept the token and remember it in the same atomic step as the
// change. Otherwise the error matches [ErrSuperseded], or [ErrInvalid] if the token
// is 0, which no lock has.
func Check(greatest, token uint64) error {
	switch {
	case token == 0:
		return fmt.Errorf("%w: 0 is no fencing token", ErrInvalid)
	case token < greatest: //safety:fence-check
		return fmt.Errorf("%w: token %d is smaller than token %d, which was seen before", ErrSuperseded, token, greatest)
	}
	return nil
}

// Err returns nil while the fence is open as far as it knows. Once a write has been
// refused, Err returns an error that matches [ErrSuperseded] or [ErrLost], and all later
// writes return the same error without sending anything. It does no I/O, so only a write
// finds out.
func (f *Fence) Err() error {
	if f == nil || f.js == nil {
		return errNotOpen
	}
	if err := f.ended.Load(); err != nil {
		return *err
	}
	return nil
}

// end ends the fence with err, which it returns from now on, unless it has already ended.
func (f *Fence) end(err error) error {
	if !f.ended.CompareAndSwap(nil, &err) {
		if first := f.Err(); first != nil {
			return first
		}
	}
	return err
}

// named prefixes an error with the fence.
func (f *Fence) named(err error) error {
	return fmt.Errorf("fence %.512q of stream %.64q with token %d: %w", f.subject, f.stream, f.token, err)
}

var errNotOpen = fmt.Errorf("%w: a fence.Fence made without Open", ErrInvalid)

// ready refuses a fence that was not made by Open, and a nil context.
func (f *Fence) ready(ctx context.Context) error {
	switch {
	case f == nil || f.js == nil:
		return errNotOpen
	case ctx == nil:
		return f.named(fmt.Errorf("%w: the context is nil", ErrInvalid))
	}
	return nil
}

// laneSubject returns the subject of lane i. Lane 0 has the fence's own.
func (f *Fence) laneSubject(i int) string {
	if i == 0 {
		return f.subject
	}
	return f.subject + "." + strconv.Itoa(i)
}

// destination returns the subject to which this connection has to publish. Through a
// domain or an import, the subjects of a bucket are prefixed with that of the API, as in
// nats.go. The conditions of a write always name the subject as the stream stores it.
func (f *Fence) destination(subject string) string {
	if f.api != jetstream.DefaultAPIPrefix && strings.HasPrefix(subject, kvSubjects) {
		return f.api + subject
	}
	return subject
}

// apiPrefix returns the prefix of the JetStream API that js uses.
func apiPrefix(js jetstream.JetStream) string {
	switch o := js.Options(); {
	case o.Domain != "":
		return "$JS." + o.Domain + ".API."
	case o.APIPrefix != "":
		return strings.TrimSuffix(o.APIPrefix, ".") + "."
	}
	return jetstream.DefaultAPIPrefix
}

// literal refuses a subject that is not a single literal one: the server
// compares the subject of a condition literally, so a pattern would guard
// nothing.
func literal(subject string) error {
	if len(subject) > maxSubject {
		return fmt.Errorf("%w: a subject of %d bytes, at most %d fit", ErrInvalid, len(subject), maxSubject)
	}
	for part := range strings.SplitSeq(subject, ".") {
		if part == "" || part == "*" || part == ">" || strings.ContainsFunc(part, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
			return fmt.Errorf("%w: %.64q is no literal subject", ErrInvalid, subject)
		}
	}
	return nil
}

// bounded returns ctx with a deadline.
func bounded(ctx context.Context, patience time.Duration) (context.Context, context.CancelFunc) {
	if _, has := ctx.Deadline(); has {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, patience)
}
