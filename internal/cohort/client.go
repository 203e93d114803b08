package cohort

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/call"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
	"github.com/natslock/locks/internal/worker"
)

const (
	// DefaultTurn is how long after its grant a lease may serve goroutines that arrived while other clients were
	// queued.
	DefaultTurn = time.Millisecond
	// DefaultMaxLingering is the default limit on a client's idle leases.
	DefaultMaxLingering = 10_000
)

// Client acquires locks on behalf of a single client. Once acquired, they are kept by the session.
//
// Code that runs under mu never calls user code or waits for the network. It defers such work with later, and unlock
// runs it.
type Client struct {
	b     *bucket.Bucket
	s     *session.Session
	calls *call.Client
	turn  time.Duration
	most  int // limit on idle leases

	mu        sync.Mutex
	after     []func()               // deferred until unlock
	locks     map[string]*lock       // by gate
	lone      map[string]*holder     // folded holders, by gate: see holder.fold
	kinds     map[string]record.Kind // by name, as used by this client
	idle      idleList
	closed    bool
	acquiring int           // number of goroutines that are acquiring locks, plus seekers
	quiet     chan struct{} // closed when closed is set and acquiring is 0

	closing closing
}

// closing is the state of a Close under way, which other calls to Close wait for.
type closing struct {
	cut     chan struct{} // closed when another Close runs out of time
	cutOnce sync.Once
	over    chan struct{}
	left    []string // the result
}

// New returns a Client but starts nothing. turn is the turn of its leases; see [DefaultTurn]. If turn is negative, each
// goroutine that wants an exclusive lock queues by itself. lingering limits the number of the client's idle leases.
func New(b *bucket.Bucket, s *session.Session, turn time.Duration, lingering int) *Client {
	c := &Client{b: b, s: s, calls: call.NewClient(b, s, lingering > 0), turn: turn, most: lingering}
	c.locks, c.lone = make(map[string]*lock), make(map[string]*holder)
	c.kinds, c.quiet = make(map[string]record.Kind), make(chan struct{})
	c.closing.cut, c.closing.over = make(chan struct{}), make(chan struct{})
	return c
}

// later defers fn until unlock has released mu.
func (c *Client) later(fn func()) { c.after = append(c.after, fn) }

// unlock releases mu and runs the deferred functions.
func (c *Client) unlock() {
	after := c.after
	c.after = nil
	c.mu.Unlock()
	for _, fn := range after {
		fn()
	}
}

// enter registers an acquire or a seeker that Close has to wait for. It returns false if the client is closed. The
// caller holds mu.
func (c *Client) enter() bool {
	if c.closed {
		return false
	}
	c.acquiring++
	return true
}

func (c *Client) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.acquiring--
	if c.closed && c.acquiring == 0 {
		close(c.quiet)
	}
}

// Close ends all waits, closes the session and prevents further acquisitions; see [session.Session.Close]. It returns
// the names of the locks that are still held.
//
// Further calls wait for the first one and cut its wait short if their own ctx ends.
func (c *Client) Close(ctx context.Context) []string {
	c.mu.Lock()
	first := !c.closed
	if first {
		c.closed = true
		c.b.Quit()
		if c.acquiring == 0 {
			close(c.quiet)
		}
	}
	c.mu.Unlock()
	under := &c.closing
	if worker.Within() { // called by an observer, which Close would wait for
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
	c.recallIdle()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // ends with ctx, when Close returns
		select {
		case <-under.cut:
			cancel()
		case <-ctx.Done():
		}
	}()
	defer close(under.over)
	// Waiters leave without waiting for the server, unless the network is holding up one of their writes.
	select {
	case <-c.quiet:
	case <-ctx.Done():
		t := time.NewTimer(c.s.ReleaseTimeout)
		defer t.Stop()
		select {
		case <-c.quiet:
		case <-t.C:
		}
	}
	under.left = c.s.Close(ctx)
	return under.left
}

// Held returns how many locks are held, how many goroutines are waiting in a queue, and how many leases are idle.
func (c *Client) Held() (locks, waiting, idle int) {
	locks = c.s.Held()
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.b.Instant()
	for _, l := range c.locks {
		for _, k := range l.cohorts {
			waiting += k.waiting()
			for _, t := range k.tenures {
				switch {
				case t.inside == 0:
					idle++
					locks--
				case t.inside > 1 && !t.lease.Ended(now): // a lease that has ended is not held
					locks += t.inside - 1
				}
			}
		}
	}
	return max(locks, 0), waiting, idle
}

// WaitingFor returns how many of the client's goroutines are waiting for a lock, either in its queue or, if they hold
// its gate, for its readers to leave.
func (c *Client) WaitingFor(keys record.Keys) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.locks[keys.Gate]
	if l == nil {
		return 0
	}
	for _, k := range l.cohorts {
		n += k.waiting()
		for _, t := range k.tenures {
			if keys.Kind == record.RW && !k.reads() && !t.drained {
				n++
			}
		}
	}
	return n
}

var kindNames = [...]string{record.Mutex: "a mutex", record.RW: "a reader-writer lock", record.Semaphore: "a semaphore"}

// maxKinds limits how many names the client remembers. Beyond that, it forgets some names.
const maxKinds = 1 << 16

// Check records that all names are used for locks of the given kind, before anything is sent to acquire them together.
// If any name is already used for another kind, there would be two locks of that name, so Check records none of them
// and returns an error matching [record.ErrInvalidName]. Acquire checks its own name.
func (c *Client) Check(kind record.Kind, names ...string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range names {
		if err := c.checkKind(kind, name); err != nil {
			return err
		}
	}
	for _, name := range names {
		c.noteKind(kind, name)
	}
	return nil
}

// checkKind returns an error if name is already used for another kind of lock. The caller holds mu.
func (c *Client) checkKind(kind record.Kind, name string) error {
	if was, ok := c.kinds[name]; ok && was != kind {
		return fmt.Errorf("%w: this client already uses %q as %s, so it cannot also use it as %s", record.ErrInvalidName, name, kindNames[was], kindNames[kind])
	}
	return nil
}

// noteKind records that name is used for a lock of the given kind. The caller holds mu.
func (c *Client) noteKind(kind record.Kind, name string) {
	if _, ok := c.kinds[name]; ok {
		return
	}
	if len(c.kinds) >= maxKinds {
		for n := range c.kinds {
			delete(c.kinds, n)
			break
		}
	}
	c.kinds[name] = kind
}
