package testutil

import (
	"io"
	"net"
	"sync"
	"time"
)

// gate is a TCP proxy for one server's routes to another server in the cluster,
// and can be shut. It keeps its address while the servers behind it stop and
// start, so routes need no fixed ports.
type gate struct {
	listener net.Listener
	target   func() string // the address behind the gate; empty if the server is not up

	mu    sync.Mutex
	shut  bool
	ended bool
	conns map[net.Conn]struct{}
	wg    sync.WaitGroup
}

func newGate(target func() string) (*gate, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	g := &gate{listener: l, target: target, conns: make(map[net.Conn]struct{})}
	g.wg.Go(g.accept)
	return g, nil
}

func (g *gate) addr() string { return g.listener.Addr().String() }

func (g *gate) accept() {
	for {
		c, err := g.listener.Accept()
		if err != nil {
			return
		}
		if !g.add(c) {
			continue
		}
		g.wg.Go(func() {
			defer g.remove(c)
			g.pass(c)
		})
	}
}

// pass connects c to the target. It waits up to 5 s for the target while c is
// open, because a server retries a refused route only after a second.
func (g *gate) pass(c net.Conn) {
	var inner net.Conn
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if addr := g.target(); addr != "" {
			var err error
			if inner, err = net.DialTimeout("tcp", addr, time.Second); err == nil {
				break
			}
		}
		if !g.has(c) || time.Now().After(end) {
			return
		}
	}
	if !g.add(inner) {
		return
	}
	defer g.remove(inner)
	back := make(chan struct{})
	go func() {
		defer close(back)
		_, _ = io.Copy(c, inner)
		c.Close()
	}()
	_, _ = io.Copy(inner, c)
	inner.Close()
	<-back
}

// add records a connection, or closes it and returns false if the gate is shut.
func (g *gate) add(c net.Conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut || g.ended {
		c.Close()
		return false
	}
	g.conns[c] = struct{}{}
	return true
}

func (g *gate) has(c net.Conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, ok := g.conns[c]
	return ok
}

func (g *gate) remove(c net.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.conns, c)
	c.Close()
}

// setShut shuts the gate and closes its connections, or opens the gate.
func (g *gate) setShut(shut bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = shut
	if shut {
		g.closeAll()
	}
}

// closeAll closes the connections. g.mu must be held.
func (g *gate) closeAll() {
	for c := range g.conns {
		c.Close()
		delete(g.conns, c)
	}
}

// end closes the gate for good and waits for its goroutines.
func (g *gate) end() {
	g.listener.Close()
	g.mu.Lock()
	g.ended = true
	g.closeAll()
	g.mu.Unlock()
	g.wg.Wait()
}
