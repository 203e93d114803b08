package testutil

import (
	"fmt"
	"math/rand/v2"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// clusterTimeout limits every wait for a cluster to agree on something. After a leader
// disappears without notice, an election takes 4 to 9 seconds, and a busy machine may
// need several elections.
const clusterTimeout = 60 * time.Second

// Cluster is a JetStream cluster that runs in the test's process and stops when the
// test ends. The test controls all traffic between its servers.
type Cluster struct {
	t       testing.TB
	servers []*Server
	gates   [][]*gate // gates[i][j] is the path from i to j, nil for i == j

	mu    sync.Mutex
	alone []bool // which servers are isolated
}

// RunCluster starts n servers, at least 2, with JetStream and routes between them on
// 127.0.0.1. It returns once the cluster can create streams, which means that the
// servers have elected a meta leader that knows all of them, and have caught up with
// it. This takes a few seconds. A failure ends the test.
//
// The servers are named n0, n1 and so on. Options apply to all of them.
func RunCluster(t testing.TB, n int, opts ...ServerOption) *Cluster {
	t.Helper()
	if n < 2 {
		t.Fatalf("testutil: a cluster needs at least 2 servers, not %d", n)
	}
	c := &Cluster{t: t, alone: make([]bool, n)}
	for i := range n {
		s := newServer(t, t, opts)
		name := fmt.Sprintf("n%d", i)
		if s.cfg.storeDir != "" {
			s.dir = filepath.Join(s.cfg.storeDir, name)
		}
		s.base = func(o *server.Options) { c.configure(o, i, name) }
		c.servers = append(c.servers, s)
	}
	c.gates = make([][]*gate, n)
	for i := range n {
		c.gates[i] = make([]*gate, n)
		for j := range n {
			if i == j {
				continue
			}
			g, err := newGate(c.servers[j].clusterAddr)
			if err != nil {
				t.Fatalf("testutil: %v", err)
			}
			c.gates[i][j] = g
		}
	}
	// This cleanup runs first and stops all servers simultaneously. If they were
	// stopped one after another, each would first try to transfer its leaderships.
	t.Cleanup(func() {
		var wg sync.WaitGroup
		for _, s := range c.servers {
			wg.Go(s.Stop)
		}
		wg.Wait()
		c.eachGate(func(_, _ int, g *gate) { g.end() })
	})

	var wg sync.WaitGroup
	errs := make([]error, n)
	for i, s := range c.servers {
		wg.Go(func() { errs[i] = s.start() })
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			t.Fatalf("testutil: start server n%d: %v", i, err)
		}
	}
	c.WaitReady()
	return c
}

// configure completes the options of server i.
func (c *Cluster) configure(o *server.Options, i int, name string) {
	o.ServerName = name
	o.Cluster.Name = "test"
	o.Cluster.Host, o.Cluster.Port = "127.0.0.1", server.RANDOM_PORT
	// Servers announce each other's addresses, but their traffic has to pass through
	// the gates. They therefore advertise a port on which nothing listens.
	o.Cluster.Advertise = "127.0.0.1:1"
	o.Routes = nil
	for _, g := range c.gates[i] {
		if g != nil {
			o.Routes = append(o.Routes, &url.URL{Scheme: "nats-route", Host: g.addr()})
		}
	}
}

// clusterAddr returns the address at which the running server accepts routes, or "" if
// there is none yet. s.Server() does not return a server that is still starting, so the
// gate waits until the start has finished.
func (s *Server) clusterAddr() string {
	if !s.Running() {
		return ""
	}
	if addr := s.Server().ClusterAddr(); addr != nil {
		return addr.String()
	}
	return ""
}

func (c *Cluster) eachGate(fn func(i, j int, g *gate)) {
	for i := range c.gates {
		for j, g := range c.gates[i] {
			if g != nil {
				fn(i, j, g)
			}
		}
	}
}

// Servers returns the cluster's servers, including stopped ones. The argument i of the
// other methods is an index into this slice.
func (c *Cluster) Servers() []*Server { return append([]*Server(nil), c.servers...) }

// URLs returns the comma-separated addresses of all servers, in random order.
func (c *Cluster) URLs() string {
	urls := make([]string, len(c.servers))
	for i, k := range rand.Perm(len(c.servers)) {
		urls[i] = c.servers[k].URL()
	}
	return strings.Join(urls, ",")
}

// Connect connects to any server in the cluster, as [Server.Connect] does to one. If
// that server fails, the connection moves to another.
func (c *Cluster) Connect(opts ...nats.Option) *nats.Conn {
	c.t.Helper()
	return connect(c.t, c.URLs(), nil, opts)
}

// ConnectTo connects only to server i. The connection waits for that server to come
// back, and stays with it when [Cluster.Isolate] cuts the server off.
func (c *Cluster) ConnectTo(i int, opts ...nats.Option) *nats.Conn {
	c.t.Helper()
	return connect(c.t, c.servers[i].URL(), nil, append([]nats.Option{nats.IgnoreDiscoveredServers()}, opts...))
}

// ConnectLink is [Cluster.Connect] through a [Link] in front of all servers.
func (c *Cluster) ConnectLink(opts ...nats.Option) (*nats.Conn, *Link) {
	c.t.Helper()
	l := NewLink()
	return connect(c.t, c.URLs(), l, opts), l
}

// WaitReady waits until the cluster is ready, and ends the test after a minute. In a
// ready cluster, all running servers that are not isolated are connected, forward
// JetStream requests to each other, have one meta leader that places streams on all of
// them, and have caught up with it. Without a majority of its servers, a cluster never
// becomes ready.
func (c *Cluster) WaitReady() {
	c.t.Helper()
	c.waitReady(true)
}

// waitReady is like WaitReady, but requires the leader to place streams only if placed
// is set. After an isolation, the leader learns about a server's resources from a
// report that is sent only every ten seconds.
func (c *Cluster) waitReady(placed bool) {
	c.t.Helper()
	const api = "$JS.API.STREAM.NAMES"
	c.wait(c.t, "the cluster to form", func() error {
		var up []*server.Server
		var names []string
		for i, s := range c.servers {
			if s.Running() && !c.isolated(i) {
				up = append(up, s.Server())
				names = append(names, s.Server().Name())
			}
		}
		var leader *server.Server
		for _, srv := range up {
			if srv.JetStreamIsLeader() {
				if leader != nil {
					return fmt.Errorf("%s and %s are both leaders", leader.Name(), srv.Name())
				}
				leader = srv
			}
			if n := srv.NumRemotes(); n < len(up)-1 {
				return fmt.Errorf("%s has routes to %d servers", srv.Name(), n)
			}
			// Servers exchange their subscriptions only after the routes are up. Until
			// then, a client's request does not reach the meta leader and gets no
			// response.
			if n := srv.SystemAccount().Interest(api); n < len(up) {
				return fmt.Errorf("%s sends JetStream requests to %d servers", srv.Name(), n)
			}
			if !srv.JetStreamIsCurrent() {
				return fmt.Errorf("%s has not caught up", srv.Name())
			}
		}
		if leader == nil {
			return fmt.Errorf("no meta leader among %v", names)
		}
		if !placed {
			return nil
		}
		known := make(map[string]bool)
		for _, p := range leader.JetStreamClusterPeers() {
			known[p] = true
		}
		for _, name := range names {
			if !known[name] {
				return fmt.Errorf("leader %s does not know %s", leader.Name(), name)
			}
		}
		return nil
	})
}

// wait polls until cond returns nil, and ends the test with cond's last error if that
// takes longer than clusterTimeout.
func (c *Cluster) wait(t testing.TB, what string, cond func() error) {
	t.Helper()
	end := time.Now().Add(clusterTimeout)
	for {
		err := cond()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("testutil: waited %v for %s: %v", clusterTimeout, what, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// StreamLeader returns the server that currently leads stream (in the default account),
// or nil if there is none. It returns an isolated server that still believes it leads
// only if no other server leads. The stream of a KV bucket is called KV_<bucket>.
func (c *Cluster) StreamLeader(stream string) *Server {
	var believes *Server
	for i, s := range c.servers {
		if s.Running() && s.Server().JetStreamIsStreamLeader(server.DEFAULT_GLOBAL_ACCOUNT, stream) {
			if !c.isolated(i) {
				return s
			}
			believes = s
		}
	}
	return believes
}

// Index returns the index of server s, or -1.
func (c *Cluster) Index(s *Server) int {
	for i, o := range c.servers {
		if o == s {
			return i
		}
	}
	return -1
}

// WaitStreamLeader waits until a running server that is not isolated leads stream, and
// returns that server. It ends the test after a minute. The leader may need a few more
// milliseconds before it responds to requests.
func (c *Cluster) WaitStreamLeader(t testing.TB, stream string) *Server {
	t.Helper()
	return c.waitLeaderOtherThan(t, stream, nil, nil)
}

// waitLeaderOtherThan waits for a leader other than old, calling nudge every few
// seconds while old still leads.
func (c *Cluster) waitLeaderOtherThan(t testing.TB, stream string, old *Server, nudge func()) *Server {
	t.Helper()
	var leader *Server
	last := time.Now()
	c.wait(t, "a leader of "+stream, func() error {
		leader = c.StreamLeader(stream)
		switch {
		case leader == nil || c.isolated(c.Index(leader)):
			return fmt.Errorf("there is no leader")
		case leader == old:
			if nudge != nil && time.Since(last) > 3*time.Second {
				nudge()
				last = time.Now()
			}
			return fmt.Errorf("the leader is still %s", leader.Server().Name())
		}
		return nil
	})
	return leader
}

// StepDown asks the leader of stream (in the default account) to step down, and waits
// until another server leads. If the same server is re-elected, StepDown asks again. It
// ends the test if this takes more than a minute or the request is refused.
func (c *Cluster) StepDown(t testing.TB, stream string) {
	t.Helper()
	old := c.WaitStreamLeader(t, stream)
	ask := func() {
		// Ask from inside the process, in the leader's own account. This does what the
		// API request does, but needs no connection, user or permission.
		if err := old.Server().JetStreamStepdownStream(server.DEFAULT_GLOBAL_ACCOUNT, stream); err != nil {
			t.Fatalf("testutil: step-down of %s: %v", stream, err)
		}
	}
	ask()
	c.waitLeaderOtherThan(t, stream, old, ask)
}

// StopServer stops server i gracefully: the server transfers its leaderships, so
// clients hardly notice. To simulate a crash, use [Cluster.Kill].
func (c *Cluster) StopServer(i int) { c.servers[i].Stop() }

// Kill stops server i without telling the others, as if its machine had died. It cuts
// the server's routes first, so its leaderships end by timeout, 4 to 9 seconds later.
// The data is kept, as after a graceful stop.
func (c *Cluster) Kill(i int) {
	c.Isolate(i)
	c.servers[i].Stop()
}

// Restart starts server i on its old port with its old data, after stopping it if it is
// running. It also ends the server's isolation, and waits like [Cluster.WaitReady].
func (c *Cluster) Restart(i int) {
	c.t.Helper()
	c.servers[i].Stop()
	c.setIsolated(i, false)
	c.servers[i].mustStart()
	c.WaitReady()
}

// Isolate cuts server i off from the other servers, but not from its clients, until
// [Cluster.Rejoin]. The server keeps running and, if it was leading, believes for a few
// seconds that it still does.
func (c *Cluster) Isolate(i int) { c.setIsolated(i, true) }

// Rejoin ends server i's isolation and waits until the servers are connected, have one
// meta leader and have caught up with it. This takes a second or two, because servers
// try to connect at that interval, or up to ten seconds if they have to elect a meta
// leader. Server i rejoins the streams that it is part of, but it may not be assigned
// new streams until ten seconds later: see [Cluster.WaitReady].
func (c *Cluster) Rejoin(i int) {
	c.t.Helper()
	c.setIsolated(i, false)
	c.waitReady(false)
}

// setIsolated shuts or opens the gates of server k. A gate to another isolated server
// stays shut.
func (c *Cluster) setIsolated(k int, alone bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.alone[k] = alone
	c.eachGate(func(i, j int, g *gate) { g.setShut(c.alone[i] || c.alone[j]) })
}

func (c *Cluster) isolated(i int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.alone[i]
}
