//go:build unix

package main_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/testutil"
)

// aHandle is well formed, and of no lock.
const aHandle = "natslock-handle-1:mutex:x:244ZE2GGPYRAYNQN3QQRZTACUM:2200133660454592:60"

// handed is what acquire --json and extend --json print.
type handed struct {
	Handle, Kind, Name string
	Token              uint64
	TTL                float64
	Since, Expires     time.Time
}

// word runs a command that prints a handle.
func word(t *testing.T, s *testutil.Server, args ...string) string {
	t.Helper()
	code, out, errs := run(t, s, args...)
	require.Zero(t, code, errs)
	require.Empty(t, errs)
	require.Regexp(t, `^natslock-handle-1:\S+\n$`, out)
	return strings.TrimSpace(out)
}

// refused runs a command that has a bad handle.
func refused(t *testing.T, s *testutil.Server, code int, says, command, handle string) {
	t.Helper()
	got, out, errs := run(t, s, command, handle)
	require.Equal(t, code, got, errs)
	require.Empty(t, out)
	require.Contains(t, errs, says)
}

const (
	usedUp   = "was used before: use the handle that the last"
	notTaken = "is not taken by this handle any more, and "
)

// A lock goes through the commands of a script, each in a process of its own, with its token
// and its metadata. Nobody else gets it before the release, and each handle is good once.
func TestAcquire(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"mutex", "rw"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := serve(t)
			flags, wait := []string{"acquire", "a b", "--meta", "k=v"}, []string{"run", "a b"}
			if kind == "rw" {
				flags, wait = append(flags, "--write"), []string{"run", "--read", "a b"}
			}
			first := word(t, s, append(flags, "--ttl", "10m")...)
			l := locks(t, s, "info", "a b")[0]
			token := l.Holder.Token
			require.Equal(t, kind, l.Kind)
			require.True(t, l.Holder.HandedOver)
			require.Equal(t, 600.0, l.Holder.TTL)
			waiter := start(t, s, append(wait, "--", "sh", "-c", "echo $LOCK_TOKEN")...)
			awaitQueue(t, s, "a b", 1)

			second := word(t, s, "extend", first)
			refused(t, s, 1, usedUp, "extend", first)
			refused(t, s, 1, usedUp, "release", first)
			third := word(t, s, "extend", "--ttl", "1h", second)
			refused(t, s, 1, usedUp, "release", second)
			l = locks(t, s, "info", "a b")[0]
			require.Equal(t, token, l.Holder.Token)
			require.Equal(t, 3600.0, l.Holder.TTL)
			require.Equal(t, map[string]string{"k": "v"}, l.Holder.Meta)
			require.Empty(t, waiter.out.String(), "beside the script")
			code, out, errs := run(t, s, "release", third)
			require.Zero(t, code, errs)
			require.Empty(t, out+errs)
			require.Zero(t, waiter.wait())
			require.Greater(t, strings.TrimSpace(waiter.out.String()), uintString(token))
			for _, handle := range []string{first, second, third} {
				refused(t, s, 75, notTaken+"it is free now", "release", handle)
				refused(t, s, 75, notTaken, "extend", handle)
			}
		})
	}
}

// A lock that an operator breaks between two commands of a script is lost, and the next
// command says so.
func TestAcquireBroken(t *testing.T) {
	t.Parallel()
	s := serve(t)
	for _, command := range []string{"extend", "release"} {
		broken := word(t, s, "acquire", "x", "--ttl", "10m")
		code, _, errs := run(t, s, "break", "-f", "--reason", "it hangs", "x")
		require.Zero(t, code, errs)
		code, _, errs = run(t, s, command, broken)
		require.Equal(t, 75, code)
		require.Regexp(t, `it hangs|`+notTaken, errs, "the reason is kept for a second")
		require.Empty(t, locks(t, s, "ls"), "a break of what nobody holds frees it at once")

		taken := word(t, s, "acquire", "x", "--ttl", "10m")
		code, _, errs = run(t, s, "break", "-f", "x")
		require.Zero(t, code, errs)
		holder, _ := hold(t, s, "x")
		refused(t, s, 75, fmt.Sprintf("%d sh has it now (token ", holder.cmd.Process.Pid), command, taken)
		holder.signal(syscall.SIGTERM)
		holder.wait()
	}
}

// A lock that expires between two commands of a script is lost, and the next command says so.
func TestAcquireLost(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	s := serve(t)
	for _, command := range []string{"extend", "release"} {
		expired := word(t, s, "acquire", "x", "--ttl", "3s")
		code, out, errs := run(t, s, "run", "x", "--", "sh", "-c", "echo $LOCK_TOKEN")
		require.Zero(t, code, errs)
		require.Greater(t, strings.TrimSpace(out), strings.Split(expired, ":")[4], "a fencing token above that of the script")
		refused(t, s, 75, notTaken+"it is free now. Its TTL of 3s has passed", command, expired)

		taken := word(t, s, "acquire", "x", "--ttl", "3s")
		holder, _ := hold(t, s, "x")
		refused(t, s, 75, fmt.Sprintf("%d sh has it now (token ", holder.cmd.Process.Pid), command, taken)
		holder.signal(syscall.SIGTERM)
		holder.wait()
		read := word(t, s, "acquire", "--write", "x", "--ttl", "3s")
		reader, _ := hold(t, s, "x", "--read")
		refused(t, s, 75, "readers inside now", command, read)
		reader.signal(syscall.SIGTERM)
		reader.wait()
	}
}

// Scripts that want the same lock take turns.
func TestAcquireRace(t *testing.T) {
	t.Parallel()
	s := serve(t)
	dir := t.TempDir()
	inside := filepath.Join(dir, "inside")
	var scripts []*script
	const rounds = 5
	for range 2 {
		scripts = append(scripts, startScript(t, s, fmt.Sprintf(`set -e
			for i in %s; do
				H=$("$lockctl" acquire x --ttl 10m)
				mkdir %s
				H=$("$lockctl" extend "$H")
				rmdir %[2]s
				"$lockctl" release "$H"
				echo round >> %s
			done`, strings.Repeat("x ", rounds), inside, filepath.Join(dir, "rounds"))))
	}
	for _, p := range scripts {
		require.Zero(t, p.wait(), p.out)
	}
	b, err := os.ReadFile(filepath.Join(dir, "rounds"))
	require.NoError(t, err)
	require.Equal(t, 2*rounds, strings.Count(string(b), "round"))
	require.Empty(t, locks(t, s, "ls"))
}

// The lock of a script that was killed is free when its TTL has passed.
func TestAcquireKilled(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	s := serve(t)
	file := filepath.Join(t.TempDir(), "handle")
	asked := time.Now()
	p := startScript(t, s, `H=$("$lockctl" acquire x --ttl 3s) && echo "$H" > `+file+`; exec sleep 60`)
	handle := contents(t, file)
	require.NoError(t, p.cmd.Process.Kill())
	code, out, errs := run(t, s, "run", "x", "--", "sh", "-c", "echo $LOCK_TOKEN")
	require.Zero(t, code, errs)
	require.Greater(t, time.Since(asked), 3*time.Second, "before the TTL had passed")
	require.Greater(t, strings.TrimSpace(out), strings.Split(handle, ":")[4])
	refused(t, s, 75, notTaken, "release", handle)
}

// acquire waits, and gives up, as run does.
func TestAcquireWaits(t *testing.T) {
	t.Parallel()
	s := serve(t)
	handle := word(t, s, "acquire", "x")
	for _, c := range []struct {
		code int
		says string
		args []string
	}{
		{1, `lock "x" is held by`, []string{"-n", "x"}},
		{1, `lock "x" is held by`, []string{"-w", "0", "x"}},
		{99, "handed over and not adopted", []string{"-n", "-E", "99", "x"}},
		{64, "exclude each other", []string{"-n", "-w", "1", "x"}},
		{64, "not in 0 to 255", []string{"-E", "256", "x"}},
		{64, "invalid TTL", []string{"--ttl", "0s", "x"}},
		{64, "unknown flag --read", []string{"--read", "x"}},
		{64, "invalid lock name", []string{""}},
		{64, "expected", nil},
	} {
		code, out, errs := run(t, s, append([]string{"acquire"}, c.args...)...)
		require.Equal(t, c.code, code, "%q: %s", c.args, errs)
		require.Empty(t, out)
		require.Contains(t, errs, c.says, "%q", c.args)
	}
	code, out, errs := gaveUp(t, s, "acquire", "x")
	require.Equal(t, 1, code, errs)
	require.Empty(t, out)
	require.Contains(t, errs, "gave up after")
	p := start(t, s, "acquire", "x")
	awaitQueue(t, s, "x", 1)
	p.signal(syscall.SIGTERM)
	require.Equal(t, 128+15, p.wait())
	require.Empty(t, p.out.String())
	awaitQueue(t, s, "x", 0)
	p = start(t, s, "acquire", "--wait", "60", "x")
	awaitQueue(t, s, "x", 1)
	code, _, errs = run(t, s, "release", handle)
	require.Zero(t, code, errs)
	require.Zero(t, p.wait(), p.err)
	word(t, s, "extend", strings.TrimSpace(p.out.String()))
}

// Only handles are taken for handles, and the message says why one is missing.
func TestAcquireBadHandles(t *testing.T) {
	t.Parallel()
	s := serve(t)
	for _, command := range []string{"extend", "release"} {
		refused(t, s, 64, "the handle is empty: the command that was to print it has failed", command, "")
		refused(t, s, 64, `"jobs" is not the text of a handle`, command, "jobs")
		refused(t, s, 64, "cannot be read", command, aHandle+"x")
		refused(t, s, 64, `"\x9b2J" is not UTF-8`, command, "\x9b2J")
		refused(t, s, 75, notTaken+"it is free now", command, aHandle)
	}
	code, _, errs := run(t, s, "extend", "--ttl", "0s", aHandle)
	require.Equal(t, 64, code)
	require.Contains(t, errs, "invalid TTL")
	for _, args := range [][]string{{"acquire", "x"}, {"extend", aHandle}, {"release", aHandle}} {
		code, _, errs := run(t, nil, append([]string{"--server", "nats://127.0.0.1:1"}, args...)...)
		require.Equal(t, 69, code, errs)
		require.Contains(t, errs, "no server at")
	}
}

// With --json the script learns the token and the end.
func TestAcquireJSON(t *testing.T) {
	t.Parallel()
	s := serve(t)
	began := time.Now()
	code, out, errs := run(t, s, "acquire", "a:b", "--ttl", "90s", "--json")
	require.Zero(t, code, errs)
	var first, second handed
	require.NoError(t, json.Unmarshal([]byte(out), &first))
	holder := locks(t, s, "info", "a:b")[0].Holder
	require.Equal(t, handed{first.Handle, "mutex", "a:b", holder.Token, 90, first.Since, first.Since.Add(90 * time.Second)}, first)
	require.WithinRange(t, first.Since, began, time.Now())
	require.False(t, holder.Expires.Before(first.Expires.Truncate(time.Second)), "the server frees it no sooner: %v", holder.Expires)
	code, out, errs = run(t, s, "extend", "--json", first.Handle)
	require.Zero(t, code, errs)
	require.NoError(t, json.Unmarshal([]byte(out), &second))
	require.NotEqual(t, first.Handle, second.Handle)
	require.Equal(t, first.Token, second.Token)
	require.True(t, second.Since.After(first.Since))

	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("no /dev/full: ", err)
	}
	defer full.Close()
	cmd := exec.Command(binary, "-s", s.URL(), "acquire", "y")
	cmd.Env = append(cleanEnv(), "XDG_CONFIG_HOME="+t.TempDir())
	cmd.Stdout, cmd.Stderr = full, &buffer{}
	require.Error(t, cmd.Run())
	require.Equal(t, 70, cmd.ProcessState.ExitCode())
	require.Contains(t, fmt.Sprint(cmd.Stderr), "cannot print the handle of lock y")
	require.Contains(t, fmt.Sprint(cmd.Stderr), "free when its TTL of 1m0s has passed")
}

// script is a shell that runs lockctl.
type script struct {
	t    *testing.T
	cmd  *exec.Cmd
	out  *buffer
	done chan struct{}
}

func startScript(t *testing.T, s *testutil.Server, text string) *script {
	t.Helper()
	p := &script{t: t, cmd: exec.Command("sh", "-c", text), out: &buffer{}, done: make(chan struct{})}
	p.cmd.Env = append(cleanEnv(), "XDG_CONFIG_HOME="+t.TempDir(), "NATS_URL="+s.URL(), "lockctl="+binary)
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	p.cmd.WaitDelay = 2 * time.Second
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	require.NoError(t, p.cmd.Start())
	go func() { defer close(p.done); _ = p.cmd.Wait() }()
	t.Cleanup(func() {
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		<-p.done
	})
	return p
}

// wait returns the exit code.
func (p *script) wait() int {
	p.t.Helper()
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(patience):
		p.t.Fatalf("the script does not end: %s", p.out)
		return -1
	}
}
