// Package fence makes the server reject writes from a stale lock holder.
//
// A holder that is paused past its lease can wake up and write while the next holder is
// working. No lock can prevent that, but the stream being written to can. A holder opens a
// fence on the stream with the fencing token of its lock. After that, the server stores no
// write from a holder with a lower token.
//
// # Usage
//
//	err := locks.Do(ctx, "orders", func(ctx context.Context, l *natslock.Lock) error {
//		f, err := fence.Open(ctx, js, "ORDERS", "orders.fence", l.Token())
//		if err != nil {
//			return err // errors.Is(err, fence.ErrSuperseded): a newer holder is at work
//		}
//		// Read what you are going to change only now that the fence is open, and then write.
//		_, err = f.Publish(ctx, "orders.created", order)
//		return err // errors.Is(err, fence.ErrSuperseded): the server did not store it
//	})
//
// The stream is one of your own. It can also be a key-value bucket's stream: see [Fence.KV].
// One of its subjects must be reserved for the fence. [Check] applies the same rule to
// resources outside NATS.
//
// # What it promises
//
// Once [Open] has returned, the stream stores no write through a fence that was opened on the
// same subject with a lower token, not even a write in flight that the network delivers
// later. A fence costs a few messages per [Open], and none per write.
//
// To open a fence, Open stores its token on the fence's subject, on the condition that the
// subject has not changed since Open read it. Each later write is conditional on that message
// still being the last one on its subject. When the next holder opens the fence, the sequence
// changes, and the condition fails. The stream's leader checks each condition, even on
// replicated streams.
//
// # What it does not promise
//
// No one is excluded until Open has returned, so open the fence before you read what you are
// going to change. A fence covers only writes made through it. It does not stop a plain
// publish to the stream, or a holder that opens a fence on another subject.
//
// The fence's message is the stream's only record of the highest token. If an operator purges
// that message, all open fences are refused with [ErrLost], but the next Open succeeds with
// any token. Where that matters, deny deletes and purges.
//
// Stop all holders before you restore the stream from a backup, or delete and re-create it.
// Both reuse sequences, so an old fence's condition may become true again. To prevent that,
// re-create the stream with a first sequence (first_seq) above the old stream's last one.
//
// # Permissions
//
// The connection's user must be allowed to publish to the fence's subject (with lanes, also
// to the subjects below it), to $JS.API.STREAM.INFO.<stream> and to
// $JS.API.STREAM.MSG.GET.<stream>. All holders need the same permissions. [KV.Create] also
// reads the key, through $JS.API.DIRECT.GET.<stream>.<subject>. [KV.Create] and [KV.Update]
// publish to the fence's subject followed by ".guard".
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

// Limits on subjects and stream names. The server closes a connection that sends it much
// longer ones.
const (
	maxSubject = 2048
	maxStream  = 255
)

// MaxLanes is the maximum number of lanes for [WithLanes].
const MaxLanes = 64

const (
	// openPatience limits an Open whose context has no deadline. It takes a stream 4 to 9 s to
	// replace a killed leader.
	openPatience = 30 * time.Second
	// writePatience limits a write whose context has no deadline. nats.go uses the same limit.
	writePatience = 5 * time.Second
	// tryPatience limits the wait for a single response.
	tryPatience = 5 * time.Second
)

// Errors to test for with errors.Is. An error that matches none of them and contains a
// *[jetstream.APIError] means that the server rejected the request and stored nothing.
var (
	// ErrSuperseded means that a holder with a higher token has opened the fence, or that
	// another Open used the same token. The stream has not stored the write, and will store
	// no later one. Stop working, because the lock is lost.
	ErrSuperseded = errors.New("the fence was superseded")
	// ErrLost means that the stream no longer has the fence's message, because an operator
	// deleted or purged it or because the stream was re-created. The stream has not stored
	// the write, and will store no later one. A holder that still has its lock can open the
	// fence again.
	ErrLost = errors.New("the stream has lost the fence")
	// ErrUnknown means that no response arrived. A write may have been stored, or may still be
	// stored until a higher token opens the fence. An Open may have moved the fence, but does
	// not exclude anyone yet. To find out what was stored, open the fence again with the same
	// token and then read the stream: once Open has returned, no earlier write can still be
	// stored.
	ErrUnknown = errors.New("the outcome is unknown")
	// ErrUnfit means that the stream cannot keep a fence. The error names the setting and
	// the remedy.
	ErrUnfit = errors.New("the stream cannot keep the fence")
	// ErrInvalid means that an argument, message or option is invalid. Nothing was sent.
	ErrInvalid = errors.New("invalid argument")
)

// Fence lets a holder write to a stream until a higher token opens the fence. Create one
// with [Open]. It does not need to be closed, and is safe for concurrent use.
type Fence struct {
	nc      *nats.Conn
	js      jetstream.JetStream
	api     string // JetStream API prefix
	stream  string
	subject string
	token   uint64
	lanes   int
	free    chan *lane // lanes without a write in flight
	ended   atomic.Pointer[error]

	batches bool // the stream allows atomic batches
}

// lane is a fence subject that has at most one write in flight, because a replicated stream
// rejects concurrent writes that are guarded by the same subject. It belongs to the goroutine
// that took it from [Fence.free].
type lane struct {
	subject  string
	sequence uint64 // of this fence's message on subject, never 0
}

// Option configures [Open].
type Option func(*Fence) error

// WithLanes lets n writes be in flight at a time, by giving the fence n subjects. n is between
// 1 and [MaxLanes], and 1 is the default. The additional subjects are the fence's subject
// followed by ".1", ".2" and so on, and the stream must capture them. The holders of a lock
// can use different numbers of lanes. Open costs two messages per lane, for as many lanes as
// any holder has ever used.
func WithLanes(n int) Option {
	return func(f *Fence) error {
		if n < 1 || n > MaxLanes {
			return fmt.Errorf("%w: WithLanes: %d is out of range: must be 1 to %d", ErrInvalid, n, MaxLanes)
		}
		f.lanes = n
		return nil
	}
}

// Check is the fencing rule for any resource that remembers the greatest token it has seen: a
// request with a lower token comes from a stale holder. If Check returns nil, the resource
// must accept the token and store it as the new greatest in the same atomic step as the
// change. If token is lower than greatest, the error matches [ErrSuperseded]. If token is 0,
// which no lock has, the error matches [ErrInvalid].
func Check(greatest, token uint64) error {
	switch {
	case token == 0:
		return fmt.Errorf("%w: 0 is not a valid fencing token", ErrInvalid)
	case token < greatest: //safety:fence-check
		return fmt.Errorf("%w: token %d is lower than token %d, which was seen earlier", ErrSuperseded, token, greatest)
	}
	return nil
}

// Err returns nil while the fence is open as far as it knows. Once a write has been
// refused, Err returns an error that matches [ErrSuperseded] or [ErrLost], and all later
// writes return the same error without sending anything. Err does no I/O, so it learns of a
// refusal only from a write.
func (f *Fence) Err() error {
	if f == nil || f.js == nil {
		return errNotOpen
	}
	if err := f.ended.Load(); err != nil {
		return *err
	}
	return nil
}

// end ends the fence with err and returns err. If the fence has already ended, end returns
// the error that it ended with.
func (f *Fence) end(err error) error {
	if !f.ended.CompareAndSwap(nil, &err) {
		if first := f.Err(); first != nil {
			return first
		}
	}
	return err
}

// named adds the fence's subject, stream and token to err.
func (f *Fence) named(err error) error {
	return fmt.Errorf("fence %.512q of stream %.64q with token %d: %w", f.subject, f.stream, f.token, err)
}

var errNotOpen = fmt.Errorf("%w: the fence.Fence was not created by Open", ErrInvalid)

// ready returns an error if f did not come from Open, or if ctx is nil.
func (f *Fence) ready(ctx context.Context) error {
	switch {
	case f == nil || f.js == nil:
		return errNotOpen
	case ctx == nil:
		return f.named(fmt.Errorf("%w: the context is nil", ErrInvalid))
	}
	return nil
}

// laneSubject returns the subject of lane i. Lane 0 uses the fence's own subject.
func (f *Fence) laneSubject(i int) string {
	if i == 0 {
		return f.subject
	}
	return f.subject + "." + strconv.Itoa(i)
}

// destination returns the subject that this connection has to publish to in order to reach
// subject. Across a domain or an import, a bucket's subjects get the prefix of the API, as
// in nats.go. The conditions of a write always name the subject as the stream stores it.
func (f *Fence) destination(subject string) string {
	if f.api != jetstream.DefaultAPIPrefix && strings.HasPrefix(subject, kvSubjects) {
		return f.api + subject
	}
	return subject
}

// apiPrefix returns the JetStream API prefix that js uses.
func apiPrefix(js jetstream.JetStream) string {
	switch o := js.Options(); {
	case o.Domain != "":
		return "$JS." + o.Domain + ".API."
	case o.APIPrefix != "":
		return strings.TrimSuffix(o.APIPrefix, ".") + "."
	}
	return jetstream.DefaultAPIPrefix
}

// literal returns an error unless subject is a valid subject without wildcards. The server
// compares a condition's subject literally, so a wildcard would guard nothing.
func literal(subject string) error {
	if len(subject) > maxSubject {
		return fmt.Errorf("%w: the subject has %d bytes; the limit is %d", ErrInvalid, len(subject), maxSubject)
	}
	for part := range strings.SplitSeq(subject, ".") {
		if part == "" || part == "*" || part == ">" || strings.ContainsFunc(part, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
			return fmt.Errorf("%w: %.64q is not a valid literal subject", ErrInvalid, subject)
		}
	}
	return nil
}

// bounded limits ctx to patience, unless it already has a deadline.
func bounded(ctx context.Context, patience time.Duration) (context.Context, context.CancelFunc) {
	if _, has := ctx.Deadline(); has {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, patience)
}
