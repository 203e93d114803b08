package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// childVar makes the test binary run as the exporter.
const childVar = "NATSLOCK_EXPORTER_CHILD"

// patience bounds each wait for an event, with plenty to spare.
const patience = time.Minute

func TestMain(m *testing.M) {
	if os.Getenv(childVar) != "" {
		os.Exit(mainCode(os.Args[1:]))
	}
	kit.LeakCheck(m)
}

// process is an exporter in its own process.
type process struct {
	t    testing.TB
	cmd  *exec.Cmd
	base string // the prefix of its URLs
	done chan struct{}

	mu   sync.Mutex
	log  strings.Builder
	more chan struct{} // closed when the log has grown
}

// launch starts an exporter on a free port, in its own environment. The exporter is stopped when
// the test ends.
func launch(t testing.TB, args ...string) *process {
	t.Helper()
	p := &process{t: t, done: make(chan struct{}), more: make(chan struct{})}
	p.cmd = exec.Command(os.Args[0], append([]string{"--listen=127.0.0.1:0", "--page=127.0.0.1:0"}, args...)...)
	p.cmd.Env = []string{childVar + "=1", "HOME=" + t.TempDir(), "XDG_CONFIG_HOME=" + t.TempDir(), "GOCOVERDIR=" + t.TempDir()}
	r, w, err := os.Pipe()
	require.NoError(t, err)
	p.cmd.Stderr = w
	require.NoError(t, p.cmd.Start())
	require.NoError(t, w.Close())
	go func() {
		defer close(p.done)
		lines := bufio.NewScanner(r)
		for lines.Scan() {
			p.mu.Lock()
			p.log.WriteString(lines.Text() + "\n")
			close(p.more)
			p.more = make(chan struct{})
			p.mu.Unlock()
		}
		_ = r.Close()
		_ = p.cmd.Wait()
	}()
	t.Cleanup(func() { p.stop() })
	return p
}

// stop ends the exporter as a service manager does and returns its exit code.
func (p *process) stop() int {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	return p.exit()
}

// exit waits for the exporter to exit and returns its exit code.
func (p *process) exit() int {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		_ = p.cmd.Process.Kill()
		p.t.Errorf("the exporter did not end:\n%s", p.text())
		<-p.done
	}
	return p.cmd.ProcessState.ExitCode()
}

func (p *process) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

// says waits until the log has n lines that contain text.
func (p *process) says(text string, n int) {
	p.t.Helper()
	limit := time.After(patience)
	for {
		p.mu.Lock()
		log, more := p.log.String(), p.more
		p.mu.Unlock()
		if strings.Count(log, text) >= n {
			return
		}
		select {
		case <-more:
		case <-p.done:
			require.Contains(p.t, p.text(), text, "the exporter has ended")
			return
		case <-limit:
			require.Fail(p.t, "waited in vain", "for %q in\n%s", text, log)
		}
	}
}

// follow launches an exporter and waits until it follows the bucket.
func follow(t testing.TB, s *testutil.Server, args ...string) *process {
	t.Helper()
	p := launch(t, append([]string{"--server=" + s.URL()}, args...)...)
	p.says("following the bucket", 1)
	return p
}

var serving = regexp.MustCompile(`url=(http://[^/]+)/metrics`)

var servingPage = regexp.MustCompile(`page=(http://\S+)`)

// page returns the URL of the page.
func (p *process) page() string {
	p.t.Helper()
	p.says("serving the page", 1)
	return servingPage.FindStringSubmatch(p.text())[1]
}

// holdMany makes holder hold n locks until the test ends.
func holdMany(t testing.TB, holder *natslock.Client, n int) {
	t.Helper()
	var held sync.Map
	var taking sync.WaitGroup
	for i := range 50 {
		taking.Go(func() {
			for n, all := i, n; n < all; n += 50 {
				lock, err := holder.Lock(context.WithoutCancel(t.Context()), fmt.Sprintf("held.%d.%d", n%100, n))
				if err != nil {
					t.Errorf("lock %d: %v", n, err)
				}
				held.Store(n, lock)
			}
		})
	}
	taking.Wait()
	t.Cleanup(held.Clear)
}

// cycle acquires and releases locks at the given rate per second until ctx ends. The returned
// function waits for the last cycle and returns the number of cycles.
func cycle(ctx context.Context, t testing.TB, s *testutil.Server, rate int) func() int {
	t.Helper()
	worker, _ := client(t, s)
	ctx, end := context.WithCancel(ctx)
	n := 0
	var working sync.WaitGroup
	working.Go(func() {
		pace := time.NewTicker(time.Second / time.Duration(rate))
		defer pace.Stop()
		for ; ctx.Err() == nil; n++ {
			err := worker.Do(t.Context(), fmt.Sprint("cycle.", n%64), func(context.Context, *natslock.Lock) error { return nil })
			if err != nil {
				t.Errorf("cycle %d: %v", n, err)
				return
			}
			select {
			case <-pace.C:
			case <-ctx.Done():
			}
		}
	})
	return func() int { end(); working.Wait(); return n }
}

// get requests a page.
func (p *process) get(path string) (status int, body string) {
	p.t.Helper()
	if p.base == "" {
		p.says("serving", 1)
		p.base = serving.FindStringSubmatch(p.text())[1]
	}
	answer, err := http.Get(p.base + path)
	require.NoError(p.t, err, p.text())
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(p.t, err)
	http.DefaultClient.CloseIdleConnections()
	return answer.StatusCode, string(text)
}

// shows waits until the metrics contain all lines, which are given without the bucket label.
func (p *process) shows(lines ...string) {
	p.t.Helper()
	var text string
	for limit := time.Now().Add(patience); time.Now().Before(limit); time.Sleep(10 * time.Millisecond) {
		_, text = p.get("/metrics")
		text = "\n" + strings.ReplaceAll(strings.ReplaceAll(text, `bucket="natslock",`, ""), `{bucket="natslock"}`, "")
		missing := false
		for _, line := range lines {
			missing = missing || !strings.Contains(text, "\n"+line+"\n")
		}
		if !missing {
			return
		}
	}
	require.Fail(p.t, "not shown", "%v\nin%s", lines, text)
}

// client returns a client on its own connection, which is closed when the test ends.
func client(t testing.TB, s *testutil.Server, opts ...natslock.Option) (*natslock.Client, *testutil.Link) {
	t.Helper()
	nc, link := s.ConnectLink()
	return clientOn(t, nc, opts...), link
}

func clientOn(t testing.TB, nc *nats.Conn, opts ...natslock.Option) *natslock.Client {
	t.Helper()
	c, err := natslock.New(t.Context(), nc, opts...)
	require.NoError(t, err)
	t.Cleanup(func() {
		ended, end := context.WithCancel(context.Background())
		end()
		_ = c.Close(ended)
	})
	return c
}

// hold acquires a lock that stays held until the test unlocks it or ends.
func hold(t testing.TB, c *natslock.Client, name string, opts ...natslock.LockOption) *natslock.Lock {
	t.Helper()
	l, err := c.Lock(context.WithoutCancel(t.Context()), name, append([]natslock.LockOption{natslock.MaxWait(patience)}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() { runtime.KeepAlive(l) })
	return l
}

// later acquires a lock in a new goroutine.
func later(t testing.TB, c *natslock.Client, name string) <-chan *natslock.Lock {
	got := make(chan *natslock.Lock, 1)
	go func() {
		l, _ := c.Lock(context.WithoutCancel(t.Context()), name, natslock.MaxWait(patience))
		got <- l
	}()
	return got
}

// hostName returns this machine's name, which a client appends to an owner that lacks it.
func hostName() string {
	name, _ := os.Hostname()
	return name
}

func unlock(t testing.TB, l *natslock.Lock) {
	t.Helper()
	require.NotNil(t, l)
	require.NoError(t, l.Unlock(context.Background()))
}
