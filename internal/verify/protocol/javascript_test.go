package protocol_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// scripts copies examples/javascript and installs its dependencies. It skips the test if they are not available.
func scripts(t *testing.T) (dir string) {
	t.Helper()
	for _, tool := range []string{"node", "npm"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("the locker in JavaScript needs %s: %v", tool, err)
		}
	}
	if out, err := exec.CommandContext(t.Context(), "node", "-p", "process.versions.node.split('.')[0]").Output(); err != nil {
		t.Skipf("node does not run: %v", err)
	} else if major, _ := strconv.Atoi(string(bytes.TrimSpace(out))); major < 20 {
		t.Skipf("the locker in JavaScript needs node 20 or later, and this is %s", bytes.TrimSpace(out))
	}
	dir = t.TempDir()
	from := os.DirFS("../../../examples/javascript")
	for _, pattern := range []string{"*.js", "*.json", "test/*.js"} {
		names, err := filepath.Glob(filepath.Join("../../../examples/javascript", pattern))
		require.NoError(t, err)
		require.NotEmpty(t, names)
		for _, name := range names {
			rel, err := filepath.Rel("../../../examples/javascript", name)
			require.NoError(t, err)
			f, err := from.Open(filepath.ToSlash(rel))
			require.NoError(t, err)
			text, err := io.ReadAll(f)
			require.NoError(t, f.Close())
			require.NoError(t, err)
			require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, rel)), 0o755))
			require.NoError(t, os.WriteFile(filepath.Join(dir, rel), text, 0o600))
		}
	}
	install := exec.CommandContext(t.Context(), "npm", "ci", "--no-audit", "--no-fund", "--prefer-offline")
	install.Dir = dir
	if out, err := install.CombinedOutput(); err != nil {
		t.Skipf("npm ci: %v: %.300s", err, out)
	}
	return dir
}

// built builds a command of this repository.
func built(t *testing.T, command string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), filepath.Base(command))
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", path, "../../../"+command).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return path
}

// scripted is a locker process that reads and answers one line at a time.
type scripted struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.Writer
	lines chan line
}

// line is a line that the process prints.
type line struct {
	Result, Why, Event, Name string
	Token                    uint64
	Held                     bool
}

// startScript starts the JavaScript locker.
func startScript(t *testing.T, dir, url string, ttl int) *scripted {
	t.Helper()
	cmd := exec.Command("node", "locker.js")
	cmd.Dir = dir
	return start(t, cmd, url, ttl)
}

// startPlain starts the plain Go locker, whose leases outlast the test.
func startPlain(t *testing.T, s *testutil.Server) *scripted {
	t.Helper()
	return start(t, exec.Command(built(t, "internal/verify/locker"), "-plain"), s.URL(), 60000)
}

func start(t *testing.T, cmd *exec.Cmd, url string, ttl int) *scripted {
	t.Helper()
	p := &scripted{t: t, cmd: cmd, lines: make(chan line, 100)}
	p.cmd.Stderr, p.cmd.WaitDelay = os.Stderr, time.Second
	var err error
	p.in, err = p.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	read := make(chan struct{})
	go func() {
		defer close(read)
		for s := bufio.NewScanner(out); s.Scan(); {
			var l line
			if json.Unmarshal(s.Bytes(), &l) == nil {
				p.lines <- l
			}
		}
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-read
		_ = p.cmd.Wait()
	})
	require.Equal(t, "ok", p.ask(map[string]any{"do": "open", "url": url, "bucket": "natslock", "ttl": ttl}).Result)
	return p
}

// ask sends a request and returns the reply. Calls to one process must not overlap.
func (p *scripted) ask(request map[string]any) line {
	text, _ := json.Marshal(request)
	if _, err := p.in.Write(append(text, '\n')); err != nil {
		return line{Result: err.Error()}
	}
	select {
	case l := <-p.lines:
		return l
	case <-time.After(kit.Patience):
		return line{Result: "no answer"}
	}
}

// contend has clients of the library and programs take one lock in turn, 40 times each and for as long as something
// happens to the servers. Their turns never overlap, and tokens rise.
func contend(t *testing.T, clients []*natslock.Client, programs []*scripted, happens func()) {
	t.Helper()
	const each = 40
	var inside atomic.Int32
	var over atomic.Bool
	var mu sync.Mutex
	var tokens []uint64
	work := func(token uint64) {
		assert.EqualValues(t, 1, inside.Add(1), "two hold the lock")
		mu.Lock()
		tokens = append(tokens, token)
		mu.Unlock()
		runtime.Gosched()
		inside.Add(-1)
	}
	var wg sync.WaitGroup
	began := time.Now()
	for _, c := range clients {
		wg.Go(func() {
			for n := 0; n < each || !over.Load(); n++ {
				l, err := c.Lock(t.Context(), "counter", natslock.MaxWait(kit.Patience))
				if !assert.NoError(t, err) {
					return
				}
				work(l.Token())
				assert.NoError(t, l.Unlock(t.Context()))
			}
		})
	}
	for _, p := range programs {
		wg.Go(func() {
			for n := 0; n < each || !over.Load(); n++ {
				l := p.ask(map[string]any{"do": "lock", "name": "counter", "wait": kit.Patience.Milliseconds()})
				if !assert.Equal(t, "ok", l.Result, l.Why) {
					return
				}
				work(l.Token)
				l = p.ask(map[string]any{"do": "unlock", "name": "counter"})
				assert.Equal(t, "ok", l.Result, l.Why)
			}
		})
	}
	happens()
	over.Store(true)
	wg.Wait()
	require.GreaterOrEqual(t, len(tokens), each*(len(clients)+len(programs)))
	for i := range tokens[1:] {
		require.Greater(t, tokens[i+1], tokens[i])
	}
	t.Logf("%d grants to %d clients of the library and %d processes in %v", len(tokens), len(clients), len(programs), time.Since(began).Round(time.Millisecond))
}

// The JavaScript locker, which was written from the document alone, and clients of the library take one lock in
// turn. Their turns never overlap, nobody starves, and tokens rise. A locker that is killed is succeeded once its
// record has ended.
func TestJavaScript(t *testing.T) {
	tier.Proof(t)
	dir := scripts(t)

	t.Run("vectors", func(t *testing.T) {
		vectors, err := filepath.Abs("../../../docs/protocol/vectors.json")
		require.NoError(t, err)
		test := exec.CommandContext(t.Context(), "node", "--test", "test/")
		test.Dir, test.Env = dir, append(os.Environ(), "NATSLOCK_VECTORS="+vectors)
		out, err := test.CombinedOutput()
		require.NoError(t, err, "%s", out)
	})

	t.Run("counter", func(t *testing.T) {
		s := testutil.RunServer(t)
		contend(t, []*natslock.Client{client(t, s), client(t, s)}, []*scripted{startScript(t, dir, s.URL(), 2000), startScript(t, dir, s.URL(), 2000)}, func() {})
	})

	t.Run("replicas", func(t *testing.T) {
		cl := testutil.RunCluster(t, 3)
		clients, programs := []*natslock.Client{}, []*scripted{}
		for i := range 2 {
			// An election can outlast the 5 s after which Unlock reports by default that it is unconfirmed.
			c, err := natslock.New(t.Context(), cl.ConnectTo(i), natslock.WithTTL(time.Minute), natslock.WithReplicas(3),
				natslock.WithTuning(natslock.Tuning{ReleaseTimeout: kit.Patience}))
			require.NoError(t, err)
			t.Cleanup(func() { _ = c.Close(t.Context()) })
			clients = append(clients, c)
			programs = append(programs, startScript(t, dir, cl.URLs(), 30000))
		}
		contend(t, clients, programs, func() {
			cl.StepDown(t, "KV_natslock")
			cl.StepDown(t, "KV_natslock")
			i := cl.Index(cl.WaitStreamLeader(t, "KV_natslock"))
			cl.Kill(i)
			cl.WaitStreamLeader(t, "KV_natslock")
			cl.Restart(i)
		})
		l, err := clients[0].TryLock(t.Context(), "counter")
		require.NoError(t, err)
		require.Equal(t, "refused", programs[0].ask(map[string]any{"do": "try", "name": "counter"}).Result)
		require.NoError(t, l.Unlock(t.Context()))
		require.Equal(t, "ok", programs[0].ask(map[string]any{"do": "try", "name": "counter"}).Result)
		_, err = clients[1].TryLock(t.Context(), "counter")
		require.ErrorIs(t, err, natslock.ErrLocked)
	})

	t.Run("killed", func(t *testing.T) {
		s := testutil.RunServer(t)
		c, p := client(t, s), startScript(t, dir, s.URL(), 2000)
		held := p.ask(map[string]any{"do": "lock", "name": "x", "wait": 1000})
		require.Equal(t, "ok", held.Result, held.Why)
		_, err := c.TryLock(t.Context(), "x")
		require.ErrorIs(t, err, natslock.ErrLocked)
		require.NoError(t, p.cmd.Process.Kill())
		l, err := c.Lock(t.Context(), "x", natslock.MaxWait(kit.Patience))
		require.NoError(t, err)
		require.Greater(t, l.Token(), held.Token)
		refused := startScript(t, dir, s.URL(), 2000)
		require.Equal(t, "refused", refused.ask(map[string]any{"do": "try", "name": "x"}).Result)
		require.NoError(t, l.Unlock(t.Context()))
		require.Equal(t, "ok", refused.ask(map[string]any{"do": "try", "name": "x"}).Result)
	})

	t.Run("restart", func(t *testing.T) {
		s := testutil.RunServer(t)
		c, p := client(t, s), startScript(t, dir, s.URL(), 2000)
		held, err := c.Lock(t.Context(), "x")
		require.NoError(t, err)
		got := make(chan line, 1)
		go func() { got <- p.ask(map[string]any{"do": "lock", "name": "x", "wait": kit.Patience.Milliseconds()}) }()
		js, err := jetstream.New(s.Connect())
		require.NoError(t, err)
		kv, err := js.KeyValue(t.Context(), "natslock")
		require.NoError(t, err)
		places := func() int {
			keys, err := kv.ListKeysFiltered(t.Context(), "wait.x.*")
			if err != nil {
				return 0
			}
			n := 0
			for range keys.Keys() {
				n++
			}
			return n
		}
		kit.Eventually(t, "a place", func() bool { return places() == 1 })
		s.Restart()
		require.NoError(t, held.Unlock(t.Context()))
		l := kit.Receive(t, got, "the answer of the program")
		require.Equal(t, "ok", l.Result, l.Why)
		require.Greater(t, l.Token, held.Token())
	})

	t.Run("conform", func(t *testing.T) {
		judge := exec.CommandContext(t.Context(), built(t, "cmd/lockconform"), "--parallel", "4", "--", "node", "locker.js")
		judge.Dir = dir
		out, err := judge.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Regexp(t, `level 4: (\d+) of \d+ cases passed`, string(out))
	})

	t.Run("example", func(t *testing.T) {
		s := testutil.RunServer(t)
		run := exec.CommandContext(t.Context(), "node", "example.js")
		run.Dir, run.Env = dir, append(os.Environ(), "NATS_URL="+s.URL())
		out, err := run.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, run.Start())
		lines := bufio.NewScanner(out)
		require.True(t, lines.Scan())
		require.Contains(t, lines.Text(), "holds orders.42, token")
		require.NoError(t, run.Process.Signal(os.Interrupt))
		last := ""
		for lines.Scan() {
			last = lines.Text()
		}
		require.NoError(t, run.Wait())
		require.Equal(t, "released", last)
		l, err := client(t, s).TryLock(t.Context(), "orders.42") // the bucket that the example has created is fit
		require.NoError(t, err)
		require.NoError(t, l.Unlock(t.Context()))
	})
}
