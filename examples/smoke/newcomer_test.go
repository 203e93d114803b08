//go:build unix

package smoke_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// TestNewcomer follows a reader who knows only the README and the guide down three paths: the first
// lock, shutting down on SIGTERM, and an outage.
func TestNewcomer(t *testing.T) {
	tier.Proof(t)
	t.Run("first lock", firstLock)
	t.Run("SIGTERM", orderedEnd)
	t.Run("outage", orderedOutage)
}

// firstLock pastes the Go block from the README into a new module, adds what the block leaves out,
// and runs two copies at once against a server started by "lockctl server".
func firstLock(t *testing.T) {
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	require.NoError(t, err)
	block := regexp.MustCompile("(?s)```go\n(func run.*?)```").FindSubmatch(readme)
	require.NotNil(t, block, "the README has no function run")

	dir := t.TempDir()
	sums, err := os.ReadFile(filepath.Join(root, "go.sum"))
	require.NoError(t, err)
	requires, err := os.ReadFile(filepath.Join(root, "go.mod"))
	require.NoError(t, err)
	mod := regexp.MustCompile(`(?m)^module .*$`).ReplaceAllString(string(requires), "module example.com/first")
	mod += fmt.Sprintf("\nrequire github.com/natslock/locks v0.0.0\nreplace github.com/natslock/locks => %s\n", root)
	program := `package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/natslock/locks/natslock"
)

func main() {
	if err := run(context.Background(), os.Getenv("NATS_URL")); err != nil {
		log.Fatal(err)
	}
}

func makeReport(_ context.Context, token uint64) error {
	_, err := fmt.Println("report with token", token)
	return err
}

` + string(block[1])
	for name, text := range map[string]string{"go.mod": mod, "go.sum": string(sums), "main.go": program} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	build := exec.Command("go", "build", "-mod=mod", "-o", filepath.Join(dir, "first"), ".")
	build.Dir, build.Env = dir, append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	out, err = exec.Command("go", "build", "-o", dir, "../../cmd/lockctl").CombinedOutput()
	require.NoError(t, err, "%s", out)

	server := startCommand(t, exec.Command(filepath.Join(dir, "lockctl"), "server", "--port", "0", "--dir", filepath.Join(dir, "store")))
	url := server.await(`nats://\S+`)[0]
	var both []*process
	for range 2 {
		first := exec.Command(filepath.Join(dir, "first"))
		first.Env = append(os.Environ(), "NATS_URL="+url)
		both = append(both, startCommand(t, first))
	}
	for _, p := range both {
		p.mustEnd()
		require.Len(t, p.find(`report with token \d+`), 1)
	}
	require.NotEqual(t, both[0].out.String(), both[1].out.String())
	server.terminate()
}

// order starts a replica of the service and returns the address it serves on.
func order(t *testing.T, url string) (*process, string) {
	t.Helper()
	cmd := exec.Command(filepath.Join(binaries, "orders"))
	cmd.Env = append(os.Environ(), "NATS_URL="+url, "LISTEN=127.0.0.1:0")
	p := startCommand(t, cmd)
	return p, p.await(`serving (http://\S+)`)[1]
}

// status returns the status code of the response to a request.
func status(t *testing.T, method, url string) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	require.NoError(t, err)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Logf("%s %s: %v", method, url, err)
		return 0
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode
}

// orderedEnd checks that after SIGTERM a replica finishes its current request and exits without an
// error, and that the next replica gets the order immediately rather than after the TTL.
func orderedEnd(t *testing.T) { orders(t, testutil.RunServer(t)) }

func orders(t *testing.T, s *testutil.Server) {
	a, first := order(t, s.URL())
	_, second := order(t, s.URL())
	require.Equal(t, http.StatusOK, status(t, http.MethodGet, first+"/readyz"))

	paid := make(chan int, 1)
	go func() { paid <- status(t, http.MethodPost, first+"/orders/7/pay") }()
	a.await(`paying order 7`)
	require.NoError(t, a.cmd.Process.Signal(syscall.SIGTERM))
	a.await(`shutting down`)
	begin := time.Now()
	require.Equal(t, http.StatusOK, status(t, http.MethodPost, second+"/orders/7/pay"))
	require.Less(t, time.Since(begin), 10*time.Second, "the TTL is 15 s")
	require.Equal(t, http.StatusOK, <-paid)
	a.mustEnd()
	require.Zero(t, status(t, http.MethodGet, first+"/livez"))

	// A request gets a 423 if someone else holds the order for longer than the request is willing to
	// wait.
	locks, err := natslock.New(t.Context(), s.Connect())
	require.NoError(t, err)
	l, err := locks.Lock(t.Context(), "orders.8")
	require.NoError(t, err)
	require.Equal(t, http.StatusLocked, status(t, http.MethodPost, second+"/orders/8/pay"))
	require.NoError(t, l.Unlock(t.Context()))
	require.NoError(t, locks.Close(t.Context()))
}

// orderedOutage checks that while the server is down, requests get a 503 and the replica is alive
// but not ready, and that it recovers without a restart.
func orderedOutage(t *testing.T) {
	s := testutil.RunServer(t)
	p, url := order(t, s.URL())
	require.Equal(t, http.StatusOK, status(t, http.MethodPost, url+"/orders/7/pay"))
	s.Stop()
	require.Equal(t, http.StatusServiceUnavailable, status(t, http.MethodPost, url+"/orders/7/pay"))
	require.Equal(t, http.StatusServiceUnavailable, status(t, http.MethodGet, url+"/readyz"))
	require.Equal(t, http.StatusOK, status(t, http.MethodGet, url+"/livez"))
	s.Restart()
	require.Eventually(t, func() bool { return status(t, http.MethodGet, url+"/readyz") == http.StatusOK }, patience, 50*time.Millisecond)
	require.Equal(t, http.StatusOK, status(t, http.MethodPost, url+"/orders/7/pay"))
	p.terminate()
}

// exports runs three processes that share two permits, and checks that SIGTERM lets each running
// export finish.
func exports(t *testing.T, s *testutil.Server) {
	var all []*process
	for range 3 {
		all = append(all, start(t, s, "exports"))
	}
	all[0].await(`finished export 2`)
	s.Stop()
	s.Restart() // they go on after an outage
	all[0].await(fmt.Sprintf(`starting export %d`, 3+len(all[0].find(`starting export`))))
	for _, p := range all {
		p.terminate()
		require.Len(t, p.find(`finished export`), len(p.find(`starting export`)))
	}
	permits := map[string]bool{}
	for _, p := range all {
		for _, m := range p.find(`with permit (\d+)`) {
			permits[m[1]] = true
		}
	}
	require.Equal(t, map[string]bool{"0": true, "1": true}, permits)
}

// cache runs two processes that rewrite and read the same file, and checks that neither reads a
// half-written file.
func cache(t *testing.T, s *testutil.Server) {
	file := filepath.Join(t.TempDir(), "index")
	a, b := start(t, s, "cache", "-file", file, "-age", "300ms"), start(t, s, "cache", "-file", file, "-age", "300ms")
	a.await(`(?s)(writing, token .*){3}`)
	b.await(`writing, token`)
	s.Stop()
	s.Restart() // they go on after an outage
	a.await(fmt.Sprintf(`(?s)(writing, token .*){%d}`, 3+len(a.find(`writing, token`))))
	a.terminate()
	b.terminate()
	for _, p := range []*process{a, b} {
		require.NotContains(t, p.out.String(), "parsing time", "a read met a write")
	}
}

// worker checks that two workers run the jobs of a customer one at a time, that a worker finishes
// its current job after SIGTERM, and that no job is left over.
func worker(t *testing.T, s *testutil.Server) {
	a, b := start(t, s, "worker"), start(t, s, "worker")
	nc := s.Connect()
	require.Eventually(t, func() bool {
		_, err := nc.Request("jobs.alice", []byte("job 0"), time.Second)
		return err == nil
	}, patience, 50*time.Millisecond)
	for i := range 4 {
		_, err := nc.Request("jobs.alice", fmt.Appendf(nil, "job %d", i+1), patience)
		require.NoError(t, err)
	}
	a.await(`starting job`)
	a.terminate()
	b.await(`(?s)finished job.*finished job`)
	said := func() string { return a.out.String() + b.out.String() }
	require.Eventually(t, func() bool {
		for i := range 5 {
			if !strings.Contains(said(), fmt.Sprintf("finished job %d", i)) {
				return false
			}
		}
		return true
	}, 2*patience, 50*time.Millisecond)
	b.terminate()
	for _, p := range []*process{a, b} {
		require.Len(t, p.find(`finished`), len(p.find(`starting job`)))
	}
}
