package natslock

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/natslock/locks/internal/admin"
	"github.com/natslock/locks/internal/record"
)

// Kind is a kind of lock. Two locks of different kinds are different locks, even with
// the same name.
type Kind int

const (
	// KindMutex is the mutual exclusion lock of this package.
	KindMutex Kind = iota
	// KindRW is the reader-writer lock of package rwlock.
	KindRW
	// KindSemaphore is the semaphore of package semaphore.
	KindSemaphore
)

func (k Kind) String() string {
	switch k {
	case KindMutex:
		return "mutex"
	case KindRW:
		return "rw"
	case KindSemaphore:
		return "semaphore"
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

// Info is the state of one lock at one moment. The lock can change before the caller
// reads the Info.
type Info struct {
	Kind Kind
	Name string
	// Holder is the holder, or the writer of a reader-writer lock. It is nil if
	// there is none.
	Holder *Holder
	// Readers hold a reader-writer lock together.
	Readers []Holder
	// Permits are the holders of a semaphore, each with a permit, in the order of their
	// slots.
	Permits []Holder
	// Queue holds the waiters, the first in line first.
	Queue []Waiter
}

// Waiting returns how many goroutines wait for the lock: at the places of the queue, and
// at the holder's client behind the holder.
func (i Info) Waiting() int {
	n := 0
	if i.Holder != nil {
		n = i.Holder.Waiting
	}
	for _, w := range i.Queue {
		n += w.Goroutines
	}
	return n
}

// Holder is a claim that was granted.
type Holder struct {
	// Token is the fencing token. That of an unreadable record is made of its
	// revision.
	Token uint64
	// ID names the claim. It is never used again. That of an unreadable record is
	// made of its revision.
	ID string
	// Owner is the name that the client gave itself; see [WithOwner].
	Owner string
	Host  string
	PID   int
	// Since is the time of the grant, by the holder's own clock.
	Since time.Time
	// Waited is the time from the call to the grant, in milliseconds. It is 0 if
	// the holder did not queue.
	Waited time.Duration
	// Lingers says that the client may keep the lock idle: see [Linger]. Idle says that no
	// goroutine of the client was inside when the client wrote the record, at the grant or
	// at its last renewal. One may be inside by now.
	Lingers, Idle bool
	// Resting says that the holder has unlocked the lock before its minimum hold was over:
	// see [MinHold]. Nobody holds the lock, and it keeps others out until Expires.
	Resting bool
	// HandedOver says that the holder has handed the lock over: see [Lock.Handoff]. Nobody
	// holds the lock until a client adopts it, and it keeps others out until Expires.
	HandedOver bool
	// Fixed says that the client does not renew the lease by itself: see [NoRenew] and
	// [Until].
	Fixed bool
	// Waiting is how many goroutines of the holder's client waited behind the holder
	// when the record was written.
	Waiting int
	// Grants is how many holders the claim had had by then, this one included. The
	// goroutines of a client hand a lock on under one claim, and take an idle lock again.
	Grants uint64
	TTL    time.Duration
	// Expires is the time, by the server's clock, at which the server removes the
	// record unless the holder renews it before. Zero means never.
	Expires time.Time
	Meta    map[string]string
	// Overdue says that the record's TTL has ended by a server's clock and the
	// server has not removed the record. Nobody holds the lock by it, and the next
	// acquire replaces it.
	Overdue bool
	// Broken holds the operator's name and reason if an operator broke the lock.
	// The holder may still be stopping.
	Broken *Broken
	// Slot is the number of the permit of a semaphore, from 0. Of is the number of permits
	// that the semaphore has, as the holder's client knows. Of is 0 for other locks.
	Slot, Of int
	// Revision is the revision of the record that the client read.
	Revision uint64
	// Unreadable marks a record that this version of the library cannot read. An
	// unknown owner holds the lock.
	Unreadable bool
}

// Broken describes a break: the operator, the reason and the time.
type Broken struct {
	By, Reason string
	At         time.Time // by the operator's clock
}

// Waiter is a place in a queue.
type Waiter struct {
	// Ticket is the place: lower ones come first.
	Ticket uint64
	// Goroutines is how many goroutines of the client waited at the place when its
	// record was written, at least 1.
	Goroutines int
	ID         string
	Owner      string
	Host       string
	PID        int
	Since      time.Time // by the waiter's own clock
	Mode       Mode
	// Of is the number of permits that the semaphore has, as the waiter knows. It is 0 for
	// other locks.
	Of int
	// TTL is the life of the place's record. The client renews it three times in that time.
	TTL time.Duration
	// Expires is the time, by the server's clock, at which the server removes the place
	// unless the waiter renews it before. Zero means never.
	Expires time.Time
	// Overdue says that the place's TTL has ended by a server's clock and the server has
	// not removed the record. It keeps nobody waiting.
	Overdue bool
}

func (h *Holder) describe() string {
	if h.Unreadable {
		return fmt.Sprintf("an unknown owner (revision %d)", h.Revision)
	}
	s := h.Owner
	if !strings.Contains(s, h.Host) { // the default owner names the host
		s += " on " + h.Host
	}
	s += fmt.Sprintf(" (token %d)", h.Token)
	switch {
	case h.Broken != nil:
		s += ", broken by " + h.Broken.By
	case h.HandedOver:
		s += ", handed over and not adopted"
	case h.Resting:
		s += ", unlocked before its minimum hold was over"
	}
	return s
}

func holderOf(e record.Entry) *Holder {
	if e.Zero() {
		return nil
	}
	h := &Holder{Token: e.TokenOrTicket(), Revision: e.Revision, Unreadable: e.Unreadable, Overdue: e.Overdue, Of: int(e.Permits)}
	if k, ok := record.ParseKey(e.Key); ok {
		h.Slot = k.Slot
	}
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
	h.Waiting, h.Grants = e.Goroutines()-1, e.Granted()
	h.Resting, h.HandedOver = e.Status == record.StatusResting, e.Status == record.StatusHanded
	h.Fixed = e.Fixed
	h.Lingers, h.Idle = e.Lingers, e.Lingers && e.InUse == 0
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
	w := Waiter{
		Ticket: e.TokenOrTicket(), Goroutines: e.Goroutines(), ID: e.ID, Owner: e.Owner, Host: e.Host, PID: e.PID,
		Since: time.UnixMilli(e.Since), Mode: Mode(e.Mode), Of: int(e.Permits), Overdue: e.Overdue, TTL: e.Record.TTL,
	}
	if w.TTL > 0 {
		w.Expires = e.Time.Add(w.TTL)
	}
	return w
}

func infoOf(v admin.View) Info {
	i := Info{Kind: Kind(v.Kind), Name: v.Name, Holder: holderOf(v.Holder)}
	for _, r := range v.Readers {
		i.Readers = append(i.Readers, *holderOf(r))
	}
	for _, h := range v.Slots {
		i.Permits = append(i.Permits, *holderOf(h))
	}
	for _, w := range v.Queue {
		i.Queue = append(i.Queue, waiterOf(w))
	}
	return i
}

// Inspect reads one lock. If nobody holds the lock or waits for it, the Info has
// neither holder nor queue, and that is no error.
//
// The Info contains every write that the server acknowledged before the call, and none
// that the stream's leader has not applied. So an acquire that follows meets what the Info
// shows, or a later state. On a bucket with replicas that needs a leader and the reads of
// [Access.ReadAll]. Without the reads, or if the leader has not caught up with a follower
// within a second, a record is as the replica that answers has it. If no leader answers
// within a second, the error matches [ErrUnavailable].
//
// The error matches [ErrInvalidName], [ErrUnavailable], [ErrPermission], [ErrClosed] or
// the context's.
func (c *Client) Inspect(ctx context.Context, kind Kind, name string) (Info, error) {
	if err := c.readyFor(ctx); err != nil {
		return Info{}, fmt.Errorf("inspect lock %q: %w", name, err)
	}
	v, err := c.admin.Inspect(ctx, record.Kind(kind), name)
	if err != nil {
		return Info{}, fmt.Errorf("inspect lock %q: %w", name, public(err))
	}
	return infoOf(v), nil
}

// List reads the locks of all kinds whose names match a pattern and that are held or
// waited for, in the order of the names. A token of the pattern may be "*", and the last
// one ">" for the rest of the name: ">" lists all locks. List reads the locks one after
// the other, not at one moment. While the stream has no leader, they are those that the
// replica has which answers. An error ends the sequence: it matches [ErrInvalidName]
// for a pattern that matches no name, [ErrUnavailable], [ErrPermission], [ErrClosed] or
// the context's.
func (c *Client) List(ctx context.Context, pattern string) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		if err := c.readyFor(ctx); err != nil {
			yield(Info{}, fmt.Errorf("list locks %q: %w", pattern, err))
			return
		}
		if err := c.admin.List(ctx, pattern, func(v admin.View) bool { return yield(infoOf(v), nil) }); err != nil {
			yield(Info{}, fmt.Errorf("list locks %q: %w", pattern, public(err)))
		}
	}
}

// RemoveOverdue removes records of the locks whose names match a pattern (see [Client.List])
// whose TTL has ended and that the server has not removed: after some restarts a server keeps
// them for ever. Nobody holds or waits by them, and they keep nobody out: they only stand in
// lists. [Holder.Overdue] and [Waiter.Overdue] show them. It removes limit of them at most,
// which is at least 1, one after the other. "lockctl doctor --repair" calls it.
//
// It returns how many records are gone, and how many are still there, also with an error. A
// record that its client has renewed meanwhile counts as still there, and is not touched: the
// server compares revisions. The error matches [ErrInvalidName], [ErrInvalidOption],
// [ErrUnavailable], [ErrPermission], [ErrClosed] or the context's.
func (c *Client) RemoveOverdue(ctx context.Context, pattern string, limit int) (removed, left int, err error) {
	if limit < 1 {
		return 0, 0, fmt.Errorf("remove overdue records of locks %q: %w: a limit of %d", pattern, ErrInvalidOption, limit)
	}
	if err := c.readyFor(ctx); err != nil {
		return 0, 0, fmt.Errorf("remove overdue records of locks %q: %w", pattern, err)
	}
	removed, left, err = c.admin.RemoveOverdue(ctx, pattern, limit)
	if err != nil {
		err = fmt.Errorf("remove overdue records of locks %q: %w", pattern, public(err))
	}
	return removed, left, err
}
