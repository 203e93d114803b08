package proxy

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Narrow is a TCP proxy for a server. It limits the rate of its clients' publishes, and
// preserves the order of everything that a client sends. It buffers whatever has to wait,
// without limit. Whatever the server sends passes immediately.
type Narrow struct {
	listener net.Listener
	target   string
	wg       sync.WaitGroup

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	closed bool
	pause  time.Duration // between two publishes; 0 for none
	next   time.Time     // when the next publish may pass
	passed int
}

// behind is how far a proxy may fall behind its rate and still catch up.
const behind = 20 * time.Millisecond

// NewNarrow returns a proxy for the server at url. The proxy initially passes everything, and
// closes when the test ends.
func NewNarrow(t testing.TB, url string) *Narrow {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &Narrow{listener: l, target: strings.TrimPrefix(url, "nats://"), conns: map[net.Conn]struct{}{}}
	n.wg.Go(n.accept)
	t.Cleanup(n.close)
	return n
}

// URL returns the URL for clients.
func (n *Narrow) URL() string { return "nats://" + n.listener.Addr().String() }

// Carry sets how many publishes pass per second; 0 means no limit.
func (n *Narrow) Carry(rate int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pause = 0
	if rate > 0 {
		n.pause = time.Second / time.Duration(rate)
	}
}

// Passed returns the number of publishes that have passed.
func (n *Narrow) Passed() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.passed
}

// turn counts a publish, and returns how long it has to wait.
func (n *Narrow) turn() time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.passed++
	if n.pause == 0 {
		return 0
	}
	now := time.Now()
	if earliest := now.Add(-behind); n.next.Before(earliest) {
		n.next = earliest
	}
	n.next = n.next.Add(n.pause)
	return n.next.Sub(now)
}

func (n *Narrow) close() {
	n.mu.Lock()
	n.closed = true
	n.mu.Unlock()
	_ = n.listener.Close()
	n.mu.Lock()
	for c := range n.conns {
		_ = c.Close()
	}
	n.mu.Unlock()
	n.wg.Wait()
}

func (n *Narrow) accept() {
	for {
		client, err := n.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", n.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		n.mu.Lock()
		n.conns[client], n.conns[server] = struct{}{}, struct{}{}
		closed := n.closed
		n.mu.Unlock()
		over := func() {
			_, _ = client.Close(), server.Close()
			n.mu.Lock()
			delete(n.conns, client)
			delete(n.conns, server)
			n.mu.Unlock()
		}
		if closed {
			over()
			return
		}
		waits := newQueue()
		n.wg.Go(func() {
			_, err := io.Copy(waits, client)
			waits.end(err)
		})
		n.wg.Go(func() {
			defer over()
			_ = n.narrow(server, bufio.NewReader(waits))
		})
		n.wg.Go(func() {
			defer over()
			_, _ = io.Copy(client, server)
			waits.end(nil)
		})
	}
}

// narrow passes on what a client sends.
func (n *Narrow) narrow(to io.Writer, from *bufio.Reader) error {
	w := bufio.NewWriter(to)
	for {
		if from.Buffered() == 0 {
			if err := w.Flush(); err != nil {
				return err
			}
		}
		line, err := from.ReadBytes('\n')
		if err != nil {
			return errors.Join(err, w.Flush())
		}
		size, err := payload(line)
		if err != nil {
			return err
		}
		if size > 0 {
			if wait := n.turn(); wait > 0 {
				if err := w.Flush(); err != nil {
					return err
				}
				time.Sleep(wait)
			}
		}
		if _, err := w.Write(line); err != nil {
			return err
		}
		if _, err := io.CopyN(w, from, size); err != nil {
			return err
		}
	}
}

// payload returns the number of bytes that follow a line of the NATS protocol, which is zero
// except after a publish.
func payload(line []byte) (int64, error) {
	words := bytes.Fields(line)
	if len(words) == 0 || (!bytes.EqualFold(words[0], []byte("PUB")) && !bytes.EqualFold(words[0], []byte("HPUB"))) {
		return 0, nil
	}
	size, err := strconv.ParseInt(string(words[len(words)-1]), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%q: %w", line, err)
	}
	return size + int64(len("\r\n")), nil
}

// queue is a pipe that buffers whatever is written to it.
type queue struct {
	mu    sync.Mutex
	more  sync.Cond
	bytes bytes.Buffer
	err   error
}

func newQueue() *queue {
	q := &queue{}
	q.more.L = &q.mu
	return q
}

func (q *queue) Write(b []byte) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.more.Signal()
	return q.bytes.Write(b)
}

func (q *queue) Read(b []byte) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.bytes.Len() == 0 {
		if q.err != nil {
			return 0, q.err
		}
		q.more.Wait()
	}
	return q.bytes.Read(b)
}

// end makes Read return an error that joins io.EOF and err once everything has been read.
func (q *queue) end(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err == nil {
		q.err = errors.Join(io.EOF, err)
	}
	q.more.Broadcast()
}
