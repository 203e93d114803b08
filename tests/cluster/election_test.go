//go:build unix

package cluster_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/election"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/machine"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// candidates are the processes that run for an election, with their reports.
type candidates struct {
	t       *testing.T
	s       *testutil.Server
	reports chan termReport
	running map[string]*process
	proxies map[string]*proxy
	n       int
	kept    []termReport // reports that the test has not asked for yet
}

// add starts another candidate and returns once it campaigns.
func (c *candidates) add() {
	c.t.Helper()
	name := fmt.Sprint("candidate ", c.n)
	c.n++
	w := newProxy(c.t, strings.TrimPrefix(c.s.URL(), "nats://"))
	p := start(c.t, "candidate", candidateOrder{URL: "nats://" + w.listener.Addr().String(), TTL: processTTL, Name: name})
	c.running[name], c.proxies[name] = p, w
	go func() {
		for in := bufio.NewScanner(p.out); in.Scan(); {
			var r termReport
			if json.Unmarshal(in.Bytes(), &r) == nil {
				c.reports <- r
			}
		}
	}()
	c.next(name+" campaigns", func(r termReport) bool { return r.Name == name && r.Token == 0 })
}

// proxy connects a process to the server. The connection can be cut.
type proxy struct {
	listener net.Listener
	mu       sync.Mutex
	isCut    bool
	conns    []net.Conn
}

func newProxy(t *testing.T, server string) *proxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	w := &proxy{listener: l}
	var wg sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); w.cut(); wg.Wait() })
	wg.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			behind, err := net.Dial("tcp", server)
			if err != nil {
				_ = client.Close()
				continue
			}
			wg.Go(func() { _, _ = io.Copy(behind, client); _ = behind.Close() })
			wg.Go(func() { _, _ = io.Copy(client, behind); _ = client.Close() })
			w.mu.Lock()
			w.conns = append(w.conns, client, behind)
			isCut := w.isCut
			w.mu.Unlock()
			if isCut {
				w.cut()
			}
		}
	})
	return w
}

// cut closes all connections, including new ones until repair is called.
func (w *proxy) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.isCut = true
	for _, conn := range w.conns {
		_ = conn.Close()
	}
	w.conns = nil
}

func (w *proxy) repair() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.isCut = false
}

// begins returns the report of the next term that begins.
func (c *candidates) begins() termReport {
	c.t.Helper()
	return c.next("a term", func(r termReport) bool { return r.Token != 0 && r.Cause == "" })
}

// ends returns the report of the end of the term with this token.
func (c *candidates) ends(token uint64) termReport {
	c.t.Helper()
	return c.next("the end of a term", func(r termReport) bool { return r.Token == token && r.Cause != "" })
}

// next returns the first report that fits and keeps the others for later.
func (c *candidates) next(what string, fits func(termReport) bool) termReport {
	c.t.Helper()
	for i := 0; ; i++ {
		if i == len(c.kept) {
			c.kept = append(c.kept, kit.Receive(c.t, c.reports, what))
		}
		if r := c.kept[i]; fits(r) {
			c.kept = slices.Delete(c.kept, i, i+1)
			return r
		}
	}
}

// TestElectionProcesses has three processes run for an election. Leaders are killed, stopped for
// longer than their lease, cut off, deposed by hand, or resign. By their own clocks only one may
// lead at a time, another candidate must take over in time, and an observer must learn of it.
func TestElectionProcesses(t *testing.T) {
	tier.Proof(t)
	s := testutil.RunServer(t)
	watcher := kit.NewClient(t, s.Connect(), natslock.WithTTL(processTTL))
	e := election.New(watcher, "processes")
	c := &candidates{t: t, s: s, reports: make(chan termReport, 100), running: map[string]*process{}, proxies: map[string]*proxy{}}
	for range 3 {
		c.add()
	}
	late := machine.Lateness(t)
	nc := s.Connect()
	now := c.begins()
	seen := follow(t, e)
	knows(t, seen, now)
	var stopped *process
	for _, end := range []string{"killed", "resigned", "stopped", "resigned", "deleted", "cut off", "killed", "stopped"} {
		leader := c.running[now.Name]
		time.Sleep(processTTL / 2) // in the middle of its term
		begun, limit := time.Now(), processTTL+500*time.Millisecond
		switch end {
		case "killed":
			leader.kill()
			delete(c.running, now.Name)
		case "stopped":
			leader.signal(syscall.SIGSTOP)
			stopped = leader
		case "cut off":
			c.proxies[now.Name].cut()
		case "resigned":
			_, err := fmt.Fprintln(leader.in)
			require.NoError(t, err)
			limit = 500 * time.Millisecond
		case "deleted":
			m := nats.NewMsg("$KV.natslock.lock.processes")
			m.Header.Set("KV-Operation", "DEL")
			require.NoError(t, nc.PublishMsg(m))
			limit = 500 * time.Millisecond
		}
		next := c.begins()
		took := next.Begin.Sub(begun)
		limit += 3 * late() // the server, the candidate and this test may each be delayed once
		t.Logf("%s is %s, and %s leads %v later, of %v", now.Name, end, next.Name, took, limit)
		require.LessOrEqual(t, took, limit)
		require.NotEqual(t, now.Name, next.Name)
		require.Greater(t, next.Token, now.Token)
		knows(t, seen, next)
		c.proxies[now.Name].repair()
		if stopped != nil {
			stopped.signal(syscall.SIGCONT)
			stopped = nil
		}
		if end == "killed" {
			c.add()
		} else {
			over := c.ends(now.Token)
			t.Logf("%s led until %v before that: %s", over.Name, next.Begin.Sub(over.Checked), over.Cause)
			if end != "deleted" { // an operator deletes the record while it leads
				require.True(t, over.Checked.Before(next.Begin), "%v and %v", over, next)
			}
		}
		now = next
	}
	for _, p := range c.running {
		require.NoError(t, p.in.Close())
	}
}

// follow has an observer follow an election until the test ends.
func follow(t *testing.T, e *election.Election) <-chan election.Leader {
	ctx, cancel := context.WithCancel(context.Background())
	seen := make(chan election.Leader, 1000)
	var following sync.WaitGroup
	t.Cleanup(func() { cancel(); following.Wait() })
	following.Go(func() {
		for l, err := range e.Observe(ctx) {
			if !assert.NoError(t, err) {
				return
			}
			seen <- l
		}
	})
	return seen
}

// knows returns once the observer has seen the leader, which must happen within five seconds.
func knows(t *testing.T, seen <-chan election.Leader, leader termReport) {
	t.Helper()
	late := time.NewTimer(5 * time.Second)
	defer late.Stop()
	for {
		select {
		case l := <-seen:
			if l.Token == leader.Token {
				require.Equal(t, leader.Name, string(l.Value))
				require.Equal(t, leader.Name, l.Owner)
				return
			}
		case <-late.C:
			t.Fatalf("%v is not known to lead", leader)
		}
	}
}

// TestElectionCluster has candidates and observers on three servers. The stream's leader steps down
// and is killed while candidates resign. Only one candidate may lead at a time, tokens must rise,
// and the observers must learn of each leader.
func TestElectionCluster(t *testing.T) {
	tier.Proof(t)
	cl := runCluster(t)
	var mu sync.Mutex
	var terms []uint64
	leading := 0
	resign := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	var all []*election.Election
	for range 3 {
		e := election.New(kit.NewClient(t, cl.Connect(), r3, patient), "cluster")
		all = append(all, e)
		running.Go(func() {
			_ = e.Run(ctx, func(ctx context.Context, term *election.Term) error {
				mu.Lock()
				leading++
				assert.Equal(t, 1, leading)
				assert.True(t, len(terms) == 0 || terms[len(terms)-1] < term.Token(), "%v, %d", terms, term.Token())
				terms = append(terms, term.Token())
				mu.Unlock()
				select {
				case <-ctx.Done():
				case <-resign:
				}
				mu.Lock()
				leading--
				mu.Unlock()
				return nil
			})
		})
	}
	// leads returns the number of terms once the candidates and observers agree on the last one.
	leads := func(what string) (n int) {
		t.Helper()
		kit.Eventually(t, what, func() bool {
			mu.Lock()
			defer mu.Unlock()
			if n = len(terms); n == 0 || leading != 1 {
				return false
			}
			return slices.ContainsFunc(all, func(e *election.Election) bool {
				token, ok := e.IsLeader()
				return ok && token == terms[n-1]
			})
		})
		mu.Lock()
		token := terms[n-1]
		mu.Unlock()
		for _, e := range all {
			ctx, cancel := context.WithTimeout(t.Context(), kit.Patience)
			for l, err := range e.Observe(ctx) {
				require.NoError(t, err)
				if l.Token >= token {
					break
				}
			}
			require.NoError(t, ctx.Err(), what)
			cancel()
		}
		return n
	}
	n := leads("the first leader")
	resign <- struct{}{}
	kit.Eventually(t, "another leader", func() bool { return leads("a leader") > n })
	n = leads("a leader")
	cl.StepDown(t, kit.StreamName)
	resign <- struct{}{}
	kit.Eventually(t, "another leader", func() bool { return leads("a leader") > n })
	i := cl.Index(cl.WaitStreamLeader(t, kit.StreamName))
	n = leads("a leader")
	cl.Kill(i)
	resign <- struct{}{}
	kit.Eventually(t, "another leader", func() bool { return leads("a leader after a crash") > n })
	cl.Restart(i)
	leads("a leader after a restart")
}
