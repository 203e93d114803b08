package natslock

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/natslock/locks/internal/call"
	"github.com/natslock/locks/internal/plain"
	"github.com/natslock/locks/internal/record"
)

// maxLockAll limits the number of names for [Client.LockAll] and [Client.TryLockAll].
const maxLockAll = 256

// giveBackWait limits how long a failing acquire of several locks waits for the server to
// confirm the release of those it got.
const giveBackWait = 250 * time.Millisecond

// LockSet holds several mutexes granted by [Client.LockAll] or [Client.TryLockAll]. The
// holder must unlock it: see [Lock].
//
// Methods of a zero LockSet return an error that matches [ErrInvalid], an ended context, or
// zero values.
type LockSet struct {
	all    []*Lock // in the order of their encoded names
	ctx    context.Context
	cancel context.CancelCauseFunc
}

var errNoLocks = fmt.Errorf("%w: a natslock.LockSet that no acquire has returned", ErrInvalid)

// LockAll takes the mutexes with these names, holding each until it has all of them. Like
// [Client.Lock] it waits until ctx ends or [MaxWait] passes, which limits the whole call. ctx
// is also the parent of [LockSet.Context].
//
// LockAll takes each name once, in the same order in every client, so calls that want the same
// names do not deadlock, provided that the caller holds no other lock that such a call wants.
// LockAll first tries all names at once, which takes one round trip if none is held or has a
// queue. Otherwise it keeps the names that precede the first it did not get, releases the
// rest, and waits for one name after another. The options apply to each lock. A [NoRenew]
// lease can end while LockAll waits for another name.
//
// LockAll returns all locks, or an error and no lock. Before returning an error it releases
// the locks it got, and waits up to 250 ms for the server to confirm that. If a lock is lost
// or broken while LockAll waits for another one, the error matches the cause in [Lock.Context]
// and names both. It matches [ErrInvalid] for an invalid name or option, no names or more than
// 256, and [MinHold]: nothing was sent. Other errors are those of [Client.Lock], and name the
// lock.
func (c *Client) LockAll(ctx context.Context, names []string, opts ...LockOption) (*LockSet, error) {
	g, err := c.gather(ctx, names, opts)
	if err != nil {
		return nil, err
	}
	maxWait := g.cfg.req.MaxWait
	if g.cfg.req.MaxWait = 0; maxWait > 0 {
		var cancel context.CancelFunc
		g.wait, cancel = context.WithTimeoutCause(g.wait, maxWait, call.ErrMaxWait)
		defer cancel()
	}
	return g.result(g.lock())
}

// TryLockAll takes the mutexes with these names if all are free and have no queue. It never
// queues. It asks for all at once: n names cost n messages and one round trip. If it does not
// get all of them, it releases those it got.
//
// TryLockAll returns all locks, or the error from [Client.TryLock] for the first name that it
// did not get, in the order of [Client.LockAll]. Limits, options and other errors are those of
// [Client.LockAll]. [MaxWait] has no effect.
func (c *Client) TryLockAll(ctx context.Context, names []string, opts ...LockOption) (*LockSet, error) {
	g, err := c.gather(ctx, names, opts)
	if err != nil {
		return nil, err
	}
	for _, err := range g.try() {
		if err != nil {
			return g.result(err)
		}
	}
	for _, l := range g.got {
		g.keep(l)
	}
	return g.result(nil)
}

// gathering is an acquire of several locks in progress.
type gathering struct {
	c     *Client
	cfg   lockConfig
	names []string // in the order in which they are taken
	begun time.Time
	got   []*Lock // by name; nil if not held
	held  *LockSet

	wait context.Context // of the acquires
	stop context.CancelCauseFunc
}

// gather checks the arguments, before any I/O.
func (c *Client) gather(ctx context.Context, names []string, opts []LockOption) (*gathering, error) {
	fail := func(err error) (*gathering, error) {
		return nil, fmt.Errorf("lock all of %d names: %w", len(names), err)
	}
	if err := c.readyFor(ctx); err != nil {
		return fail(err)
	}
	cfg, err := lockConfigOf(opts)
	if err != nil {
		return fail(err)
	}
	if cfg.req.MinHold != 0 { // or a lock that is given back would stay taken //safety:all-no-cooldown
		return fail(invalid("MinHold", "does not go with several locks"))
	}
	if len(names) == 0 || len(names) > maxLockAll {
		return fail(invalid("names", "there are %d, not 1 to %d", len(names), maxLockAll))
	}
	ordered, err := inOrder(names)
	if err != nil {
		return fail(err)
	}
	if err := c.locks.Check(record.Mutex, ordered...); err != nil {
		return fail(err)
	}
	g := &gathering{c: c, cfg: cfg, names: ordered, begun: time.Now(), got: make([]*Lock, len(ordered)), held: &LockSet{}}
	base := ctx
	if cfg.req.Detached {
		base = context.WithoutCancel(ctx)
	}
	g.held.ctx, g.held.cancel = context.WithCancelCause(base)
	g.wait, g.stop = context.WithCancelCause(ctx)
	// Each lock's context ends only with that lock.
	g.cfg.req.Kind, g.cfg.req.Detached = record.Mutex, true
	return g, nil
}

// inOrder returns the names without duplicates, in the order in which all clients take them.
func inOrder(names []string) ([]string, error) {
	type key struct{ encoded, name string }
	keys := make([]key, len(names))
	for i, name := range names {
		encoded, err := record.EncodeName(name)
		if err != nil {
			return nil, fmt.Errorf("name %d, %.32q: %w", i+1, name, err)
		}
		keys[i] = key{encoded, name}
	}
	// Two calls with different orders could each hold what the other waits for.
	slices.SortFunc(keys, func(a, b key) int { return strings.Compare(a.encoded, b.encoded) }) //safety:all-in-order
	keys = slices.Compact(keys)
	ordered := make([]string, len(keys))
	for i, k := range keys {
		ordered[i] = k.name
	}
	return ordered, nil
}

// lock takes the locks, waiting where it has to.
func (g *gathering) lock() error {
	n := 0
	var back <-chan struct{}
	if len(g.names) > 1 && g.wait.Err() == nil {
		errs := g.try()
		for n < len(errs) && errs[n] == nil {
			g.keep(g.got[n])
			n++
		}
		for _, err := range errs {
			if err != nil && !errors.Is(err, ErrLocked) && !errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrTimeout) {
				return err // waiting would not help
			}
		}
		if n < len(errs) && g.wait.Err() != nil && errors.Is(errs[n], ErrUnavailable) {
			return g.failure(g.names[n], errs[n]) // the wait ended without an answer
		}
		// A client that waits for a name holds only smaller ones.
		back = g.giveBack(n) //safety:all-given-back
	}
	for ; n < len(g.names); n++ {
		l, err := g.take(g.names[n], false)
		if err != nil {
			return g.failure(g.names[n], err)
		}
		g.got[n] = l
		g.keep(l)
		if back != nil {
			select {
			case <-back:
			case <-g.wait.Done():
			}
			back = nil
		}
	}
	return nil
}

// try asks for all locks at once, and returns an error for each name.
func (g *gathering) try() []error {
	errs := make([]error, len(g.names))
	var all sync.WaitGroup
	for i, name := range g.names {
		all.Go(func() { g.got[i], errs[i] = g.take(name, true) })
	}
	all.Wait()
	return errs
}

func (g *gathering) take(name string, once bool) (*Lock, error) {
	cfg := g.cfg
	cfg.req.Name, cfg.req.Once = name, once
	return g.c.take(g.wait, cfg)
}

// keep adds l to the locks that are held together: when l ends, so do the wait for
// the others and the context of the set.
func (g *gathering) keep(l *Lock) {
	g.held.all = append(g.held.all, l)
	ctx, end, stop := l.Context(), g.held.cancel, g.stop
	// The callback must not refer to l, so that a dropped handle is collected.
	context.AfterFunc(ctx, func() { //safety:all-end-together
		end(context.Cause(ctx))
		stop(context.Cause(ctx)) //safety:all-wait-together
	})
}

// giveBack releases the locks from index n on, in the background. It closes the channel
// when it is done.
func (g *gathering) giveBack(n int) <-chan struct{} {
	var all sync.WaitGroup
	for i, l := range g.got[n:] {
		if l != nil {
			g.got[n+i] = nil
			all.Go(func() { _ = l.Unlock(context.Background()) }) // if it fails, the TTL frees the lock
		}
	}
	done := make(chan struct{})
	go func() {
		all.Wait()
		close(done)
	}()
	return done
}

// result returns the result of the acquire. err is the error that ended it, or nil.
func (g *gathering) result(err error) (*LockSet, error) {
	if err == nil {
		if err = g.failure(g.names[len(g.names)-1], nil); err == nil {
			g.stop(nil)
			return g.held, nil
		}
	}
	if timeout, ok := errors.AsType[*TimeoutError](err); ok {
		timeout.Waited = time.Since(g.begun)
	}
	back := g.giveBack(0) //safety:all-or-nothing
	timer := time.NewTimer(giveBackWait)
	defer timer.Stop()
	select {
	case <-back:
	case <-timer.C:
	}
	g.held.cancel(err)
	g.stop(err)
	return nil, err
}

// failure returns the whole acquire's error after the acquire of name returned err. The loss
// of another lock takes precedence.
func (g *gathering) failure(name string, err error) error {
	for _, l := range g.held.all {
		if cause := l.Err(); cause != nil {
			return fmt.Errorf("acquire lock %q: gave up, because another of the %d locks has ended: %w", name, len(g.names), cause)
		}
	}
	return err
}

// Names returns the names of the locks without duplicates, in the order in which LockAll takes
// them.
func (l *LockSet) Names() []string {
	if l == nil {
		return nil
	}
	names := make([]string, len(l.all))
	for i, lock := range l.all {
		names[i] = lock.Name()
	}
	return names
}

// Token returns the fencing token of the lock with this name, or 0 if it is not
// among [LockSet.Names]. See [Lock.Token]. Only tokens of the same lock can be
// compared.
func (l *LockSet) Token(name string) uint64 {
	if l == nil {
		return 0
	}
	for _, lock := range l.all {
		if lock.Name() == name {
			return lock.Token()
		}
	}
	return 0
}

// Context returns a child of the acquire's context. It ends when the first of the locks ends,
// no later than its validity, when Unlock is called, or when its parent ends. context.Cause
// returns the error of the lock that ended first, as [Lock.Context] does, or the parent's
// cause: then the locks are still held.
func (l *LockSet) Context() context.Context {
	if l == nil || l.ctx == nil {
		return noContext
	}
	return l.ctx
}

// Err returns nil while all locks are held and their context has not ended, and then the cause
// of a lock that has ended, or that of the context.
func (l *LockSet) Err() error {
	if l == nil || l.ctx == nil {
		return errNoLocks
	}
	var released error
	for _, lock := range l.all {
		switch err := lock.Err(); {
		case errors.Is(err, ErrReleased):
			released = err
		case err != nil:
			return err
		}
	}
	if released != nil {
		return released
	}
	return context.Cause(l.ctx)
}

// Unlock ends the context and releases all locks at once. It waits and treats ctx as
// [Lock.Unlock] does. It returns nil if the call came inside the validity of all locks and
// nothing contradicts that, and otherwise the joined errors of [Lock.Unlock]. Further calls
// return the result of the first.
func (l *LockSet) Unlock(ctx context.Context) error {
	if l == nil || l.ctx == nil {
		return errNoLocks
	}
	cause := l.Err()
	if cause == nil {
		cause = fmt.Errorf("locks %s: %w", shortList(l.Names(), 3), ErrReleased)
	}
	// The work under the context must not meet the next holder of any of the locks.
	l.cancel(cause) //safety:all-context-first
	errs := make([]error, len(l.all))
	var all sync.WaitGroup
	for i, lock := range l.all {
		all.Go(func() { errs[i] = lock.Unlock(ctx) })
	}
	all.Wait()
	runtime.KeepAlive(l)
	return plain.Join(errs...)
}

// Do runs fn with the context of the locks, and unlocks them when fn returns or panics. It
// returns fn's error joined with that of [LockSet.Unlock]. A nil fn is refused with
// [ErrInvalid], and the locks stay held.
func (l *LockSet) Do(fn func(ctx context.Context, l *LockSet) error) error {
	if l == nil || l.ctx == nil {
		return errNoLocks
	}
	if fn == nil {
		return fmt.Errorf("locks %s: %w", shortList(l.Names(), 3), errNoFunc)
	}
	return run(func() error { return fn(l.ctx, l) }, func() error { return l.Unlock(l.ctx) })
}
