//go:build unix

package main_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	main "github.com/natslock/locks/cmd/lockctl"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/testutil"
)

// binary is the path of the lockctl executable under test.
var binary string

func TestMain(m *testing.M) { os.Exit(buildAndRun(m)) }

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "lockctl-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "lockctl")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
		return 1
	}
	// nohup ignores SIGHUP, and scripts ignore SIGINT in background jobs. The programs that the
	// tests start would inherit this, unless the parent handles the signals.
	for _, sig := range []os.Signal{syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT} {
		if signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
	// Runs inside this process must not find any contexts of the nats command, just like the
	// processes that the tests start.
	for _, name := range []string{"HOME", "XDG_CONFIG_HOME"} {
		if err := os.Setenv(name, dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	kit.MoreAtOnce()
	return m.Run()
}

// process is a running lockctl.
type process struct {
	t        *testing.T
	cmd      *exec.Cmd
	out, err *kit.Log
	done     chan struct{}
	args     string
	url      string // the server's URL, set only by tests that need it
}

// start starts lockctl against the server and kills it when the test ends.
func start(t *testing.T, s *testutil.Server, args ...string) *process {
	t.Helper()
	return startWith(t, s, "", nil, args...)
}

func startWith(t *testing.T, s *testutil.Server, stdin string, env []string, args ...string) *process {
	t.Helper()
	return startFrom(t, binary, s, stdin, env, args...)
}

// startFrom starts program in place of lockctl: a copy elsewhere, or something that executes it.
func startFrom(t *testing.T, program string, s *testutil.Server, stdin string, env []string, args ...string) *process {
	t.Helper()
	p := &process{t: t, out: &kit.Log{}, err: &kit.Log{}, done: make(chan struct{}), args: strings.Join(args, " ")}
	p.cmd = exec.Command(program, args...)
	p.cmd.Env = append(cleanEnv(), "HOME="+t.TempDir(), "XDG_CONFIG_HOME="+t.TempDir())
	if s != nil {
		p.cmd.Env = append(p.cmd.Env, "NATS_URL="+s.URL())
	}
	p.cmd.Env = append(p.cmd.Env, env...)
	p.cmd.Stdin = strings.NewReader(stdin)
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.err
	// If a bug leaves a process behind that still has our pipes, the test must fail rather than
	// hang.
	p.cmd.WaitDelay = 2 * time.Second
	// In a session of its own, the process cannot use the terminal of whoever runs the tests.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	require.NoError(t, p.cmd.Start())
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
		if t.Failed() && p.err.String() != "" {
			t.Logf("lockctl %s: %v\nstdout: %s\nstderr: %s", p.args, p.cmd.ProcessState, p.out, p.err)
		}
	})
	return p
}

// cleanEnv returns the environment without variables that configure a server.
func cleanEnv() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "NATS_") || strings.HasPrefix(v, "LOCKCTL_") || strings.HasPrefix(v, "XDG_")
	})
}

// wait waits for the process to exit and returns its exit code.
func (p *process) wait() int {
	p.t.Helper()
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(kit.Patience):
		p.t.Fatalf("lockctl %s does not end\nstderr: %s", p.args, p.err)
		return -1
	}
}

func (p *process) signal(sig os.Signal) { require.NoError(p.t, p.cmd.Process.Signal(sig)) }

// serve runs a server that has the bucket.
func serve(t *testing.T, opts ...testutil.ServerOption) *testutil.Server {
	t.Helper()
	s := testutil.RunServer(t, opts...)
	withBucket(t, s)
	return s
}

// withBucket creates the bucket. The flags say how to reach the server.
func withBucket(t *testing.T, s *testutil.Server, flags ...string) {
	t.Helper()
	code, _, errs := run(t, s, append(flags, "init", "-f")...)
	require.Zero(t, code, errs)
}

// run runs lockctl to completion, in this process unless the command needs its own.
func run(t *testing.T, s *testutil.Server, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	if !inside(args) {
		p := start(t, s, args...)
		code = p.wait()
		return code, p.out.String(), p.err.String()
	}
	var environ []string
	if s != nil {
		environ = append(environ, "NATS_URL="+s.URL())
	}
	var out, errs kit.Log
	code = main.Main(environ, strings.NewReader(""), &out, &errs, args...)
	return code, out.String(), errs.String()
}

// gaveUp runs a command that waits for a lock in vain. On a busy machine a short wait can end
// before the server has replied, which is not a conflict, so gaveUp then retries with a longer
// wait.
func gaveUp(t *testing.T, s *testutil.Server, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	for wait := 100 * time.Millisecond; wait < kit.Patience; wait *= 4 {
		code, stdout, stderr = run(t, s, slices.Insert(slices.Clone(args), 1, "--wait", wait.String())...)
		if code != 69 {
			break
		}
	}
	return code, stdout, stderr
}

// inside reports whether a command can run in the test's process because it uses no signals,
// terminal or child processes.
func inside(args []string) bool {
	if slices.Contains(args, "--watch") {
		return false
	}
	for _, arg := range args {
		switch arg {
		case "ls", "info", "partitions", "break", "init", "doctor", "perms", "check", "history", "acquire", "extend", "release":
			return true
		case "run", "elect", "demo", "server", "completion", "watch", "top":
			return false
		}
	}
	return false
}

// contents waits until the file has a complete line, and returns its contents.
func contents(t *testing.T, path string) string {
	t.Helper()
	var text string
	kit.Eventually(t, "a line in "+filepath.Base(path), func() bool {
		b, err := os.ReadFile(path)
		text = string(b)
		return err == nil && strings.HasSuffix(text, "\n")
	})
	return strings.TrimSpace(text)
}

// number waits until the file has a complete line, and returns the last number in it.
func number(t *testing.T, path string) int64 {
	t.Helper()
	all := strings.Fields(contents(t, path))
	n, err := strconv.ParseInt(all[len(all)-1], 10, 64)
	require.NoError(t, err)
	return n
}

// within checks how long something took, but only in the proof tier: other tiers have no wall-clock
// limits.
func within(t *testing.T, limit, took time.Duration, why ...any) {
	t.Helper()
	if tier.IsProof() {
		require.Less(t, took, limit, why...)
	}
}

// gone waits until a process has exited.
func gone(t *testing.T, pid int) {
	t.Helper()
	kit.Eventually(t, fmt.Sprintf("the end of process %d", pid), func() bool { return !running(pid) })
}

// running reports whether a process exists and is not a zombie. In a container there may be no
// process that reaps zombies.
func running(pid int) bool {
	if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return !errors.Is(err, os.ErrNotExist) // on other systems, trust the signal
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(rest, "Z")
}

// lock has those fields of the --json output that the tests read.
type lock struct {
	Kind        string
	Name        string
	Mode        string
	Holder      *holder
	Readers     []holder
	Permits     []holder
	Queue       []struct{}
	WriterWaits bool `json:"writer_waits"`
}

type holder struct {
	Token, Revision uint64
	ID              string
	PID             int
	Owner, Host     string
	Purpose         string
	Since           time.Time
	TTL             float64
	Expires         *time.Time
	Meta            map[string]string
	Broken          *struct{ By, Reason string }
	Idle            bool
}

func locks(t *testing.T, s *testutil.Server, args ...string) []lock {
	t.Helper()
	code, out, errs := run(t, s, append(args, "--json")...)
	require.Zero(t, code, errs)
	var ls []lock
	require.NoError(t, json.Unmarshal([]byte(out), &ls), out)
	return ls
}

// awaitQueue waits until n clients are queued for the lock.
func awaitQueue(t *testing.T, s *testutil.Server, name string, n int) {
	t.Helper()
	await(t, s, name, fmt.Sprintf("%d in the queue", n), func(l lock) bool { return len(l.Queue) == n })
}

// await waits until there is exactly one lock with the name and it satisfies cond, and returns it.
func await(t *testing.T, s *testutil.Server, name, what string, cond func(lock) bool) (l lock) {
	t.Helper()
	kit.Eventually(t, what+", of "+name, func() bool {
		ls := locks(t, s, "info", name)
		if len(ls) == 1 {
			l = ls[0]
		}
		return len(ls) == 1 && cond(l)
	})
	return l
}

// hold starts a command that holds a lock until it is killed. It returns once the lock is held,
// with the command's PID.
func hold(t *testing.T, s *testutil.Server, name string, flags ...string) (p *process, pid int) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "pid")
	args := append([]string{"run"}, flags...)
	p = start(t, s, append(args, name, "--", "sh", "-c", "echo $$ > "+file+"; exec sleep 600")...)
	return p, int(number(t, file))
}

func timeout(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), kit.Patience)
	t.Cleanup(cancel)
	return ctx
}

func uintString(n uint64) string { return strconv.FormatUint(n, 10) }

// pause suspends a process until the test ends or resumes it.
func pause(t *testing.T, p *process) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGSTOP), "it has ended")
	t.Cleanup(func() { _ = p.cmd.Process.Signal(syscall.SIGCONT) })
	// The threads run on until one of them has taken the signal, and in that moment a waiter can
	// still be granted a lock.
	var status syscall.WaitStatus
	_, err := syscall.Wait4(p.cmd.Process.Pid, &status, syscall.WUNTRACED, nil)
	for errors.Is(err, syscall.EINTR) {
		_, err = syscall.Wait4(p.cmd.Process.Pid, &status, syscall.WUNTRACED, nil)
	}
	require.NoError(t, err)
	require.True(t, status.Stopped(), "it has ended")
}
