// Package election elects one leader among the processes that campaign under a name. It uses
// the bucket, leases and errors of a [natslock.Client].
//
// # Usage
//
//	e := election.New(locks, "scheduler", election.Value([]byte("10.0.0.7:8080")))
//	err := e.Run(ctx, func(ctx context.Context, t *election.Term) error {
//		return schedule(ctx, t.Token()) // ctx ends when the term does
//	})
//
// [Election.Run] campaigns, leads and campaigns again until ctx ends. For a single term use
// [Election.Campaign]. Any process can look up the leader with [Election.Leader], and follow
// changes with [Election.Observe]. [Election.IsLeader] does no I/O.
//
// # What it promises
//
// An election is a mutex of the same name. Its holder is the leader, and its metadata carry the
// leader's value. At most one leader is inside its validity, and each term has a higher fencing
// token than all earlier ones. The context of a term ends before the server lets the next
// leader in. When a leader crashes, the candidate that asked first takes over within the TTL
// and half a second. lockctl and [admin.Admin] work on an election by its name, and breaking
// the leader's claim ends its term.
//
// # What it does not promise
//
// The library cannot stop work. A process that is paused past its validity learns of the loss
// when it wakes up. Pass [Term.Token] to the resource that the leader changes: a resource that
// refuses lower tokens is safe even then.
//
// An observer can lag: up to five seconds after a lost notification, and for as long as it
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

// MaxValue limits the bytes of a leader's value.
const MaxValue = 4 << 10

// ErrNoLeader means that there is currently no leader.
var ErrNoLeader = errors.New("no leader")

var inside = bridge.Admin[*natslock.Client, *admin.Holder, admin.Info, admin.Event]()

// Election is a named election. Create it with [New]. Methods of a zero Election return an
// error that matches [natslock.ErrInvalid], or zero values. It is safe for concurrent use.
type Election struct {
	c        *natslock.Client
	name     string
	err      error // of the options
	value    []byte
	opts     []natslock.LockOption
	onChange func(Leader)
	term     atomic.Pointer[Term] // the latest one in this process
}

// Option configures an [Election].
type Option func(*Election) error

// Value sets the leader's value, for example an address, which its record shows from the
// beginning of each term. [Term.Proclaim] replaces it for the rest of a term. If it has more
// than [MaxValue] bytes, the methods of the Election return [natslock.ErrInvalid]. Anyone who
// can read the bucket sees it. By default there is none.
func Value(v []byte) Option {
	v = bytes.Clone(v)
	return func(e *Election) error {
		e.value = v
		return checkValue(v)
	}
}

func checkValue(v []byte) error {
	if len(v) > MaxValue {
		return fmt.Errorf("%w: the value has %d bytes, at most %d fit", natslock.ErrInvalid, len(v), MaxValue)
	}
	return nil
}

// TTL sets the TTL of a term, instead of the client's. It has the limits of [natslock.TTL],
// or a campaign returns [natslock.ErrInvalid]. A leader that crashes leaves a vacancy for at
// most one TTL and half a second. All candidates should use the same TTL.
func TTL(d time.Duration) Option {
	return func(e *Election) error {
		e.opts = append(e.opts, natslock.TTL(d))
		return nil
	}
}

// Detached makes a term outlast the context of its campaign: the term's context ends only with
// the term, when the leader resigns, loses its lease or is broken. A service that is being
// stopped can then finish its current item and still learn of a loss:
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
// The term's context keeps the values of the campaign's.
func Detached() Option {
	return func(e *Election) error {
		e.opts = append(e.opts, natslock.Detached())
		return nil
	}
}

// OnChange makes [Election.Run] call fn with the leader, and again after each change: see
// [Election.Observe]. The calls are made one at a time, on a goroutine of their own. Run
// returns only after the last one. A nil fn makes the methods of the Election return
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

// New returns the election called name. It does no I/O, and the Election does not need to be
// closed. An invalid option or client is reported by the methods that return errors.
func New(c *natslock.Client, name string, opts ...Option) *Election {
	e := &Election{c: c, name: name}
	if c == nil {
		e.err = fmt.Errorf("%w: no client", natslock.ErrInvalid)
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

// ready refuses an election that was not made by New, one with an invalid client or option, and a
// nil context.
func (e *Election) ready(ctx context.Context) error {
	switch {
	case e == nil || e.c == nil && e.err == nil:
		return fmt.Errorf("%w: an election.Election made without New", natslock.ErrInvalid)
	case e.err != nil:
		return fmt.Errorf("election %.512q: %w", e.name, e.err)
	case ctx == nil:
		return fmt.Errorf("election %.512q: %w: the context is nil", e.name, natslock.ErrInvalid)
	}
	return nil
}

// Campaign waits in the queue of candidates, and through outages, until this candidate leads,
// and returns its term.
//
// ctx is also the parent of the term's context: when ctx ends, so does the work, unless
// [Detached] is given. The leader keeps the others out until it resigns. An Election holds on
// to its term, which ends when the leader resigns or loses its lease, or when the Election is
// dropped. If an Election that leads campaigns again, it waits for the end of its own term.
//
// Errors are those of [natslock.Client.Lock]. An outage ([natslock.ErrUnavailable]) may pass,
// so [Election.Run] campaigns again after one.
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

// IsLeader reports whether a term of this Election is inside its validity and its context
// has not ended. It also returns the term's fencing token. It reads the clock and does no
// I/O. The answer can change before the caller acts on it, so pass the token to the
// resource that the leader changes.
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

// Leader describes a leader as its record shows it. The zero value is a vacancy.
type Leader struct {
	// Token is the fencing token of the term. It is 0 if no one leads.
	Token uint64
	// ID names the leader's claim: see [natslock.Holder].
	ID string
	// Owner is the name of the leader's client: see [natslock.WithOwner].
	Owner string
	// Host and PID name the leader's process.
	Host string
	PID  int
	// Since is the beginning of the term by the leader's clock.
	Since time.Time
	// Value is the leader's value: see [Value] and [Term.Proclaim].
	Value []byte
}

// Vacant reports whether no one leads.
func (l Leader) Vacant() bool { return l.Token == 0 }

func (l Leader) equal(to Leader) bool {
	return l.Token == to.Token && l.ID == to.ID && bytes.Equal(l.Value, to.Value)
}

// valueKey is the metadata key of a leader's value.
const valueKey = "value"

func metaOf(value []byte) map[string]string {
	if len(value) == 0 {
		return nil
	}
	return map[string]string{valueKey: string(value)}
}

// leaderOf returns the leader that a record shows. A leader that an operator has deposed no
// longer leads, although its record still keeps the next one out. Neither does one that does
// not renew its record: it has handed the mutex over, or left it for the rest of a minimum
// hold.
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

// Leader reads the leader from the server. The answer reflects every change that the server
// acknowledged before the call. If a goroutine takes over from another goroutine of its
// client, the answer shows that within 100 ms.
//
// The error matches [ErrNoLeader] if no one leads, including when an operator has
// broken the leader's claim. Other errors are those of [admin.Admin.Inspect].
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

// read reads the leader. Changes up to the returned revision are no newer than the result.
func (e *Election) read(ctx context.Context) (Leader, uint64, error) {
	h, revision, err := inside.Holder(ctx, e.c, e.name)
	return leaderOf(h), revision, err
}
