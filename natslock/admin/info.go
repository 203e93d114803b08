package admin

import (
	"fmt"
	"time"

	view "github.com/natslock/locks/internal/admin"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/natslock"
)

// Kind is a kind of lock. Locks of different kinds are different locks, even if they have the
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

// Mode is the mode in which a client holds a lock or waits for it.
type Mode int

const (
	// Exclusive excludes all other holders, as a mutex or a writer does.
	Exclusive Mode = iota
	// Shared excludes only writers, as a reader does.
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

// Info is a snapshot of one lock. The lock may have changed by the time the caller reads it.
type Info struct {
	Kind Kind
	Name string
	// Holder is the holder, or the writer of a reader-writer lock. It is nil if there is none.
	Holder *Holder
	// Readers are the current readers of a reader-writer lock.
	Readers []Holder
	// Permits are the holders of a semaphore's permits, in the order of their slots.
	Permits []Holder
	// Queue lists the waiters, next in line first.
	Queue []Waiter
}

// Waiting returns the number of goroutines waiting for the lock, whether in the queue or behind
// another goroutine of the holder's client.
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
	// Waited is the time from the call to the grant, rounded to milliseconds. It is 0 if the
	// holder did not queue.
	Waited time.Duration
	// Lingers is true if the client may keep the lock idle: see [natslock.Linger]. Idle is true
	// if no goroutine of the client was using the lock when the client wrote the record, at the
	// grant or its last renewal. A goroutine may be using it by now.
	Lingers, Idle bool
	// Fixed is true if the client does not renew the lease ([natslock.NoRenew],
	// [natslock.Until]), or no longer does because it handed the lock over
	// ([natslock.Lock.Handoff]) or unlocked it before its minimum hold was over
	// ([natslock.MinHold]).
	Fixed bool
	// Purpose says why a lock is meant to be held for a long time: "election", "member" or
	// "partition" (package partition), "script", "job" (a job that is done:
	// [natslock.Client.Once]) or "rest" (of a minimum hold). It is empty for other locks.
	// Clients in other languages may use other words of at most 16 bytes.
	Purpose string
	// Waiting is the number of the client's goroutines that were waiting behind the holder when
	// the record was written.
	Waiting int
	// Grants is the number of holders that the claim had had when the record was written,
	// including this one. A claim has more than one if its client passes the lock on among its
	// goroutines or takes an idle lock again.
	Grants uint64
	TTL    time.Duration
	// Overdue is true if the TTL has passed by a server's clock but the server has not removed
	// the record. Nobody holds the lock through it, and the next acquire replaces it.
	Overdue bool
	// Broken is set if an operator broke the lock. The holder may still be stopping.
	Broken *Broken
	// Slot is the number of the semaphore's permit, from 0. Of is the semaphore's number of
	// permits according to the holder's client, or 0 for other locks.
	Slot, Of int
	// Revision is the revision of the record.
	Revision uint64
	// Unreadable is true if this version of the library cannot read the record. The lock is held
	// by an unknown owner.
	Unreadable bool
}

// Broken says who broke a lock, why and when.
type Broken struct {
	By, Reason string
	At         time.Time // by the operator's clock
}

// Waiter is a place in the queue.
type Waiter struct {
	// Ticket orders the queue: lower tickets come first.
	Ticket uint64
	// Goroutines is the number of the client's goroutines that shared the place when its record
	// was written, at least 1.
	Goroutines int
	ID         string
	Owner      string
	Host       string
	PID        int
	Purpose    string    // as in [Holder]
	Since      time.Time // by the waiter's clock
	Mode       Mode
	// Of is the semaphore's number of permits according to the waiter, or 0 for other locks.
	Of int
	// TTL is the TTL of the place's record, which the client renews three times per TTL.
	TTL time.Duration
	// Expires is the time, by the server's clock, at which the server removes the place unless
	// the waiter renews it. Zero means never.
	Expires time.Time
	// Overdue is true if the TTL has passed by a server's clock but the server has not removed
	// the record. The record holds up no other waiter.
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
	if !e.Deleted { // a tombstone's TTL is not the lease's
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
