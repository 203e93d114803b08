package testutil

import (
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// Link is a network between a client and the server that a test can disrupt. It is a
// nats.CustomDialer, and all of its client's connections, one after another, run
// through it. Get one from [Server.ConnectLink] or, for a client that is created some
// other way, from [NewLink].
//
// A healthy link forwards bytes immediately. It buffers like a pair of sockets, so
// client and server never wait for each other to read.
//
// Nothing in a link sleeps. Its methods may be called from any goroutine, and do not
// wait for bytes to move.
type Link struct {
	dial   func(network, address string) (net.Conn, error)
	bubble bool

	mu      sync.Mutex
	conns   map[*linkConn]struct{}
	cut     bool
	hole    bool
	blocked chan struct{} // closed when writes may continue; nil if writes are not blocked
	closed  bool
	dials   int
	wg      sync.WaitGroup // goroutines of the connections
}

// NewLink returns a healthy link over TCP. Pass it to a client with
// nats.SetCustomDialer.
func NewLink() *Link {
	return newLink((&net.Dialer{Timeout: 2 * time.Second}).Dial)
}

func newLink(dial func(network, address string) (net.Conn, error)) *Link {
	return &Link{dial: dial, conns: make(map[*linkConn]struct{})}
}

// Cut closes the link's connections at both ends, and refuses new ones until
// [Link.Heal]. Client and server notice immediately. Bytes held back by
// [Link.Blackhole] are lost.
func (l *Link) Cut() {
	l.mu.Lock()
	l.cut = true
	conns := l.snapshot()
	l.mu.Unlock()
	for _, c := range conns {
		c.reset()
	}
}

// Heal ends a cut, a black hole and blocked writes. The client reconnects after its
// reconnect wait. Healing a healthy link does nothing.
func (l *Link) Heal() {
	l.BlockWrites(false)
	l.mu.Lock()
	l.cut = false
	l.mu.Unlock()
	l.Blackhole(false)
}

// Blackhole makes the link swallow all bytes in both directions without closing
// anything: the client's writes succeed, but nothing comes back. Neither side notices
// until its own timeouts expire. New connections fail immediately with a timeout.
//
// When the black hole is switched off, the bytes held back arrive in order, however
// late, as if the network had retransmitted them. That includes bytes of connections
// that the client has abandoned in the meantime, so a publish can be applied long after
// it timed out. To lose the bytes instead, use [Link.Cut].
//
// The buffers are unbounded.
func (l *Link) Blackhole(on bool) {
	l.mu.Lock()
	l.hole = on
	conns := l.snapshot()
	if !on {
		for _, c := range conns {
			if len(c.out) > 0 || c.closing {
				l.wg.Go(c.flush)
			}
		}
	}
	l.mu.Unlock()
	for _, c := range conns {
		signal(c.readable)
		signal(c.room)
	}
}

// BlockWrites makes the client's writes block, as on a full socket, until the test
// calls it with false, the connection ends, or the write deadline passes. nats.go sets
// that deadline to one minute: see nats.FlusherTimeout.
//
// nats.go holds its connection's mutex during a write, so everything else that needs
// the connection waits too: a publish, a request, the response to the server's ping. A
// bubble does not treat a goroutine waiting for a mutex as blocked, so the bubble's
// clock stands still. If only the clock, or the test after a Sleep, can end the write,
// the test hangs. In a bubble, therefore:
//
//   - The link also holds back the server's messages while writes are blocked, because
//     the client could otherwise stop the clock by answering a ping. Over TCP, the
//     messages arrive.
//   - The code under test must not use the connection for more than one publish. If it
//     needs more, test it over TCP.
func (l *Link) BlockWrites(on bool) {
	l.mu.Lock()
	switch {
	case on && l.blocked == nil:
		l.blocked = make(chan struct{})
	case !on && l.blocked != nil:
		close(l.blocked)
		l.blocked = nil
	}
	conns := l.snapshot()
	l.mu.Unlock()
	for _, c := range conns {
		signal(c.readable)
	}
}

// Dials returns the number of connections requested so far, including refused
// ones.
func (l *Link) Dials() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dials
}

// Dial connects through the link. nats.go calls it. On a cut link the error matches
// syscall.ECONNREFUSED, and in a black hole it matches os.ErrDeadlineExceeded.
func (l *Link) Dial(network, address string) (net.Conn, error) {
	l.mu.Lock()
	l.dials++
	err := l.refuses()
	l.mu.Unlock()
	if err != nil {
		// Fail immediately, even in a black hole, because nats.go holds its mutex while
		// it dials.
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	inner, err := l.dial(network, address)
	if err != nil {
		return nil, err
	}
	c := &linkConn{
		link:     l,
		inner:    inner,
		done:     make(chan struct{}),
		dead:     make(chan struct{}),
		readable: make(chan struct{}, 1),
		room:     make(chan struct{}, 1),
		writing:  make(chan struct{}, 1),
		readBy:   makeDeadline(),
		writeBy:  makeDeadline(),
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.refuses(); err != nil { // the link may have changed during the dial
		inner.Close()
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	l.conns[c] = struct{}{}
	l.wg.Go(c.pump)
	return c, nil
}

// refuses returns why no connection can be made, or nil if one can. l.mu must be held.
func (l *Link) refuses() error {
	switch {
	case l.cut, l.closed:
		return syscall.ECONNREFUSED
	case l.hole:
		return os.ErrDeadlineExceeded
	}
	return nil
}

// snapshot returns the connections. l.mu must be held.
func (l *Link) snapshot() []*linkConn {
	conns := make([]*linkConn, 0, len(l.conns))
	for c := range l.conns {
		conns = append(conns, c)
	}
	return conns
}

// close closes the link for good and waits for its goroutines.
func (l *Link) close() {
	l.mu.Lock()
	l.closed = true
	conns := l.snapshot()
	l.mu.Unlock()
	for _, c := range conns {
		c.reset()
	}
	l.wg.Wait()
}
