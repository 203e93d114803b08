// Package admin shows the locks of all clients of a bucket, and breaks them, for operators' tools and for
// monitoring: lockctl and natslock-exporter are made of it. A service that takes locks does not need it.
//
//	locks := admin.New(client) // client is a *natslock.Client
//	for lock, err := range locks.List(ctx, "orders.>") {
//		...
//	}
//
// [Admin.List] and [Admin.Inspect] read, [Admin.Watch] yields what happens, and [Admin.History] what has happened, where
// the bucket has a history. [Admin.Break] ends a claim. [Permissions] returns the subjects that a NATS user
// needs. [WithObserver] has a client report what its own locks do.
package admin

import (
	"context"
	"fmt"
	"iter"

	view "github.com/natslock/locks/internal/admin"
	"github.com/natslock/locks/internal/bridge"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/natslock"
)

var (
	library = bridge.Natslock[*natslock.Client, *natslock.Lock, natslock.Option, natslock.LockOption, *natslock.Holder]()
	inside  = library.Admin
	public  = library.Public
	claimOf = library.HolderOf
	observe = library.Observe
)

func init() { bridge.SetAdmin[*natslock.Client, *Holder, Info, Event](shown{}) }

// shown is for packages election and mirror, and not for users: see [bridge.InsideAdmin].
type shown struct{}

func (shown) Holder(ctx context.Context, c *natslock.Client, name string) (*Holder, uint64, error) {
	in, err := inside(ctx, c)
	if err != nil {
		return nil, 0, err
	}
	e, revision, err := in.Holder(ctx, name)
	return holderOf(e), revision, public(err)
}

func (shown) WatchHolder(ctx context.Context, c *natslock.Client, name string) iter.Seq2[Event, error] {
	return watch(ctx, c, name, eachOf((*view.Admin).WatchHolder))
}

func (shown) Follow(ctx context.Context, c *natslock.Client, pattern string) iter.Seq2[view.Step, error] {
	return watch(ctx, c, pattern, (*view.Admin).Follow)
}

func (shown) InfoOf(v view.View) Info { return infoOf(v) }

func (shown) EventOf(c view.Change) Event {
	return changed(c)
}

// Admin reads, watches and breaks the locks of all clients of a bucket. [New] makes it. Methods of a
// zero Admin, or of one with a nil client, return an error that matches
// [natslock.ErrInvalid].
type Admin struct {
	c *natslock.Client
}

// New returns the view of the bucket that a client is open on. It does no I/O, and needs no closing: it ends
// with the client.
func New(c *natslock.Client) *Admin { return &Admin{c: c} }

func (a *Admin) client() *natslock.Client {
	if a == nil {
		return nil
	}
	return a.c
}

// Inspect reads one lock. The Info of a free lock has neither holder nor queue, and that is no
// error.
//
// The Info contains every write that the server acknowledged before the call, and none that the
// stream's leader has not applied, so an acquire that follows meets that state or a later one.
// On a bucket with replicas that needs a leader and the reads that [Access].OwnOnly withholds.
// Without the reads, or if the leader has not caught up with a follower within a second, a
// record is as the replica that answers has it.
//
// The error matches [natslock.ErrInvalid], [natslock.ErrUnavailable] (even if no leader answers
// within a second), [natslock.ErrPermission], [natslock.ErrClosed] or ctx's.
func (a *Admin) Inspect(ctx context.Context, kind Kind, name string) (Info, error) {
	in, err := inside(ctx, a.client())
	if err != nil {
		return Info{}, fmt.Errorf("inspect lock %.512q: %w", name, err)
	}
	v, err := in.Inspect(ctx, record.Kind(kind), name)
	if err != nil {
		return Info{}, fmt.Errorf("inspect lock %.512q: %w", name, public(err))
	}
	return infoOf(v), nil
}

// List reads the locks of all kinds that are held or waited for and whose names match a
// pattern, in the order of the names. A token of the pattern may be "*", and the last one ">"
// for the rest of the name: ">" lists all locks. List reads the locks one after the other, not
// at one moment. An error ends the sequence: it matches [natslock.ErrInvalid] for a pattern
// that matches no name, [natslock.ErrUnavailable] if no leader answers within a second,
// [natslock.ErrPermission], [natslock.ErrClosed] or ctx's.
func (a *Admin) List(ctx context.Context, pattern string) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		in, err := inside(ctx, a.client())
		if err != nil {
			yield(Info{}, fmt.Errorf("list locks %.512q: %w", pattern, err))
			return
		}
		if err := in.List(ctx, pattern, func(v view.View) bool { return yield(infoOf(v), nil) }); err != nil {
			yield(Info{}, fmt.Errorf("list locks %.512q: %w", pattern, public(err)))
		}
	}
}

// RemoveOverdue removes records of the locks whose names match a pattern (see [Admin.List])
// whose TTL has ended and that the server has not removed: after some restarts a server keeps
// them forever. They keep no client out, and only stand in
// lists. [Holder.Overdue] and [Waiter.Overdue] show them. It removes limit of them at most,
// which is at least 1, one after the other. "lockctl doctor --repair" calls it.
//
// It returns the numbers of records that are gone and that are still there, even with an error. A
// record that its client has renewed meanwhile counts as still there, and is not touched: the
// server compares revisions. The error matches [natslock.ErrInvalid],
// [natslock.ErrUnavailable], [natslock.ErrPermission], [natslock.ErrClosed] or the context's.
func (a *Admin) RemoveOverdue(ctx context.Context, pattern string, limit int) (removed, left int, err error) {
	if limit < 1 {
		return 0, 0, fmt.Errorf("remove overdue records of locks %.512q: %w: a limit of %d", pattern, record.ErrInvalidOption, limit)
	}
	in, err := inside(ctx, a.client())
	if err != nil {
		return 0, 0, fmt.Errorf("remove overdue records of locks %.512q: %w", pattern, err)
	}
	removed, left, err = in.RemoveOverdue(ctx, pattern, limit)
	if err != nil {
		err = fmt.Errorf("remove overdue records of locks %.512q: %w", pattern, public(err))
	}
	return removed, left, err
}

// BreakRequest says which claim [Admin.Break] ends, and why.
type BreakRequest struct {
	// Kind and Name name the lock.
	Kind Kind
	Name string
	// ID names the claim: the [natslock.Holder.ID] of a holder, or of one reader, as
	// [Admin.Inspect] and [Admin.List] return it.
	ID string
	// Reason is shown to the holder, and by [Admin.Inspect], [Admin.List] and
	// [Admin.Watch]. It has at most 1024 bytes.
	Reason string
	// Immediately lets the next client in at once, while the broken holder may still
	// be working. This is an exception to mutual exclusion: two clients can work at
	// the same time, and only resources that check fencing tokens stay safe. The broken
	// holder's lock ends with a cause that matches [natslock.ErrBroken] if its client read or was
	// notified of the break (see [natslock.Tuning]) before the next client had the lock.
	// Otherwise its next renewal shows that another client has the lock, and the cause
	// matches [natslock.ErrLost] alone: a lock that is known to be another's ends without delay.
	// A client that kept the lock idle learns of the break within 5 s.
	Immediately bool
}

// Break ends one claim to a lock: the holder's, or one reader's. It breaks the claim that req
// names and never another one. The holder is notified and cannot renew its lease. No other
// client gets in before the holder has unlocked or its lease would have ended anyway, unless
// Immediately is set.
//
// It returns nil if the claim is broken, even by an earlier call. The error matches
// [natslock.ErrReleased] if the claim is gone, and [natslock.ErrInvalid] for a request without
// an ID or with too long a Reason: nothing was sent. It matches [natslock.ErrUnavailable],
// [natslock.ErrPermission] or ctx's error if the client does not know whether the claim is
// broken.
func (a *Admin) Break(ctx context.Context, req BreakRequest) error {
	in, err := inside(ctx, a.client())
	if err != nil {
		return fmt.Errorf("break lock %.512q: %w", req.Name, err)
	}
	return public(in.Break(ctx, view.BreakRequest{
		Kind: record.Kind(req.Kind), Name: req.Name, ID: req.ID, Reason: req.Reason, Immediately: req.Immediately,
	}))
}
