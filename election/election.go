// Package election elects a leader among the processes that campaign under the same name. It
// shares the bucket, leases and errors of a [natslock.Client].
//
// # Usage
//
//	e := election.New(locks, "scheduler", election.Value([]byte("10.0.0.7:8080")))
//	err := e.Run(ctx, func(ctx context.Context, t *election.Term) error {
//		return schedule(ctx, t.Token()) // ctx ends when the term does
//	})
//
// [Election.Run] campaigns, leads and campaigns again until ctx ends. [Election.Campaign] wins a
// single term. Any process can look up the leader with [Election.Leader] or follow changes with
// [Election.Observe]. [Election.IsLeader] reports whether this process leads, without any I/O.
//
// # What it promises
//
// An election is a mutex of the same name: whoever holds it leads, and its metadata contains the
// leader's value. At most one leader is within its validity at any time, and each term has a
// higher fencing token than all terms before it. A term's context ends before the server admits
// the next leader. If a leader crashes, the candidate that has waited longest takes over within
// the TTL plus half a second. lockctl and [admin.Admin] find an election by its name, and
// breaking the leader's claim ends its term.
//
// # What it does not promise
//
// The library cannot stop your code. A process that is paused past its validity learns only on
// waking that it has lost the term. Pass [Term.Token] to the resource that the leader modifies: a
// resource that rejects lower tokens is safe even then.
//
// An observer can lag by up to five seconds if a notification is lost, and for as long as it
// cannot reach the server.
package election

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/natslock/locks/internal/again"
	"github.com/natslock/locks/internal/bridge"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

// MaxValue is the maximum size of a leader's value in bytes.
const MaxValue = 4 << 10

// ErrNoLeader means that no one currently leads.
var ErrNoLeader = errors.New("no leader")

var inside = bridge.Admin[*natslock.Client, *admin.Holder, admin.Info, admin.Event]()

// Election lets a process campaign in a named election and observe it. Create one with [New]. It
// is safe for concurrent use. The methods of a zero Election return zero values, or an error that
// matches [natslock.ErrInvalid].
type Election struct {
	c        *natslock.Client
	name     string
	err      error // an invalid client or option
	value    []byte
	opts     []natslock.LockOption
	onChange func(Leader)
	term     atomic.Pointer[Term] // the latest term won through this Election
}

// Option configures an [Election].
type Option func(*Election) error

// Value sets the value, such as an address, that this process publishes from the start of each
// term it leads. [Term.Proclaim] replaces the value for the rest of a term. Anyone who can read
// the bucket can see it. By default there is no value. If v has more than [MaxValue] bytes, the
// Election's methods return [natslock.ErrInvalid].
func Value(v []byte) Option {
	v = bytes.Clone(v)
	return func(e *Election) error {
		e.value = v
		return checkValue(v)
	}
}

func checkValue(v []byte) error {
	if len(v) > MaxValue {
		return fmt.Errorf("%w: the value has %d bytes; the limit is %d", natslock.ErrInvalid, len(v), MaxValue)
	}
	return nil
}

// TTL overrides the client's TTL for this candidate's terms. If a leader crashes, the election is
// without a leader for at most one TTL plus half a second. All candidates should use the same
// TTL. If d is outside the limits of [natslock.TTL], campaigns return [natslock.ErrInvalid].
func TTL(d time.Duration) Option {
	return func(e *Election) error {
		e.opts = append(e.opts, natslock.TTL(d))
		return nil
	}
}

// Detached lets a term outlive the context of its campaign. The term's context then ends only
// when the leader resigns or loses its lease, or when an operator breaks its claim, so a service
// that is shutting down can finish its current item and still notice if it loses the term:
//
//	err := e.Run(ctx, func(term context.Context, t *election.Term) error {
//		for ctx.Err() == nil { // no new item after a SIGTERM
//			select {
//			case item := <-items:
//				if err := process(term, item); err != nil {
//					return err
//				}
//			case <-ctx.Done():
//			case <-term.Done(): // lost
//				return t.Err()
//			}
//		}
//		return nil // resigns
//	})
//
// The term's context still carries the values of the campaign's context.
func Detached() Option {
	return func(e *Election) error {
		e.opts = append(e.opts, natslock.Detached())
		return nil
	}
}

// OnChange makes [Election.Run] call fn with the current leader, and again whenever
// [Election.Observe] would yield a change. Calls are made one at a time on a separate goroutine,
// and Run waits for the last one before it returns. If fn is nil, the Election's methods return
// [natslock.ErrInvalid].
func OnChange(fn func(Leader)) Option {
	return func(e *Election) error {
		if fn == nil {
			return fmt.Errorf("%w: OnChange: the function is nil", natslock.ErrInvalid)
		}
		e.onChange = fn
		return nil
	}
}

// New returns the election with the given name. It does no I/O, and the Election does not need to
// be closed. An invalid client or option is reported by the methods that return an error.
func New(c *natslock.Client, name string, opts ...Option) *Election {
	e := &Election{c: c, name: name}
	if c == nil {
		e.err = fmt.Errorf("%w: the client is nil", natslock.ErrInvalid)
	}
	for _, opt := range opts {
		switch {
		case e.err != nil:
		case opt == nil:
			e.err = fmt.Errorf("%w: an option is nil", natslock.ErrInvalid)
		default:
			e.err = opt(e)
		}
	}
	return e
}

// ready returns an error if e did not come from New, if its client or an option is invalid, or if
// ctx is nil.
func (e *Election) ready(ctx context.Context) error {
	switch {
	case e == nil || e.c == nil && e.err == nil:
		return fmt.Errorf("%w: the election.Election was not created by New", natslock.ErrInvalid)
	case e.err != nil:
		return fmt.Errorf("election %.512q: %w", e.name, e.err)
	case ctx == nil:
		return fmt.Errorf("election %.512q: %w: the context is nil", e.name, natslock.ErrInvalid)
	}
	return nil
}

// Campaign queues until this candidate becomes the leader, riding out any outages, and returns
// its term.
//
// ctx is also the parent of the term's context, so when ctx ends, so does the work, unless the
// election is [Detached]. The leader keeps everyone else out until it resigns. Because the
// Election refers to its latest term, dropping the [Term] does not end it: the term lasts until
// the leader resigns or loses its lease, or until the Election is dropped too. An Election that
// campaigns while it leads waits for its own term to end.
//
// Errors are those of [natslock.Client.Lock]. Because an outage ([natslock.ErrUnavailable]) may
// be temporary, [Election.Run] campaigns again after one.
func (e *Election) Campaign(ctx context.Context) (*Term, error) {
	if err := e.ready(ctx); err != nil {
		return nil, err
	}
	opts := []natslock.LockOption{again.Patient(), again.For("election"), natslock.Meta(metaOf(e.value))}
	l, err := e.c.Lock(ctx, e.name, append(opts, e.opts...)...)
	if err != nil {
		return nil, fmt.Errorf("election %.512q: %w", e.name, err)
	}
	t := &Term{lock: l}
	for {
		old := e.term.Load()
		if old != nil && old.lock.Err() == nil && old.Token() > t.Token() {
			return t, nil // t has already ended, and another goroutine leads
		}
		if e.term.CompareAndSwap(old, t) {
			return t, nil
		}
	}
}

// IsLeader reports whether this Election has a term that is within its validity and whose context
// has not ended, and returns that term's fencing token. It consults the clock but does no I/O.
// The result may be out of date by the time the caller acts on it, so pass the token to the
// resource that the leader modifies.
func (e *Election) IsLeader() (token uint64, ok bool) {
	if e == nil {
		return 0, false
	}
	t := e.term.Load()
	if t == nil || t.lock.Err() != nil { //safety:leader-by-clock
		return 0, false
	}
	return t.Token(), true
}

// Leader describes a leader, as recorded in the bucket. The zero Leader means that no one leads.
type Leader struct {
	// Token is the term's fencing token, or 0 if no one leads.
	Token uint64
	// ID identifies the leader's claim: see [natslock.Holder].
	ID string
	// Owner is the name of the leader's client: see [natslock.WithOwner].
	Owner string
	// Host and PID identify the leader's process.
	Host string
	PID  int
	// Since is when the term began, according to the leader's clock.
	Since time.Time
	// Value is the leader's value: see [Value] and [Term.Proclaim].
	Value []byte
}

// Vacant reports whether no one leads.
func (l Leader) Vacant() bool { return l.Token == 0 }

func (l Leader) equal(to Leader) bool {
	return l.Token == to.Token && l.ID == to.ID && bytes.Equal(l.Value, to.Value)
}

// valueKey is the metadata key of the leader's value.
const valueKey = "value"

func metaOf(value []byte) map[string]string {
	if len(value) == 0 {
		return nil
	}
	return map[string]string{valueKey: string(value)}
}

// leaderOf returns the leader that h describes, or the zero Leader if h no longer leads. Breaking
// a leader's claim deposes it, even though its record still keeps the next leader out. A holder
// that does not renew its record does not lead either: it has handed the mutex over, or has
// unlocked it before its minimum hold is over.
func leaderOf(h *admin.Holder) Leader {
	if h == nil || h.Overdue || h.Broken != nil || h.Fixed { //safety:leader-deposed
		return Leader{}
	}
	l := Leader{Token: h.Token, ID: h.ID, Owner: h.Owner, Host: h.Host, PID: h.PID, Since: h.Since}
	if v := h.Meta[valueKey]; v != "" {
		l.Value = []byte(v)
	}
	return l
}

// Leader reads the current leader from the server. The result reflects every change that the
// server acknowledged before the call, although it can take 100 ms to show that one goroutine has
// taken over from another goroutine of the same client.
//
// If no one leads, including because an operator has broken the leader's claim, the error matches
// [ErrNoLeader]. Other errors are those of [admin.Admin.Inspect].
func (e *Election) Leader(ctx context.Context) (Leader, error) {
	if err := e.ready(ctx); err != nil {
		return Leader{}, err
	}
	l, _, err := e.read(ctx)
	if err == nil && l.Vacant() {
		err = ErrNoLeader
	}
	if err != nil {
		return Leader{}, fmt.Errorf("election %.512q: %w", e.name, err)
	}
	return l, nil
}

// read reads the current leader from the server. The result reflects all changes up to the
// returned revision, and possibly later ones.
func (e *Election) read(ctx context.Context) (Leader, uint64, error) {
	h, revision, err := inside.Holder(ctx, e.c, e.name)
	return leaderOf(h), revision, err
}
