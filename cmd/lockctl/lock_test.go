//go:build unix

package main_test

import (
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/testutil"
)

// holdOpen starts lockctl lock with a pipe as standard input, and returns when the line
// has come.
func holdOpen(t *testing.T, s *testutil.Server, args ...string) (p *process, end *os.File, token uint64) {
	t.Helper()
	stdin, end, err := os.Pipe()
	require.NoError(t, err)
	t.Cleanup(func() { end.Close() })
	p = startFrom(t, s, stdin, nil, append([]string{"lock"}, args...)...)
	stdin.Close()
	eventually(t, "the line", func() bool { return strings.HasSuffix(p.out.String(), "\n") })
	words := strings.Fields(p.out.String())
	require.Len(t, words, 2)
	require.Equal(t, args[len(args)-1], words[0])
	token, err = strconv.ParseUint(words[1], 10, 64)
	require.NoError(t, err)
	return p, end, token
}

// The lock is held until standard input ends, and is free then.
func TestLockUntilEnd(t *testing.T) {
	t.Parallel()
	s := serve(t)
	for _, kind := range [][]string{{}, {"--write"}, {"--read"}, {"--permits", "1"}} {
		p, end, token := holdOpen(t, s, append(slices.Clone(kind), "x")...)
		held := await(t, s, "x", "a holder", func(l lock) bool { return l.Mode != "free" })
		if held.Holder != nil {
			require.Equal(t, token, held.Holder.Token)
			require.Regexp(t, `^\S+@\S+:\d+ lockctl lock$`, held.Holder.Owner)
		}
		other := append([]string{"run"}, kind...)
		if slices.Contains(kind, "--read") { // which admits other readers
			other = []string{"run", "--write"}
		}
		waiter := start(t, s, append(other, "x", "--", "true")...)
		await(t, s, "x", "a waiter", func(l lock) bool { return l.WriterWaits || len(l.Queue) == 1 })
		_, err := end.WriteString("text is read, and means nothing\n")
		require.NoError(t, err)
		require.NoError(t, end.Close())
		require.Zero(t, p.wait(), p.err.String())
		require.Zero(t, waiter.wait())
		require.Empty(t, p.err.String())
	}
}

// A signal that asks lockctl to end releases the lock, too. Others mean nothing.
func TestLockUntilSignal(t *testing.T) {
	t.Parallel()
	s := serve(t)
	for _, sig := range []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		p, _, _ := holdOpen(t, s, "x")
		p.signal(syscall.SIGUSR1)
		code, _, _ := run(t, s, "run", "-n", "x", "--", "true")
		require.Equal(t, 1, code)
		p.signal(sig)
		require.Zero(t, p.wait(), "%v: %s", sig, p.err)
		code, _, errs := run(t, s, "run", "-n", "x", "--", "true")
		require.Zero(t, code, errs)
	}

	holdOpen(t, s, "x")
	waiter := start(t, s, "lock", "x")
	awaitQueue(t, s, "x", 1)
	waiter.signal(syscall.SIGTERM)
	require.Equal(t, 128+15, waiter.wait())
	require.Empty(t, waiter.out.String())
}

// The other ends have the exit codes of run.
func TestLockEnds(t *testing.T) {
	t.Parallel()
	s := serve(t)
	p, _, _ := holdOpen(t, s, "x")
	code, out, errs := run(t, s, "lock", "-n", "x")
	require.Equal(t, 1, code, errs)
	require.Empty(t, out)
	code, _, errs = run(t, s, "lock", "-n", "-E", "0", "x")
	require.Zero(t, code, errs)
	code, _, errs = run(t, s, "break", "-f", "x", "--reason", "enough")
	require.Zero(t, code, errs)
	require.Equal(t, 75, p.wait())
	require.Contains(t, p.err.String(), "enough")

	code, out, errs = run(t, s, "lock", "y") // standard input has ended
	require.Zero(t, code, errs)
	require.Regexp(t, `^y \d+\n$`, out)
	require.Empty(t, locks(t, s, "info", "y"))
	code, _, errs = run(t, s, "lock", "y", "echo", "hello")
	require.Equal(t, 64, code)
	require.Contains(t, errs, "see lockctl lock --help")
	code, _, errs = run(t, s, "--bucket", "none", "lock", "y")
	require.Equal(t, 78, code, errs)
}

// Nobody reads the line: the lock is released, and not left to its TTL.
func TestLockUnread(t *testing.T) {
	t.Parallel()
	s := serve(t)
	read, write, err := os.Pipe()
	require.NoError(t, err)
	require.NoError(t, read.Close())
	cmd := exec.Command(binary, "lock", "--ttl", "60s", "x")
	cmd.Env = append(cleanEnv(), "NATS_URL="+s.URL(), "HOME="+t.TempDir())
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	defer stdin.Close()
	cmd.Stdout = write
	require.Error(t, cmd.Run())
	require.NoError(t, write.Close())
	require.Equal(t, 70, cmd.ProcessState.ExitCode())
	require.Empty(t, locks(t, s, "ls"))
}

// On a terminal ^D ends the holding. A standard input that cannot be read leaves the signals.
func TestLockOnTerminal(t *testing.T) {
	t.Parallel()
	s := serve(t)
	v := display(t, s, nil, "lock", "x")
	v.shows("x 2")
	v.press("\x04")
	require.Zero(t, v.ends())
	require.Empty(t, locks(t, s, "ls"))

	directory, err := os.Open(t.TempDir())
	require.NoError(t, err)
	defer directory.Close()
	p := startFrom(t, s, directory, nil, "lock", "x")
	said(t, p, "holding lock x until a signal comes")
	require.NotEmpty(t, locks(t, s, "info", "x"))
	p.signal(syscall.SIGTERM)
	require.Zero(t, p.wait())
	require.Empty(t, locks(t, s, "ls"))
}
