package admin

import (
	"fmt"
	"time"

	view "github.com/natslock/locks/internal/admin"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/natslock"
)

// Kind is a kind of lock. Locks of different kinds are different locks, even with the
// same name.
type Kind int

const (
	// KindMutex is the mutual exclusion lock of package natslock.
	KindMutex Kind = iota
	// KindRW is the reader-writer lock of package rwlock.
	KindRW
	// KindSemaphore is the semaphore of package semaphore.
	KindSemaphore
)

// String returns "mutex", "rw" or "semaphore".
func (k Kind) String() string { return record.Kind(k).String() }

// Mode is the mode in which a client holds or waits for a lock.
type Mode int

const (
	// Exclusive: without any other holder, as for a mutex or a writer.
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

// Info is a snapshot of one lock, which may change before the caller reads the Info.
type Info struct {
	Kind Kind
	Name string
	// Holder is the holder, or the writer of a reader-writer lock, or nil if
	// there is none.
	Holder *Holder
	// Readers hold a reader-writer lock together.
	Readers []Holder
	// Permits are the holders of a semaphore's permits, in the order of their slots.
	Permits []Holder
	// Queue holds the waiters, next in line first.
	Queue []Waiter
}

// Waiting returns the number of goroutines that wait for the lock, in the queue or behind the
// holder in its own client.
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

// Holder is a granted claim.
type Holder struct {
	natslock.Holder
	// Waited is the time from the call to the grant, to the millisecond. It is 0
	// if the holder did not queue.
	Waited time.Duration
	// Lingers is true if the client may keep the lock idle: see [natslock.Linger]. Idle is true if no
	// goroutine of the client was inside when the client wrote the record, at the grant or its last
	// renewal. One may be inside by now.
	Lingers, Idle bool
	// Fixed is true if the client does not renew the lease ([natslock.NoRenew], [natslock.Until]), or
	// no longer does because it handed the lock over ([natslock.Lock.Handoff]) or unlocked it before
	// its minimum hold was over ([natslock.MinHold]).
	Fixed bool
	// Purpose says why a lock is meant to be held for long: "election", "member" or "partition"
	// (package partition), "script", "job" (a job that is done: [natslock.Client.Once]) or "rest"
	// (of a minimum hold). It is empty for other locks. Clients in other languages may use other
	// words of at most 16 bytes.
	Purpose string
	// Waiting is the number of goroutines of the holder's client that were waiting behind the
	// holder when the record was written.
	Waiting int
	// Grants is the number of holders that the claim had had by then, including this one. The
	// claim stays the same when goroutines of a client hand a lock on, or take an idle lock
	// again.
	Grants uint64
	TTL    time.Duration
	// Overdue is true if the record's TTL has ended by a server's clock but the server has not
	// removed the record. No one holds the lock through it, and the next acquire replaces it.
	Overdue bool
	// Broken holds the operator's name and reason if an operator broke the lock.
	// The holder may still be stopping.
	Broken *Broken
	// Slot is the number of a semaphore's permit, from 0. Of is the number of permits that
	// the semaphore has, according to the holder's client, or 0 for other locks.
	Slot, Of int
	// Revision is the revision of the record that was read.
	Revision uint64
	// Unreadable marks a record that this version of the library cannot read: an
	// unknown owner holds the lock.
	Unreadable bool
}

// Broken describes a break: the operator, the reason and the time.
type Broken struct {
	By, Reason string
	At         time.Time // by the operator's clock
}

// Waiter is a place in the queue.
type Waiter struct {
	// Ticket orders the queue: lower tickets come first.
	Ticket uint64
	// Goroutines is the number of goroutines of the client that shared the place when its
	// record was written, at least 1.
	Goroutines int
	ID         string
	Owner      string
	Host       string
	PID        int
	Purpose    string    // see [Holder]
	Since      time.Time // by the waiter's own clock
	Mode       Mode
	// Of is the number of permits that the semaphore has, according to the waiter, or 0
	// for other locks.
	Of int
	// TTL is the lifetime of the place's record. The client renews it three times per TTL.
	TTL time.Duration
	// Expires is the time, by the server's clock, at which the server removes the place
	// unless the waiter renews it. Zero means never.
	Expires time.Time
	// Overdue is true if the place's TTL has ended by a server's clock but the server has
	// not removed the record. No one waits because of it.
	Overdue bool
}

func holderOf(e record.Entry) *Holder {
	if e.Zero() {
		return nil
	}
	h := &Holder{Holder: *claimOf(e), Revision: e.Revision, Unreadable: e.Unreadable, Overdue: e.Overdue, Of: int(e.Permits)}
	if k, ok := record.ParseKey(e.Key); ok {
		h.Slot = k.Slot
	}
	if !e.Deleted { // the TTL of a tombstone is not the lease's
		h.TTL = e.Record.TTL
	}
	if e.Unreadable {
		return h
	}
	h.Waited = time.Duration(e.Waited) * time.Millisecond
	h.Waiting, h.Grants = e.Goroutines()-1, e.Granted()
	h.Fixed, h.Purpose = e.Fixed, e.Purpose.String()
	h.Lingers, h.Idle = e.Lingers, e.Lingers && !e.InUse
	if e.Status == record.StatusBroken {
		h.Broken = &Broken{By: e.BrokenBy, Reason: e.Reason, At: time.UnixMilli(e.BrokenAt)}
	}
	return h
}

func waiterOf(e record.Entry) Waiter {
	w := Waiter{
		Ticket: e.TokenOrTicket(), Goroutines: e.Goroutines(), ID: e.ID, Owner: e.Owner, Host: e.Host, PID: e.PID, Purpose: e.Purpose.String(),
		Since: time.UnixMilli(e.Since), Mode: Mode(e.Mode), Of: int(e.Permits), Overdue: e.Overdue, TTL: e.Record.TTL,
	}
	if w.TTL > 0 {
		w.Expires = e.Time.Add(w.TTL)
	}
	return w
}

func infoOf(v view.View) Info {
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
