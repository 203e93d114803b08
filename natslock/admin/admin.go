// Package admin shows and breaks the locks of all clients of a bucket. It is for operators'
// tools and monitoring, such as lockctl and natslock-exporter. A service that only takes locks
// does not need it.
//
//	locks := admin.New(client) // client is a *natslock.Client
//	for lock, err := range locks.List(ctx, "orders.>") {
//		...
//	}
//
// [Admin.List] and [Admin.Inspect] read locks, [Admin.Watch] yields events as they happen, and
// [Admin.History] yields past events if the bucket has a history. [Admin.Break] ends a claim.
// [Permissions] returns the subjects that a NATS user needs. [WithObserver] makes a client
// report the events of its own locks.
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

// shown implements [bridge.InsideAdmin], which gives packages election and mirror access that
// users do not have.
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

// Admin reads, watches and breaks the locks of all clients of a bucket. Create it with [New].
// Methods of a zero Admin, or of one with a nil client, return an error that matches
// [natslock.ErrInvalid].
type Admin struct {
	c *natslock.Client
}

// New returns an Admin for c's bucket. It does no I/O. An Admin does not need to be closed: it
// ends with c.
func New(c *natslock.Client) *Admin { return &Admin{c: c} }

func (a *Admin) client() *natslock.Client {
	if a == nil {
		return nil
	}
	return a.c
}

// Inspect returns the state of one lock. A free lock is not an error: its Info has neither a
// holder nor a queue.
//
// The Info reflects every write that the server acknowledged before the call, and none that the
// stream's leader has not applied, so a later acquire sees that state or a newer one. On a
// bucket with replicas this requires a leader and the reads that [Access].OwnOnly withholds.
// Without those reads, or if the leader does not catch up with a follower within a second, the
// Info shows each record as the answering replica has it.
//
// The error matches [natslock.ErrInvalid], [natslock.ErrUnavailable] (including when no leader
// answers within a second), [natslock.ErrPermission], [natslock.ErrClosed] or ctx's error.
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

// List yields the locks of all kinds that are held or waited for and whose names match pattern,
// ordered by name. Any token of the pattern can be "*", and the last one can be ">", which
// stands for the rest of the name: ">" lists all locks. List reads one lock after another, so
// the result is not a snapshot.
//
// An error ends the sequence. It matches [natslock.ErrInvalid] for a pattern that matches no
// name, [natslock.ErrUnavailable] (including when no leader answers within a second),
// [natslock.ErrPermission], [natslock.ErrClosed] or ctx's error.
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

// RemoveOverdue deletes records that the server has kept beyond their TTL, as it does forever
// after some restarts. It deletes at most limit records, one after another, of locks whose names
// match pattern (see [Admin.List]). limit must be at least 1. Overdue records keep no client
// out, but they clutter lists, where [Holder.Overdue] and [Waiter.Overdue] mark them. "lockctl
// doctor --repair" calls RemoveOverdue.
//
// RemoveOverdue returns the number of records removed and the number left, even with an error.
// If a client renews its record in the meantime, the record counts as left and is not touched,
// because the server compares revisions. The error matches [natslock.ErrInvalid],
// [natslock.ErrUnavailable], [natslock.ErrPermission], [natslock.ErrClosed] or ctx's error.
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
	// Kind and Name identify the lock.
	Kind Kind
	Name string
	// ID identifies the claim: the [natslock.Holder.ID] of a holder or a reader, as returned by
	// [Admin.Inspect] and [Admin.List].
	ID string
	// Reason is shown to the holder, and by [Admin.Inspect], [Admin.List] and [Admin.Watch]. It
	// may have up to 1024 bytes.
	Reason string
	// Immediately lets the next client in without waiting for the broken holder, which may still
	// be working. This suspends mutual exclusion: two clients can work at the same time, and
	// only resources that check fencing tokens stay safe.
	//
	// The broken holder's lock ends with a cause that matches [natslock.ErrBroken] if its client
	// read or was notified of the break (see [natslock.Tuning]) before the next client got the
	// lock. Otherwise the lock ends when its next renewal finds that another client has it, and
	// the cause matches only [natslock.ErrLost]. A client that kept the lock idle learns of the
	// break within 5 s.
	Immediately bool
}

// Break ends one claim to a lock, the holder's or one reader's, and never any claim other than
// the one that req identifies. The holder is notified and cannot renew its lease. Unless
// req.Immediately is set, no other client gets in before the holder has unlocked or its lease
// would have ended anyway.
//
// Break returns nil if the claim is broken, even if an earlier call broke it. The error matches
// [natslock.ErrReleased] if the claim has already ended, and [natslock.ErrInvalid] if req has no
// ID or too long a Reason, in which case nothing was sent. If it matches
// [natslock.ErrUnavailable], [natslock.ErrPermission] or ctx's error, the claim may or may not
// be broken.
func (a *Admin) Break(ctx context.Context, req BreakRequest) error {
	in, err := inside(ctx, a.client())
	if err != nil {
		return fmt.Errorf("break lock %.512q: %w", req.Name, err)
	}
	return public(in.Break(ctx, view.BreakRequest{
		Kind: record.Kind(req.Kind), Name: req.Name, ID: req.ID, Reason: req.Reason, Immediately: req.Immediately,
	}))
}
