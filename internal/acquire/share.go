package acquire

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
	"github.com/natslock/locks/kvstore"
)

// shares are the reader leases that goroutines of this client have in common.
//
// A lease is shared only when this client reads the lock already, so that single
// readers pay nothing. It is shared only while its gate is watched. The client
// subscribes before the join, whose answer proves that the subscription is in place.
// Sharing ends when a gate is seen, when the first renewal is sent, or at a third of
// the TTL, whichever is first. So a writer waits no longer for many readers here than
// for one. Sharing never starts again once the last guest has left.
type shares struct {
	mu sync.Mutex
	m  map[string]*reading // by gate
}

// reading is what this client reads behind one gate.
type reading struct {
	leases int
	open   *share // the lease that can be shared; nil: none
}

type share struct {
	gate   string
	host   *member
	until  clock.Instant
	watch  kvstore.Watch
	guests int                 // under shares.mu
	inside map[*guest]struct{} // whose contexts end with the lease; under shares.mu
	closed bool
}

// guest is one goroutine's part in a shared lease.
type guest struct {
	*member
	c      *Client
	share  *share
	ctx    context.Context
	cancel context.CancelCauseFunc

	released sync.Once
	gone     atomic.Bool
	left     clock.Instant // when its belief ended, set before gone is
	result   error
}

// AcquireShared is [Client.Acquire] for readers, without a round trip where this
// client has a lease that can be shared.
func (c *Client) AcquireShared(ctx context.Context, req Request) (Holding, error) {
	encoded, err := record.EncodeName(req.Name)
	if err != nil {
		return nil, err
	}
	plain := req.TTL == 0 && req.Until.IsZero() && !req.Fixed && req.Meta == nil && req.OnWarn == nil
	if !plain || ctx.Err() != nil || c.b.Life().Err() != nil {
		return c.Acquire(ctx, req)
	}
	gate := record.KeysOf(record.RW, encoded).Gate
	s := &c.shares
	s.mu.Lock()
	if s.m == nil {
		s.m = make(map[string]*reading)
	}
	r := s.m[gate]
	if r == nil {
		r = &reading{}
		s.m[gate] = r
	}
	if g := c.join(ctx, r, req.Detached); g != nil {
		s.mu.Unlock()
		return g, nil
	}
	reads := r.leases > 0
	r.leases++
	s.mu.Unlock()

	sh := &share{gate: gate, inside: make(map[*guest]struct{})}
	if reads {
		if sh.watch, err = c.b.Watch(gate, func(ev kvstore.Event) {
			if ev.Kind == kvstore.Put || ev.Kind == kvstore.Recheck { //safety:share-behind-gate
				s.close(sh)
			}
		}); err != nil {
			reads = false
		}
	}
	hosted := req
	hosted.Detached = reads || req.Detached
	l, err := c.acquire(ctx, hosted)
	if err != nil {
		if sh.watch != nil {
			sh.watch.Stop()
		}
		s.left(gate)
		return nil, err
	}
	sh.host = l
	ended := func() {
		s.close(sh)
		s.end(sh)
		if sh.watch != nil {
			c.s.Send(sh.watch.Stop)
		}
		s.left(gate)
	}
	young, held := l.Lease().OnEnd(ended)
	if !held { // the end came before it had a listener
		ended()
	}
	if !reads {
		return l, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	sh.until = young
	if !sh.closed && s.m[gate] == r && r.open == nil {
		r.open = sh
	}
	return c.guestOf(ctx, sh, req.Detached), nil
}

// join makes the caller a guest of the open share, if there is one. Under mu.
func (c *Client) join(ctx context.Context, r *reading, detached bool) *guest {
	sh := r.open
	if sh == nil {
		return nil
	}
	if sh.closed || c.b.Instant() >= sh.until || !sh.host.Lease().Fresh() {
		r.open = nil
		return nil
	}
	return c.guestOf(ctx, sh, detached)
}

// guestOf adds a guest. Under mu.
func (c *Client) guestOf(ctx context.Context, sh *share, detached bool) *guest {
	parent := ctx
	if detached {
		parent = context.WithoutCancel(ctx)
	}
	g := &guest{member: sh.host, c: c, share: sh}
	g.ctx, g.cancel = context.WithCancelCause(parent)
	sh.guests++
	sh.inside[g] = struct{}{}
	if host := sh.host.Context(); host.Err() != nil { // it ended before the guest came
		g.cancel(context.Cause(host))
	}
	return g
}

// end ends the contexts of the guests of a lease that has ended, before the end is
// published.
func (s *shares) end(sh *share) {
	s.mu.Lock()
	guests := slices.Collect(maps.Keys(sh.inside))
	s.mu.Unlock()
	for _, g := range guests {
		g.cancel(context.Cause(sh.host.Context()))
	}
}

// close ends the sharing of a lease; its guests go on.
func (s *shares) close(sh *share) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sh.closed = true
	if r := s.m[sh.gate]; r != nil && r.open == sh {
		r.open = nil
	}
}

// forget: the guest's context has ended.
func (sh *share) forget(g *guest) {
	s := &g.c.shares
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(sh.inside, g)
}

// closeGate ends the sharing behind a gate that this client is to take.
func (s *shares) closeGate(gate string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.m[gate]; r != nil && r.open != nil {
		r.open.closed = true
		r.open = nil
	}
}

// left notes that one of this client's leases behind a gate is over.
func (s *shares) left(gate string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.m[gate]; r != nil {
		if r.leases--; r.leases == 0 {
			delete(s.m, gate)
		}
	}
}

// Context is the guest's own; it ends with the shared lease, too.
func (g *guest) Context() context.Context { return g.ctx }

// Status is that of the shared lease until the guest has left.
func (g *guest) Status() (session.State, time.Duration, error) {
	if g.gone.Load() {
		return session.Released, 0, g.end()
	}
	return g.member.Status()
}

// Left is negative when the guest has left.
func (g *guest) Left() time.Duration {
	if g.gone.Load() {
		return g.left.Sub(g.c.b.Instant())
	}
	return g.member.Left()
}

// Extend is that of the shared lease until the guest has left.
func (g *guest) Extend(ctx context.Context, ttl time.Duration) error {
	if g.gone.Load() {
		return g.end()
	}
	return g.member.Extend(ctx, ttl)
}

func (g *guest) end() *session.EndError {
	return &session.EndError{Name: g.Name(), Token: g.Token(), Kind: session.ErrReleased}
}

// Release lets the guest go; the last one releases the lease. Further calls wait
// for the first and return its result.
func (g *guest) Release() error {
	g.released.Do(func() {
		_, _, lost := g.member.Status()
		g.left = g.c.b.Instant().Add(min(0, g.member.Left())) // it may have been lost before
		g.gone.Store(true)
		g.cancel(cmp.Or(lost, error(g.end())))
		g.share.forget(g)
		if g.leave() {
			g.result = g.member.Release()
		} else {
			g.result = lost
		}
	})
	return g.result
}

// Abandon lets a guest go whose handle was dropped. The lease is renewed while
// others share it.
func (g *guest) Abandon() {
	g.released.Do(func() {
		g.gone.Store(true)
		if g.leave() {
			g.member.Abandon()
		}
	})
}

// leave counts the guest out and says whether it was the last. From then on
// nobody joins any more.
func (g *guest) leave() (last bool) {
	s := &g.c.shares
	s.mu.Lock()
	defer s.mu.Unlock()
	g.share.guests--
	if g.share.guests > 0 { //safety:share-last-leaves
		return false
	}
	g.share.closed = true
	if r := s.m[g.share.gate]; r != nil && r.open == g.share {
		r.open = nil
	}
	return true
}
