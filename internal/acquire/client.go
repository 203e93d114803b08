package acquire

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/call"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
	"github.com/natslock/locks/internal/worker"
)

// Client is how one client gets locks. The session holds them.
type Client struct {
	b     *bucket.Bucket
	s     *session.Session
	kinds kinds
	calls *call.Client
	runs  runs

	mu        sync.Mutex
	closed    bool
	acquiring int
	idle      chan struct{} // closed when closed and acquiring is 0

	closing closing
}

// closing is one Close under way, which others wait for.
type closing struct {
	cut     chan struct{} // closed when another Close runs out of time
	cutOnce sync.Once
	over    chan struct{}
	left    []string // its result
}

// New returns a Client, and starts nothing. turn is the turn of its runs: see [DefaultTurn].
// lingering is the number of idle leases that the client keeps at most.
func New(b *bucket.Bucket, s *session.Session, turn time.Duration, lingering int) *Client {
	c := &Client{b: b, s: s, calls: call.NewClient(b, s, lingering > 0), idle: make(chan struct{})}
	c.runs.b, c.runs.s, c.runs.calls = b, s, c.calls
	c.runs.core = core.Client{ID: b.Client, Turn: turn, Most: lingering}
	c.closing.cut, c.closing.over = make(chan struct{}), make(chan struct{})
	return c
}

// enter registers an acquire, so that Close can end it and wait for it.
func (c *Client) enter() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return bucket.ErrClosed
	}
	c.acquiring++
	return nil
}

func (c *Client) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.acquiring--
	if c.closed && c.acquiring == 0 {
		close(c.idle)
	}
}

// Close takes no new locks, ends the waiters, and closes the session; see
// [session.Session.Close]. It returns the names still held.
//
// Another Close waits for the first one, and cuts its waiting short when its own
// ctx ends.
func (c *Client) Close(ctx context.Context) []string {
	c.mu.Lock()
	first := !c.closed
	if first {
		c.closed = true
		c.b.Quit()
		if c.acquiring == 0 {
			close(c.idle)
		}
	}
	c.mu.Unlock()
	under := &c.closing
	if worker.Within() { // an observer, for which a Close would wait
		c.s.ClosedWithin()
	}
	if !first {
		select {
		case <-under.over:
		case <-ctx.Done():
			under.cutOnce.Do(func() { close(under.cut) })
			<-under.over
		}
		return under.left
	}
	c.runs.close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // ends with ctx, at the end of this function
		select {
		case <-under.cut:
			cancel()
		case <-ctx.Done():
		}
	}()
	defer close(under.over)
	// Waiters leave without waiting for the server, unless the network holds
	// up a write of theirs.
	select {
	case <-c.idle:
	case <-ctx.Done():
		t := time.NewTimer(c.s.ReleaseTimeout)
		defer t.Stop()
		select {
		case <-c.idle:
		case <-t.C:
		}
	}
	under.left = c.s.Close(ctx)
	return under.left
}

// Held returns how many locks are held, how many acquires wait in a queue, and how many
// leases are idle.
func (c *Client) Held() (locks, waiting, idle int) {
	locks = c.s.Held()
	n := c.runs.count()
	return max(locks+n.beside-n.idle, 0), n.waiting, n.idle
}

// kinds remembers the kind under which this client uses a name: using one as two kinds
// would be two locks under one name.
type kinds struct {
	mu sync.Mutex
	m  map[string]record.Kind
}

var kindNames = [...]string{record.Mutex: "a mutex", record.RW: "a reader-writer lock", record.Semaphore: "a semaphore"}

// maxKinds bounds the memory of names; beyond it some are forgotten.
const maxKinds = 1 << 16

// check notes that all of the names are used as kind. Otherwise it notes none of them, and
// the error matches [record.ErrInvalidName].
func (k *kinds) check(kind record.Kind, names ...string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, name := range names {
		if was, ok := k.m[name]; ok && was != kind {
			return fmt.Errorf("%w: this client uses %q both as %s and as %s, which are different locks", record.ErrInvalidName, name, kindNames[was], kindNames[kind])
		}
	}
	for _, name := range names {
		k.note(kind, name)
	}
	return nil
}

// note is part of check. Under mu.
func (k *kinds) note(kind record.Kind, name string) {
	if _, ok := k.m[name]; ok {
		return
	}
	if k.m == nil {
		k.m = make(map[string]record.Kind)
	}
	if len(k.m) >= maxKinds {
		for n := range k.m {
			delete(k.m, n)
			break
		}
	}
	k.m[name] = kind
}

// Check refuses names that this client uses for locks of another kind, before an acquire
// of all of them has sent anything. Acquire does so for each.
func (c *Client) Check(kind record.Kind, names ...string) error {
	return c.kinds.check(kind, names...)
}
