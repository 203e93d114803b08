package natslock

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/natslock/locks/internal/admin"
	"github.com/natslock/locks/internal/record"
)

// Kind is a kind of lock. Locks of different kinds are different locks, also
// under one name.
type Kind int

const (
	// KindMutex is the mutual exclusion lock of this package.
	KindMutex Kind = iota
	// KindRW is the reader-writer lock of package rwlock.
	KindRW
)

func (k Kind) String() string {
	switch k {
	case KindMutex:
		return "mutex"
	case KindRW:
		return "rw"
	}
	return fmt.Sprintf("Kind(%d)", int(k))
}

// Mode is how a client holds a lock, or waits to hold it.
type Mode int

const (
	// Exclusive: alone, as the holder of a mutex and as a writer.
	Exclusive Mode = iota
	// Shared: together with other readers.
	Shared
)

// String returns "exclusive" or "shared".
func (m Mode) String() string {
	switch m {
	case Exclusive:
		return "exclusive"
	case Shared:
		return "shared"
	}
	return fmt.Sprintf("Mode(%d)", int(m))
}

// Info is what the bucket says of one lock. It may be out of date by the time that its
// reader sees it.
type Info struct {
	Kind Kind
	Name string
	// Holder is the holder, or the writer of a reader-writer lock; nil when
	// there is none.
	Holder *Holder
	// Readers hold a reader-writer lock together.
	Readers []Holder
	// Queue has the waiters, in the order in which they get the lock.
	Queue []Waiter
}

// Holder is a claim that was granted.
type Holder struct {
	// Token is the fencing token.
	Token uint64
	// ID names the claim. It is never used again. That of an unreadable record is
	// made of its revision.
	ID string
	// Owner is what the client calls itself; see [WithOwner].
	Owner string
	Host  string
	PID   int
	// Since is when it took the lock, by the holder's own clock.
	Since time.Time
	// Waited is how long before that it had asked for the lock, to the
	// millisecond; 0 when it did not have to queue.
	Waited time.Duration
	TTL    time.Duration
	// Expires is when the server removes the record unless it is renewed
	// before, by the server's clock. Zero: never.
	Expires time.Time
	Meta    map[string]string
	// Overdue says that the record's TTL had ended by a server's clock, and the
	// server has not removed it: nobody holds the lock by it, and it keeps nobody
	// out.
	Overdue bool
	// Broken is set when an operator has broken the claim; the holder may still be
	// stopping.
	Broken *Broken
	// Revision is that of the record when it was read.
	Revision uint64
	// Unreadable marks a record that is none of this library's, or from a
	// later version: held by an unknown owner.
	Unreadable bool
}

// Broken says who broke a claim, why and when.
type Broken struct {
	By, Reason string
	At         time.Time // by the operator's clock
}

// Waiter is a place in a queue.
type Waiter struct {
	// Ticket is the place: lower ones come first.
	Ticket uint64
	ID     string
	Owner  string
	Host   string
	PID    int
	Since  time.Time // by the waiter's own clock
	Mode   Mode
}

func (h *Holder) describe() string {
	if h.Unreadable {
		return fmt.Sprintf("an unknown owner (revision %d)", h.Revision)
	}
	s := fmt.Sprintf("%s on %s (token %d)", h.Owner, h.Host, h.Token)
	if h.Broken != nil {
		s += ", broken by " + h.Broken.By
	}
	return s
}

func holderOf(e record.Entry) *Holder {
	if e.Zero() {
		return nil
	}
	h := &Holder{Token: e.TokenOrTicket(), Revision: e.Revision, Unreadable: e.Unreadable, Overdue: e.Overdue}
	if !e.Deleted { // the TTL of a tombstone is its own
		h.TTL = e.Record.TTL
	}
	if h.TTL > 0 {
		h.Expires = e.Time.Add(h.TTL)
	}
	if e.Unreadable {
		h.Since = e.Time
		if !e.Deleted {
			h.ID = e.ClaimID()
		}
		return h
	}
	h.ID, h.Owner, h.Host, h.PID, h.Meta = e.ID, e.Owner, e.Host, e.PID, e.Meta
	h.Waited = time.Duration(e.Waited) * time.Millisecond
	if e.Since != 0 {
		h.Since = time.UnixMilli(e.Since)
	}
	if e.Status == record.StatusBroken {
		h.Broken = &Broken{By: e.BrokenBy, Reason: e.Reason, At: time.UnixMilli(e.BrokenAt)}
	}
	return h
}

// knownHolder is holderOf for errors, where an unknown holder is nil.
func knownHolder(e record.Entry) *Holder {
	if e.Unreadable {
		return nil
	}
	return holderOf(e)
}

func waiterOf(e record.Entry) Waiter {
	return Waiter{
		Ticket: e.TokenOrTicket(), ID: e.ID, Owner: e.Owner, Host: e.Host, PID: e.PID,
		Since: time.UnixMilli(e.Since), Mode: Mode(e.Mode),
	}
}

func infoOf(v admin.View) Info {
	i := Info{Kind: Kind(v.Kind), Name: v.Name, Holder: holderOf(v.Holder)}
	for _, r := range v.Readers {
		i.Readers = append(i.Readers, *holderOf(r))
	}
	for _, w := range v.Queue {
		i.Queue = append(i.Queue, waiterOf(w))
	}
	return i
}

// Inspect reads one lock. A lock that nobody holds or waits for has an Info
// without holder and queue: it is not an error. While the bucket has a leader, the
// Info contains every write that the server acknowledged before the call; it may be
// out of date when Inspect returns. On a bucket with replicas that takes the reads of
// [Access.ReadAll]: without them a record may be as old as the replica that
// answers. Errors match [ErrInvalidName], [ErrUnavailable], [ErrPermission],
// [ErrClosed] or ctx's error.
func (c *Client) Inspect(ctx context.Context, kind Kind, name string) (Info, error) {
	if err := c.ready(); err != nil {
		return Info{}, fmt.Errorf("inspect lock %q: %w", name, err)
	}
	v, err := c.admin.Inspect(ctx, record.Kind(kind), name)
	if err != nil {
		return Info{}, fmt.Errorf("inspect lock %q: %w", name, public(err))
	}
	return infoOf(v), nil
}

// List yields the locks of all kinds whose names match a pattern and that are held or
// waited for: tokens may be "*", the last one ">" for the rest of the name, so ">" lists
// all. The order is that of the names. The locks are not read at one moment. An error
// ends the sequence: it matches [ErrInvalidName] for a pattern that matches no name,
// [ErrUnavailable], [ErrPermission], [ErrClosed] or ctx's error.
func (c *Client) List(ctx context.Context, pattern string) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		if err := c.ready(); err != nil {
			yield(Info{}, fmt.Errorf("list locks %q: %w", pattern, err))
			return
		}
		views, err := c.admin.List(ctx, pattern)
		if err != nil {
			yield(Info{}, fmt.Errorf("list locks %q: %w", pattern, public(err)))
			return
		}
		for _, v := range views {
			if !yield(infoOf(v), nil) {
				return
			}
		}
	}
}
