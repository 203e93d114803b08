//go:build unix

package main_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/machine"
	"github.com/natslock/locks/internal/verify/tier"
)

// TestRunHandsOver checks that two commands run one after the other, the second immediately after
// the first. The commands record the times themselves.
func TestRunHandsOver(t *testing.T) {
	t.Parallel()
	s := serve(t)
	dir := t.TempDir()
	end, begin := filepath.Join(dir, "end"), filepath.Join(dir, "begin")
	started, goOn := filepath.Join(dir, "started"), filepath.Join(dir, "go")

	const tries = 3 // a busy machine may be late once
	var gap time.Duration
	for range tries {
		for _, f := range []string{end, begin, started, goOn} {
			_ = os.Remove(f)
		}
		first := start(t, s, "run", "x", "--", "sh", "-c",
			"echo > "+started+"; while ! test -e "+goOn+"; do sleep 0.01; done; date +%s%N > "+end)
		contents(t, started)
		second := start(t, s, "run", "x", "--", "sh", "-c", "date +%s%N > "+begin)
		awaitQueue(t, s, "x", 1)
		require.NoFileExists(t, begin, "two inside")
		require.NoError(t, os.WriteFile(goOn, nil, 0o600))
		require.Zero(t, first.wait())
		require.Zero(t, second.wait())
		gap = time.Duration(number(t, begin) - number(t, end))
		require.Positive(t, gap)
		if gap < 100*time.Millisecond || !tier.IsProof() {
			return
		}
	}
	t.Fatalf("the second began %v after the end of the first", gap)
}

// TestRunKilled checks that when lockctl gets kill -9, its command and even its grandchildren die
// with it, and that the next command starts with a higher token once the lease expires.
func TestRunKilled(t *testing.T) {
	t.Parallel()
	s := serve(t)
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }

	first := start(t, s, "run", "--ttl", "5s", "x", "--", "sh", "-c",
		"echo $LOCK_TOKEN > "+file("token1")+"; sleep 60 & echo $! > "+file("grandchild")+"; echo $$ > "+file("child")+"; wait")
	child, grandchild := int(number(t, file("child"))), int(number(t, file("grandchild")))
	second := start(t, s, "run", "--ttl", "10m", "x", "--", "sh", "-c", "echo $LOCK_TOKEN > "+file("token2")+"; exec sleep 60")
	awaitQueue(t, s, "x", 1)

	late := machine.Lateness(t)
	killed := time.Now()
	first.signal(syscall.SIGKILL)
	gone(t, child)
	gone(t, grandchild)
	t.Run("the end of the lease", func(t *testing.T) {
		tier.Proof(t)
		require.Greater(t, number(t, file("token2")), number(t, file("token1")))
		// Use the time of the grant, because a busy machine is slow to start the command.
		waited := locks(t, s, "info", "x")[0].Holder.Since.Sub(killed)
		require.Greater(t, waited, 3*time.Second, "before the lease was over")
		require.Less(t, waited, 5500*time.Millisecond+3*late())
	})
	second.signal(syscall.SIGTERM)
	second.wait()
}

func TestRunEnvironmentAndStdin(t *testing.T) {
	t.Parallel()
	s := serve(t)
	p := startWith(t, s, "from stdin\n", []string{"MINE=kept"}, "run", "--ttl", "14500ms", "--meta", "a=1,2", "--meta", "b=x=y", "a.b c", "--",
		"sh", "-c", `cat; echo "$LOCK_NAME|$LOCK_TTL|$MINE|$LOCK_TOKEN"; "$0" info "$LOCK_NAME" --json; echo problem >&2`, binary)
	require.Zero(t, p.wait())
	lines := strings.SplitN(p.out.String(), "\n", 3)
	require.Equal(t, "from stdin", lines[0])
	fields := strings.Split(lines[1], "|")
	require.Equal(t, []string{"a.b c", "15", "kept"}, fields[:3], "a TTL is rounded up to seconds")
	token, err := strconv.ParseUint(fields[3], 10, 63)
	require.NoError(t, err)
	require.Greater(t, token, uint64(2e15), "64 times a revision")
	require.Contains(t, lines[2], `"token": `+fields[3])
	require.Contains(t, lines[2], `"a": "1,2"`)
	require.Contains(t, lines[2], `"b": "x=y"`)
	require.Equal(t, "problem\n", p.err.String())
	require.Empty(t, locks(t, s, "ls"), "the lock is released")
}

func TestRunExitCodes(t *testing.T) {
	t.Parallel()
	s := serve(t)
	notExecutable := filepath.Join(t.TempDir(), "data")
	require.NoError(t, os.WriteFile(notExecutable, []byte("x"), 0o600))
	for _, c := range []struct {
		code int
		says string
		args []string
	}{
		{0, "", []string{"x", "true"}},
		{0, "", []string{"x", "--", "true"}},
		{3, "", []string{"x", "sh", "-c", "exit 3"}},
		{128 + 9, "", []string{"x", "--", "sh", "-c", "kill -9 $$"}},
		{128 + 15, "", []string{"x", "--", "sh", "-c", "kill $$"}},
		{127, "cannot run no-such-command", []string{"x", "--", "no-such-command"}},
		{126, "permission denied", []string{"x", "--", notExecutable}},
		{64, "a command is missing", []string{"x"}},
		{64, "a command is missing", []string{"x", "--"}},
		{64, "a command is missing; -s is the server, and --read shares the lock; see lockctl run --help", []string{"-s", "x", "--", "true"}},
		{64, "unknown flag --bogus", []string{"--bogus", "x", "--", "true"}},
		{64, "--nonblock and --wait are mutually exclusive", []string{"-n", "-w", "1", "x", "--", "true"}},
		{64, "--read and --write are mutually exclusive", []string{"--read", "--write", "x", "--", "true"}},
		{64, "is neither a number of seconds nor a duration", []string{"-w", "soon", "x", "--", "true"}},
		{64, "negative", []string{"--wait=-1", "x", "--", "true"}},
		{64, "is neither a number of seconds nor a duration", []string{"--ttl", "soon", "x", "--", "true"}},
		{64, "invalid TTL: 500ms is not between 1s and 24h0m0s", []string{"--ttl", "500ms", "x", "--", "true"}},
		{64, "invalid TTL: 500ms is not between 1s and 24h0m0s", []string{"--ttl", "0.5", "x", "--", "true"}},
		{64, "invalid TTL", []string{"--ttl", "0s", "x", "--", "true"}},
		{64, "invalid TTL", []string{"--ttl", "25h", "x", "--", "true"}},
		{64, "invalid lock name", []string{"", "--", "true"}},
	} {
		code, _, errs := run(t, s, append([]string{"run"}, c.args...)...)
		require.Equal(t, c.code, code, "%q: %s", c.args, errs)
		require.Contains(t, errs, c.says, "%q", c.args)
		if c.says != "" {
			require.True(t, strings.HasPrefix(errs, "lockctl: "), errs)
		}
	}
	code, out, _ := run(t, s, "run", "x", "echo", "-n", "--ttl")
	require.Zero(t, code)
	require.Equal(t, "--ttl", out, "the command's flags are its own")
}

// TestArgumentsNotUTF8 checks that arguments must be UTF-8: otherwise the command would receive a
// different argument, and two names could denote one lock.
func TestArgumentsNotUTF8(t *testing.T) {
	t.Parallel()
	s := serve(t)
	for _, args := range [][]string{
		{"run", "x", "--", "echo", "a\xff"}, {"run", "a\xff", "--", "echo", "x"}, {"run", "--meta", "k=a\xff", "x", "--", "echo", "x"}, {"info", "a\xff"},
	} {
		code, out, errs := run(t, s, args...)
		require.Equal(t, 64, code)
		require.Empty(t, out)
		require.Regexp(t, `^lockctl: the argument "(k=)?a\\xff" is not UTF-8; a lock name must be written as shown here, with its quotes\n$`, errs)
	}
	code, out, _ := run(t, s, "run", "é", "--", "echo", "é")
	require.Zero(t, code)
	require.Equal(t, "é\n", out)
}

func TestRunConflict(t *testing.T) {
	t.Parallel()
	s := serve(t)
	_, pid := hold(t, s, "x")
	for _, c := range []struct {
		code int
		args []string
	}{
		{1, []string{"-n"}},
		{1, []string{"-w", "0"}},
		{99, []string{"-n", "-E", "99"}},
		{0, []string{"-n", "--conflict-exit-code", "0"}},
	} {
		code, out, errs := run(t, s, append(append([]string{"run"}, c.args...), "x", "--", "echo", "inside")...)
		require.Equal(t, c.code, code, "%q: %s", c.args, errs)
		require.Empty(t, out)
		require.Contains(t, errs, `lock "x"`)
		require.Contains(t, errs, "token", "who holds it")
	}
	code, out, errs := gaveUp(t, s, "run", "x", "--", "echo", "inside")
	require.Equal(t, 1, code, errs)
	require.Empty(t, out)
	require.Contains(t, errs, `lock "x"`)
	require.True(t, running(pid))
}

// TestRunSignalWhileWaiting checks that a signal ends the wait and removes the place in the queue.
func TestRunSignalWhileWaiting(t *testing.T) {
	t.Parallel()
	s := serve(t)
	hold(t, s, "x")
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		p := start(t, s, "run", "x", "--", "echo", "inside")
		awaitQueue(t, s, "x", 1)
		p.signal(sig)
		require.Equal(t, 128+int(sig), p.wait())
		require.Empty(t, p.out.String())
		require.Contains(t, p.err.String(), "gave up waiting")
		awaitQueue(t, s, "x", 0)
	}
}

// TestRunForwardsSignals checks that lockctl forwards signals to the whole group and lets the
// command decide what they mean.
func TestRunForwardsSignals(t *testing.T) {
	t.Parallel()
	s := serve(t)
	dir := t.TempDir()
	ready := filepath.Join(dir, "ready")
	p := start(t, s, "run", "x", "--", "sh", "-c", `
		for s in INT HUP QUIT USR1 USR2; do trap "echo $s > `+dir+`/$s" $s; done
		trap 'echo TERM > `+dir+`/TERM; exit 7' TERM
		echo > `+ready+`
		while :; do sleep 0.05; done`)
	contents(t, ready)
	for _, sig := range []struct {
		syscall.Signal
		name string
	}{{syscall.SIGINT, "INT"}, {syscall.SIGHUP, "HUP"}, {syscall.SIGQUIT, "QUIT"}, {syscall.SIGUSR1, "USR1"}, {syscall.SIGUSR2, "USR2"}, {syscall.SIGTERM, "TERM"}} {
		p.signal(sig.Signal)
		require.Equal(t, sig.name, contents(t, filepath.Join(dir, sig.name)))
	}
	require.Equal(t, 7, p.wait())
	require.Empty(t, locks(t, s, "ls"))
}

// TestRunLost checks that losing the lock ends the whole process group: TERM gives the command time
// to clean up, and KILL ends what ignores it.
func TestRunLost(t *testing.T) {
	t.Parallel()
	for _, now := range []bool{false, true} {
		t.Run(map[bool]string{false: "break", true: "break now"}[now], func(t *testing.T) {
			t.Parallel()
			s := serve(t)
			dir := t.TempDir()
			file := func(name string) string { return filepath.Join(dir, name) }
			p := start(t, s, "run", "--kill-after", "300ms", "x", "--", "sh", "-c", `
				sh -c 'trap "" TERM; echo $$ > `+file("stubborn")+`; while :; do date +%s%N >> `+file("beats")+`; sleep 0.01; done' &
				trap 'echo > `+file("cleanup")+`; exit 0' TERM
				echo $$ > `+file("child")+`
				while :; do sleep 0.05; done`)
			child, stubborn := int(number(t, file("child"))), int(number(t, file("stubborn")))
			next := start(t, s, "run", "x", "--", "sh", "-c", "date +%s%N > "+file("next"))
			awaitQueue(t, s, "x", 1)

			args := []string{"break", "-f", "--reason", "it hangs", "x"}
			if now {
				args = append(args, "--now")
			}
			broken := time.Now()
			code, out, errs := run(t, s, args...)
			require.Zero(t, code, errs)
			require.Contains(t, out, "broken: ")

			require.Equal(t, 75, p.wait())
			require.FileExists(t, file("cleanup"))
			require.False(t, running(child))
			gone(t, stubborn)
			require.Regexp(t, `broken by an operator: by \S+@\S+: it hangs`, p.err.String(), "also when the next one is in at once")
			require.Contains(t, p.err.String(), "killing it")
			require.Zero(t, next.wait())
			limit := 5 * time.Second
			if !now {
				limit = 10 * time.Second
				require.Greater(t, number(t, file("next")), number(t, file("beats")), "before the command had ended")
			}
			within(t, limit, time.Unix(0, number(t, file("next"))).Sub(broken), "the lease is 15 s: not by its end")
		})
	}
}

// TestRunOutage checks that when the connection is lost, the command is ended before the server may
// grant the lock to another client, which is at most one TTL after the last renewal.
func TestRunOutage(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	s := serve(t)
	file := filepath.Join(t.TempDir(), "pid")
	p := start(t, s, "run", "--ttl", "5s", "x", "--", "sh", "-c", "trap '' TERM; echo $$ > "+file+"; while :; do sleep 1; done")
	pid := int(number(t, file))
	late := machine.Lateness(t)
	s.Stop()
	stopped := time.Now()
	gone(t, pid)
	took := time.Since(stopped)
	require.Equal(t, 75, p.wait())
	require.Less(t, took, 5*time.Second+200*time.Millisecond+3*late(), "after the end of the lease")
	require.Contains(t, p.err.String(), "connection lost")
	require.Contains(t, p.err.String(), "lock lost")
}

// TestRunSurvivesRestart checks that an outage shorter than the lease does not affect the command.
func TestRunSurvivesRestart(t *testing.T) {
	t.Parallel()
	s := serve(t)
	dir := t.TempDir()
	ready, goOn := filepath.Join(dir, "ready"), filepath.Join(dir, "go")
	p := start(t, s, "run", "x", "--", "sh", "-c", "echo > "+ready+"; while ! test -e "+goOn+"; do sleep 0.01; done; exit 5")
	contents(t, ready)
	s.Restart()
	kit.Eventually(t, "a reconnect", func() bool { return strings.Contains(p.err.String(), "reconnected") })
	require.NoError(t, os.WriteFile(goOn, nil, 0o600))
	require.Equal(t, 5, p.wait())
	require.Empty(t, locks(t, s, "ls"))
}

// TestRunLeavesBackgroundAlone checks that when a command exits by itself, lockctl leaves its
// background processes alone, as flock -o does.
func TestRunLeavesBackgroundAlone(t *testing.T) {
	t.Parallel()
	s := serve(t)
	file := filepath.Join(t.TempDir(), "pid")
	code, _, _ := run(t, s, "run", "x", "--", "sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $! > "+file)
	require.Zero(t, code)
	pid := int(number(t, file))
	require.True(t, running(pid))
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
}

// TestRunBrokenPipe checks that lockctl ends the group even if nobody reads its output.
func TestRunBrokenPipe(t *testing.T) {
	t.Parallel()
	s := serve(t)
	read, write, err := os.Pipe()
	require.NoError(t, err)
	defer write.Close()
	file := filepath.Join(t.TempDir(), "pid")
	cmd := exec.Command(binary, "-s", s.URL(), "run", "x", "--kill-after", "100ms", "--", "sh", "-c", "trap '' TERM; echo $$ > "+file+"; while :; do sleep 1; done")
	cmd.Env = append(cleanEnv(), "XDG_CONFIG_HOME="+t.TempDir())
	cmd.Stdout, cmd.Stderr = write, write
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	pid := int(number(t, file))
	require.NoError(t, read.Close())
	code, _, errs := run(t, s, "break", "-f", "x")
	require.Zero(t, code, errs)
	_ = cmd.Wait()
	require.Equal(t, 75, cmd.ProcessState.ExitCode(), "%v", cmd.ProcessState)
	gone(t, pid)

	// A broken pipe in the command itself is the command's own business.
	sh := exec.Command("bash", "-c", `"$0" -s "$1" run y -- yes | head -n 1; echo ${PIPESTATUS[0]}`, binary, s.URL())
	sh.Env = cmd.Env
	out, err := sh.Output()
	require.NoError(t, err)
	require.Equal(t, "y\n141\n", string(out))
	require.Empty(t, locks(t, s, "ls"))
}
