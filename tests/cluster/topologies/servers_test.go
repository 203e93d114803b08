package topologies_test

import (
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/testutil"
)

func TestMain(m *testing.M) {
	// The tests mostly wait, so run many in parallel regardless of the number of cores.
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}
	kit.LeakCheck(m)
}

const documents = "../../../docs/operate/topologies"

// host is a machine with the server that a documented file configures.
type host struct {
	name string // the machine's name in the files
	file string
	edit func(string) string // removes lines, as if they had been forgotten; may be nil
}

var (
	listen = regexp.MustCompile(`0\.0\.0\.0:(\d+)`)
	reach  = regexp.MustCompile(`([a-z0-9]+)\.example\.net:\d+`)
)

// start starts the servers of a topology as their files say, except for the addresses and the
// location of the data.
func start(t *testing.T, slow time.Duration, hosts ...host) []*testutil.Server {
	t.Helper()
	texts := make([]string, len(hosts))
	own := map[string]string{} // where each host listens
	ways := map[string]string{}
	for i, h := range hosts {
		text, err := os.ReadFile(filepath.Join(documents, h.file))
		require.NoError(t, err)
		if h.edit != nil {
			edited := h.edit(string(text))
			require.NotEqual(t, string(text), edited)
			text = []byte(edited)
		}
		texts[i] = listen.ReplaceAllStringFunc(string(text), func(s string) string {
			_, port, _ := strings.Cut(s, ":")
			addr := fmt.Sprintf("127.0.0.1:%d", kit.FreePort(t))
			own[h.name+".example.net:"+port] = addr
			return addr
		})
	}
	for name, addr := range own {
		ways[name] = addr
		if slow > 0 {
			ways[name] = slowProxy(t, addr, slow)
		}
	}
	var servers []*testutil.Server
	for i, h := range hosts {
		text := reach.ReplaceAllStringFunc(texts[i], func(s string) string {
			if strings.HasPrefix(s, h.name+".") {
				return own[s] // a route to itself must have an address as well
			}
			require.Contains(t, ways, s, "%s reaches for a host that is none", h.file)
			return ways[s]
		})
		opts := []testutil.ServerOption{testutil.WithConfigText(text)}
		if !strings.Contains(text, "jetstream") {
			opts = append(opts, testutil.WithoutJetStream())
		}
		servers = append(servers, testutil.RunServer(t, opts...))
	}
	// Stop all servers at once. One after another, each would first hand over its leaderships.
	t.Cleanup(func() {
		var wg sync.WaitGroup
		for _, s := range servers {
			wg.Go(s.Stop)
		}
		wg.Wait()
	})
	return servers
}

// formed waits until the servers have a meta leader that knows all of them.
func formed(t *testing.T, servers []*testutil.Server) {
	t.Helper()
	kit.Eventually(t, "the servers have a leader", func() bool {
		for _, s := range servers {
			if s.Server().JetStreamIsLeader() {
				return len(s.Server().JetStreamClusterPeers()) == len(servers)
			}
		}
		return false
	})
	for _, s := range servers {
		kit.Eventually(t, "the servers have caught up", s.Server().JetStreamIsCurrent)
	}
}

// slowProxy forwards bytes to target with a delay of d.
func slowProxy(t *testing.T, target string, d time.Duration) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var wg sync.WaitGroup
	var mu sync.Mutex
	conns := map[net.Conn]struct{}{}
	ended := false
	keep := func(c net.Conn) bool {
		mu.Lock()
		defer mu.Unlock()
		conns[c] = struct{}{}
		if ended {
			c.Close()
		}
		return !ended
	}
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		ended = true
		for c := range conns {
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	wg.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			if !keep(near) {
				continue
			}
			wg.Go(func() {
				far, err := net.Dial("tcp", target)
				if err != nil || !keep(far) {
					near.Close()
					return
				}
				wg.Go(func() { delayed(far, near, d) })
				delayed(near, far, d)
			})
		}
	})
	return l.Addr().String()
}

// delayed copies from one connection to the other until either ends.
func delayed(to, from net.Conn, d time.Duration) {
	type chunk struct {
		due  time.Time
		data []byte
	}
	chunks := make(chan chunk, 1<<14)
	go func() {
		defer close(chunks)
		for {
			buf := make([]byte, 32<<10)
			n, err := from.Read(buf)
			if n > 0 {
				chunks <- chunk{time.Now().Add(d), buf[:n]}
			}
			if err != nil {
				return
			}
		}
	}()
	for c := range chunks {
		time.Sleep(time.Until(c.due))
		if _, err := to.Write(c.data); err != nil {
			break
		}
	}
	to.Close()
	from.Close()
	for range chunks { // lets the reader finish
	}
}
