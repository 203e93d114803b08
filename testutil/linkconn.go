package testutil

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// inboundLimit limits how many bytes from the server a link buffers for a client that
// does not read. The rest waits at the server, as with a socket.
const inboundLimit = 4 << 20

// linkConn is the client's end of one connection through a link.
//
// The goroutine pump keeps reading what the server sends into a buffer. Writes go
// straight to the server, unless the link is a black hole or earlier bytes have yet to
// be written. If the client closes a connection in a black hole, the server's end stays
// open until the client's bytes have arrived.
type linkConn struct {
	link  *Link
	inner net.Conn

	done     chan struct{} // closed when the connection is over for the client
	dead     chan struct{} // closed when it is over for the server too
	readable chan struct{} // signaled when something changes for Read
	room     chan struct{} // signaled when something changes for pump
	writing  chan struct{} // a token held by the goroutine that writes to inner
	readBy   deadline
	writeBy  deadline

	// Guarded by link.mu:
	in      []byte // from the server, not read yet
	inErr   error  // why no more bytes will arrive
	out     []byte // to the server, held back
	closing bool   // closed by the client, or reset
	wasCut  bool
	gone    bool // dead is closed
}

var errLinkCut = fmt.Errorf("link cut by the test: %w", syscall.ECONNRESET)

func (c *linkConn) pump() {
	buf := make([]byte, 32<<10)
	for {
		n, err := c.inner.Read(buf)
		c.link.mu.Lock()
		if !c.closing {
			c.in = append(c.in, buf[:n]...)
			c.inErr = err
		}
		full := len(c.in) >= inboundLimit && !c.link.hole && !c.closing
		c.link.mu.Unlock()
		signal(c.readable)
		if err != nil {
			return
		}
		for full {
			select {
			case <-c.room:
			case <-c.dead:
				return
			}
			c.link.mu.Lock()
			full = len(c.in) >= inboundLimit && !c.link.hole && !c.closing
			c.link.mu.Unlock()
		}
	}
}

// Read returns bytes from the server. It waits while the link is a black hole or, in a
// bubble, while writes are blocked. If a read deadline is set, Read does not wait but
// fails immediately as if the deadline had passed, because nats.go sets one while it
// sets up a connection and holds its mutex.
func (c *linkConn) Read(b []byte) (int, error) {
	for {
		c.link.mu.Lock()
		switch {
		case c.wasCut:
			c.link.mu.Unlock()
			return 0, errLinkCut
		case c.closing:
			c.link.mu.Unlock()
			return 0, net.ErrClosed
		case c.link.hole, c.link.bubble && c.link.blocked != nil:
			if c.readBy.isSet() {
				c.link.mu.Unlock()
				return 0, os.ErrDeadlineExceeded
			}
		case len(c.in) > 0:
			n := copy(b, c.in)
			if c.in = c.in[n:]; len(c.in) == 0 {
				c.in = nil
			}
			c.link.mu.Unlock()
			signal(c.room)
			return n, nil
		case c.inErr != nil:
			err := c.inErr
			c.link.mu.Unlock()
			return 0, err
		}
		c.link.mu.Unlock()
		select {
		case <-c.readable:
		case <-c.done:
		case <-c.readBy.passed():
			return 0, os.ErrDeadlineExceeded
		}
	}
}

func (c *linkConn) Write(b []byte) (int, error) {
	select {
	case c.writing <- struct{}{}:
	case <-c.done:
		return 0, c.closedErr()
	case <-c.writeBy.passed():
		return 0, os.ErrDeadlineExceeded
	}
	defer func() { <-c.writing }()
	for {
		c.link.mu.Lock()
		blocked := c.link.blocked
		if blocked == nil || c.closing {
			break
		}
		c.link.mu.Unlock()
		select {
		case <-blocked:
		case <-c.done:
			return 0, c.closedErr()
		case <-c.writeBy.passed():
			return 0, os.ErrDeadlineExceeded
		}
	}
	if c.closing {
		c.link.mu.Unlock()
		return 0, c.closedErr()
	}
	if c.link.hole || len(c.out) > 0 {
		c.out = append(c.out, b...)
		c.link.mu.Unlock()
		return len(b), nil
	}
	c.link.mu.Unlock()
	n, err := c.inner.Write(b)
	if errors.Is(err, net.ErrClosed) {
		err = c.closedErr()
	}
	return n, err
}

// flush writes the bytes held back. Two calls may run concurrently, because the token
// keeps their writes in order.
func (c *linkConn) flush() {
	for {
		select {
		case c.writing <- struct{}{}:
		case <-c.dead:
			return
		}
		c.link.mu.Lock()
		if c.link.hole || c.gone {
			c.link.mu.Unlock()
			<-c.writing
			return
		}
		out, closing := c.out, c.closing
		c.out = nil
		c.link.mu.Unlock()
		var err error
		if len(out) > 0 {
			_, err = c.inner.Write(out)
		}
		<-c.writing
		if closing || err != nil {
			c.kill()
			return
		}
		if len(out) == 0 {
			return
		}
	}
}

// Close ends the connection for the client. Bytes held back by a black hole still reach
// the server when the black hole ends.
func (c *linkConn) Close() error {
	c.link.mu.Lock()
	first := !c.closing
	c.closing = true
	linger := c.link.hole || len(c.out) > 0
	c.link.mu.Unlock()
	if !first {
		return nil
	}
	close(c.done)
	c.readBy.set(time.Time{})
	c.writeBy.set(time.Time{})
	signal(c.room)
	if !linger {
		c.kill()
	}
	return nil
}

// reset ends the connection for both sides immediately. Buffered bytes are lost.
func (c *linkConn) reset() {
	c.link.mu.Lock()
	c.wasCut = true
	c.in, c.out = nil, nil
	c.link.mu.Unlock()
	c.Close()
	c.kill()
}

// kill closes the server's end of the connection.
func (c *linkConn) kill() {
	c.link.mu.Lock()
	first := !c.gone
	c.gone = true
	delete(c.link.conns, c)
	c.link.mu.Unlock()
	if first {
		close(c.dead)
		c.inner.Close()
	}
}

func (c *linkConn) closedErr() error {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	if c.wasCut {
		return errLinkCut
	}
	return net.ErrClosed
}

func (c *linkConn) LocalAddr() net.Addr  { return c.inner.LocalAddr() }
func (c *linkConn) RemoteAddr() net.Addr { return c.inner.RemoteAddr() }

func (c *linkConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func (c *linkConn) SetReadDeadline(t time.Time) error {
	// Not passed on to inner, because pump reads from it without a deadline.
	c.readBy.set(t)
	signal(c.readable)
	return nil
}

func (c *linkConn) SetWriteDeadline(t time.Time) error {
	c.writeBy.set(t)
	return c.inner.SetWriteDeadline(t)
}

// signal wakes the goroutine that waits on ch or, if there is none, the next one to
// wait.
func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// deadline is a time after which the channel from passed is closed.
type deadline struct {
	mu    sync.Mutex
	timer *time.Timer
	ch    chan struct{}
	on    bool
}

func makeDeadline() deadline { return deadline{ch: make(chan struct{})} }

func (d *deadline) passed() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ch
}

func (d *deadline) isSet() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.on
}

// set changes the deadline. The zero time means none. A goroutine that is already
// waiting on the channel from passed follows the new deadline unless the old one has
// passed.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil && !d.timer.Stop() {
		<-d.ch // its function is running or has run; wait for it, so that it cannot affect a later deadline
	}
	d.timer = nil
	d.on = !t.IsZero()
	select {
	case <-d.ch:
		d.ch = make(chan struct{})
	default:
	}
	if !d.on {
		return
	}
	ch := d.ch
	if left := time.Until(t); left > 0 {
		d.timer = time.AfterFunc(left, func() { close(ch) })
		return
	}
	close(ch)
}
