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

// LockSet is a set of mutexes granted together by [Client.LockAll] or [Client.TryLockAll]. Its
// holder must unlock it: see [Lock].
type LockSet struct {
	all    []*Lock // in the order of their encoded names
	ctx    context.Context
	cancel context.CancelCauseFunc
}

var errNoLocks = fmt.Errorf("%w: the natslock.LockSet was not returned by an acquire", ErrInvalid)

// LockAll acquires the mutexes called names, at most 256. It waits until ctx ends or [MaxWait]
// passes, which limits the whole call. The options apply to each lock, except that [MinHold] is
// refused.
//
// Every client acquires names in the same order, so calls to LockAll do not deadlock, provided
// that the caller holds no other lock that another call wants. LockAll keeps the locks it
// already has while it waits for the others. Meanwhile a [NoRenew] lease can end.
//
// LockAll returns all locks, or an error and no lock. Before returning an error it releases the
// locks it got, and waits up to 250 ms for the server to confirm that. If a lock is lost or
// broken while LockAll waits for another one, the error matches the cause of that lock's end
// (see [Lock.Context]). Other errors are those of [Client.Lock], and name the lock.
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

// TryLockAll acquires the mutexes called names if all are free and have no queue. It never
// queues, and costs one message per name and one round trip.
//
// TryLockAll returns all locks, or releases those it got and returns the error of
// [Client.TryLock] for the first name in the order of [LockSet.Names] that it did not get.
// Limits and options are those of [Client.LockAll], but [MaxWait] has no effect.
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

// gathering is a call of LockAll or TryLockAll in progress.
type gathering struct {
	c     *Client
	cfg   lockConfig
	names []string // in the order of acquisition
	begun time.Time
	got   []*Lock // one for each name; nil if not held
	held  *LockSet

	wait context.Context // the context of the acquires
	stop context.CancelCauseFunc
}

// gather checks the arguments without any I/O.
func (c *Client) gather(ctx context.Context, names []string, opts []LockOption) (*gathering, error) {
	fail := func(err error) (*gathering, error) {
		return nil, fmt.Errorf("lock all %d names: %w", len(names), err)
	}
	if err := c.readyFor(ctx); err != nil {
		return fail(err)
	}
	cfg, err := lockConfigOf(opts)
	if err != nil {
		return fail(err)
	}
	if cfg.req.MinHold != 0 { // otherwise a lock that is given back would stay taken //safety:all-no-cooldown
		return fail(invalid("MinHold", "cannot be used with LockAll"))
	}
	if len(names) == 0 || len(names) > maxLockAll {
		return fail(invalid("names", "%d names given; must be 1 to %d", len(names), maxLockAll))
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
	// Detach each lock's context from the wait, so that it ends only with its lock.
	g.cfg.req.Kind, g.cfg.req.Detached = record.Mutex, true
	return g, nil
}

// inOrder returns the names without duplicates, in the order in which every client acquires
// them.
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
	// In different orders, two calls could each hold what the other waits for.
	slices.SortFunc(keys, func(a, b key) int { return strings.Compare(a.encoded, b.encoded) }) //safety:all-in-order
	keys = slices.Compact(keys)
	ordered := make([]string, len(keys))
	for i, k := range keys {
		ordered[i] = k.name
	}
	return ordered, nil
}

// lock acquires the locks, and waits for those that are taken.
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
		// While a client waits for one name, it holds only names that come earlier in the order.
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

// try attempts all locks simultaneously, and returns one error per name.
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

// keep adds l to the set. When l ends, so do the set's context and the wait for the other locks.
func (g *gathering) keep(l *Lock) {
	g.held.all = append(g.held.all, l)
	ctx, end, stop := l.Context(), g.held.cancel, g.stop
	// The callback must not refer to l, or a dropped handle would never be collected.
	context.AfterFunc(ctx, func() { //safety:all-end-together
		end(context.Cause(ctx))
		stop(context.Cause(ctx)) //safety:all-wait-together
	})
}

// giveBack releases the locks from index n on in the background, and closes the returned channel
// when done.
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

// result returns the set, or releases all locks if err is not nil or one of them has ended.
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

// failure returns the error of the whole acquire after the acquire of name returned err. The
// loss of another lock takes precedence.
func (g *gathering) failure(name string, err error) error {
	for _, l := range g.held.all {
		if cause := l.Err(); cause != nil {
			return fmt.Errorf("acquire lock %q: gave up because another of the %d locks has ended: %w", name, len(g.names), cause)
		}
	}
	return err
}

// Names returns the names of the locks without duplicates, in the order of acquisition.
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

// Token returns the fencing token of the lock with this name, or 0 if the set has no such lock.
// Only tokens of the same lock can be compared: see [Lock.Token].
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

// Context returns a child of the acquire's context. It ends when Unlock is called, when its
// parent ends, or when the first of the locks ends, in which case it has that lock's cause (see
// [Lock.Context]). If the parent ends first, the cause is the parent's, and the locks are still
// held.
func (l *LockSet) Context() context.Context {
	if l == nil || l.ctx == nil {
		return noContext
	}
	return l.ctx
}

// Err returns nil while all locks are held and the set's context has not ended. After that it
// returns the cause of a lock that has ended, or that of the context.
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

// Unlock ends the context and releases all locks simultaneously, with ctx as in [Lock.Unlock].
// It returns nil if [Lock.Unlock] returns nil for each lock, and otherwise the joined errors.
// Further calls return the result of the first.
func (l *LockSet) Unlock(ctx context.Context) error {
	if l == nil || l.ctx == nil {
		return errNoLocks
	}
	cause := l.Err()
	if cause == nil {
		cause = fmt.Errorf("locks %s: %w", shortList(l.Names(), 3), ErrReleased)
	}
	// End the work's context before any of the locks can get its next holder.
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

// Do calls fn with the set's context and the set, and unlocks the set when fn returns or panics.
// It returns fn's error joined with that of [LockSet.Unlock]. If fn is nil, the locks stay held.
func (l *LockSet) Do(fn func(ctx context.Context, l *LockSet) error) error {
	if l == nil || l.ctx == nil {
		return errNoLocks
	}
	if fn == nil {
		return fmt.Errorf("locks %s: %w", shortList(l.Names(), 3), errNoFunc)
	}
	return run(func() error { return fn(l.ctx, l) }, func() error { return l.Unlock(l.ctx) })
}
