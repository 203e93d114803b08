// Package fence has the server refuse the writes of a stale lock holder.
//
// A holder that is paused past its lease can wake up and write while the next holder is
// at work. No lock can stop it, because it runs its own code. A fence stops it at the
// stream that it writes to. A holder opens the fence with the fencing token of its lock.
// From then on the server stores no write of a holder with a smaller token.
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
// The stream is yours, and can be a key-value bucket: see [Fence.KV]. The fence needs one
// subject of it that nothing else uses. [Check] is the rule for resources that are not on
// NATS.
//
// # What it promises
//
// Once [Open] has returned, the stream stores no write of a fence on the same subject that
// was opened with a smaller token. That includes writes which are on their way, and which
// a network delivers later. The fence costs a few messages per [Open], and none per write.
//
// How it works: Open stores its token under the fence's subject, on the condition that the
// subject has not changed since. Each later write carries the condition that the sequence
// of that message is still the last one of its subject. The next holder's Open moves the
// sequence. The stream's leader checks each condition, even on replicated streams.
//
// # What it does not promise
//
// Nothing is excluded before Open has returned: open first, then read what you are going to
// change. The fence binds only writes that go through it. A plain publish to the stream
// passes, and so does a holder that opens another subject.
//
// The stream remembers the greatest token in the fence's message. An operator who purges
// that message makes the stream forget it. All open fences are then refused, with [ErrLost].
// But the next Open succeeds with any token. Deny deletes and purges where that matters.
//
// Stop all holders before you restore the stream from a backup, or delete it and create it
// again. Both repeat sequences, so that the condition of an old fence may hold again. A
// first sequence (first_seq) above the last one of the old stream prevents that.
//
// # Permissions
//
// The user of the connection needs to publish to the subject of the fence, with lanes also
// to the names below it, to $JS.API.STREAM.INFO.<stream> and to
// $JS.API.STREAM.MSG.GET.<stream>. All holders need the same. [KV.Create] reads the key too,
// by $JS.API.DIRECT.GET.<stream>.<subject>. [KV.Create] and [KV.Update] publish to the
// fence's subject with ".guard" behind it.
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

// A server closes the connection on which a much longer subject or name of a stream comes.
const (
	maxSubject = 2048
	maxStream  = 255
)

// MaxLanes is the greatest number of lanes for [WithLanes].
const MaxLanes = 64

const (
	// openPatience bounds an Open whose context has no deadline. The leader of a stream
	// that was killed is replaced within 4 to 9 s.
	openPatience = 30 * time.Second
	// writePatience bounds a write whose context has no deadline, as nats.go does.
	writePatience = 5 * time.Second
	// tryPatience bounds the wait for one answer within an Open.
	tryPatience = 5 * time.Second
)

// Errors to branch on with errors.Is. An error that matches none of them, and has a
// *[jetstream.APIError], is the server's refusal: it stored nothing.
var (
	// ErrSuperseded: a holder with a greater token has opened the fence, or another Open
	// had the same token. The stream has not stored the write, and stores none that
	// follows. Stop working: the lock is lost.
	ErrSuperseded = errors.New("the fence was superseded")
	// ErrLost: the stream no longer has the fence's message: an operator has deleted or
	// purged it, or the stream was re-created. The stream has not stored the write, and
	// stores none that follows. A holder that still has its lock can open the fence again.
	ErrLost = errors.New("the stream has lost the fence")
	// ErrUnknown: no answer has come. A write may be stored, now or later, as long as no
	// greater token opens the fence. An Open may have moved the fence, and has excluded
	// nothing. To find out, open the fence again with the same token and read the stream:
	// once Open has returned, no earlier write can still be stored.
	ErrUnknown = errors.New("the outcome is unknown")
	// ErrUnfit: the stream cannot keep a fence. The error names the setting and the remedy.
	ErrUnfit = errors.New("the stream cannot keep the fence")
	// ErrInvalid: an argument, a message or an option is invalid. Nothing was sent.
	ErrInvalid = errors.New("invalid argument")
)

// Fence lets a holder write to a stream for as long as no greater token has opened the
// fence. [Open] makes it. It needs no closing, and is safe for concurrent use.
type Fence struct {
	nc      *nats.Conn
	js      jetstream.JetStream
	api     string // prefix of the JetStream API
	stream  string
	subject string
	token   uint64
	lanes   int
	free    chan *lane // the lanes without a write
	ended   atomic.Pointer[error]

	batches bool // the stream takes atomic batches
}

// lane is a fence subject with at most one write in flight: a replicated stream refuses
// others that are guarded by the same subject. A goroutine that has taken the lane from
// [Fence.free] owns it.
type lane struct {
	subject  string
	sequence uint64 // of the own message there, never 0
}

// Option configures [Open].
type Option func(*Fence) error

// WithLanes gives the fence n subjects instead of one, from 1 to [MaxLanes], so that n
// writes can be in flight at a time. The default is 1. The further subjects are the
// fence's with ".1", ".2" and so on behind it, and the stream must have them. The
// holders of a lock can use different numbers: an Open costs two messages per lane of
// the holder that had the most.
func WithLanes(n int) Option {
	return func(f *Fence) error {
		if n < 1 || n > MaxLanes {
			return fmt.Errorf("%w: WithLanes: %d lanes, must be from 1 to %d", ErrInvalid, n, MaxLanes)
		}
		f.lanes = n
		return nil
	}
}

// Check is the rule of fencing for any resource that remembers the greatest token it
// has seen: a request with a smaller token than that comes from a stale holder. Check
// returns nil if the resource has to accept the token, and to remember it in the same
// atomic step as the change. Otherwise the error matches [ErrSuperseded], or
// [ErrInvalid] if the token is 0, which no lock has.
func Check(greatest, token uint64) error {
	switch {
	case token == 0:
		return fmt.Errorf("%w: 0 is no fencing token", ErrInvalid)
	case token < greatest: //safety:fence-check
		return fmt.Errorf("%w: token %d is smaller than token %d, which was seen before", ErrSuperseded, token, greatest)
	}
	return nil
}

// Err returns nil while the fence is open as far as it knows. Once a write was refused it
// returns an error that matches [ErrSuperseded] or [ErrLost], and all later writes return
// the same without sending anything. It does no I/O, so only a write finds out.
func (f *Fence) Err() error {
	if f == nil || f.js == nil {
		return errNotOpen
	}
	if err := f.ended.Load(); err != nil {
		return *err
	}
	return nil
}

// end makes err what the fence returns from now on, unless it has ended before.
func (f *Fence) end(err error) error {
	if !f.ended.CompareAndSwap(nil, &err) {
		if first := f.Err(); first != nil {
			return first
		}
	}
	return err
}

// named puts the fence in front of an error.
func (f *Fence) named(err error) error {
	return fmt.Errorf("fence %.512q of stream %.64q with token %d: %w", f.subject, f.stream, f.token, err)
}

var errNotOpen = fmt.Errorf("%w: a fence.Fence made without Open", ErrInvalid)

// ready refuses a fence that Open has not made, and a nil context.
func (f *Fence) ready(ctx context.Context) error {
	switch {
	case f == nil || f.js == nil:
		return errNotOpen
	case ctx == nil:
		return f.named(fmt.Errorf("%w: the context is nil", ErrInvalid))
	}
	return nil
}

// laneSubject returns the subject of a lane: lane 0 has the fence's own.
func (f *Fence) laneSubject(i int) string {
	if i == 0 {
		return f.subject
	}
	return f.subject + "." + strconv.Itoa(i)
}

// destination returns where this connection has to publish a subject. Through a domain or
// an import the subjects of a bucket travel under the prefix of the API, as nats.go does
// it. The conditions of a write always have the subject as the stream stores it.
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

// literal refuses a subject that is no single one: the server compares the subject of a
// condition by its characters, so that a pattern would guard nothing.
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
