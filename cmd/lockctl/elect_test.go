//go:build unix

package main_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/machine"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/testutil"
)

// leads waits until x has a leader with the token, and returns it as info shows it.
func leads(t *testing.T, s *testutil.Server, token string) *holder {
	t.Helper()
	return await(t, s, "x", "a leader with token "+token, func(l lock) bool { return l.Holder != nil && uintString(l.Holder.Token) == token }).Holder
}

// candidate starts a candidate whose command appends the token of each term to file, writes its PID
// to file.pid, and exits with code 7 on SIGTERM.
func candidate(t *testing.T, s *testutil.Server, file string, flags ...string) *process {
	t.Helper()
	args := append(append([]string{"elect"}, flags...), "x", "--", "sh", "-c",
		`trap 'exit 7' TERM; echo $$ > `+file+`.pid; echo $LOCK_TOKEN >> `+file+`; while :; do sleep 0.02; done`)
	return start(t, s, args...)
}

// terms waits until a candidate has had n terms, and returns their tokens.
func terms(t *testing.T, file string, n int) (tokens []string) {
	t.Helper()
	kit.Eventually(t, "a term", func() bool {
		b, _ := os.ReadFile(file)
		tokens = strings.Fields(string(b))
		return len(tokens) >= n
	})
	return tokens
}

// TestElectKilled checks that when the leader's lockctl is killed its command dies too, and the
// other candidate leads once the lease expires.
func TestElectKilled(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	s := serve(t)
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	first := start(t, s, "elect", "--ttl", "5s", "--value", "one", "x", "--", "sh", "-c",
		"echo $LOCK_NAME $LOCK_TTL > "+file("env")+"; echo $LOCK_TOKEN > "+file("1")+"; sleep 60 & echo $! > "+file("pid")+"; wait")
	pid, token := int(number(t, file("pid"))), number(t, file("1"))
	require.Equal(t, "x 5", contents(t, file("env")))
	l := leads(t, s, uintString(uint64(token)))
	require.Equal(t, map[string]string{"value": "one"}, l.Meta)
	require.Equal(t, first.cmd.Process.Pid, l.PID)
	second := candidate(t, s, file("2"), "--ttl", "10m", "--value", "two") // on a busy machine a short lease could be lost
	awaitQueue(t, s, "x", 1)
	require.NoFileExists(t, file("2"))

	killed := time.Now()
	first.signal(syscall.SIGKILL)
	gone(t, pid)
	next := number(t, file("2"))
	waited := time.Since(killed)
	require.Greater(t, waited, 3*time.Second, "before the lease was over")
	require.Greater(t, next, token)
	require.Equal(t, map[string]string{"value": "two"}, leads(t, s, uintString(uint64(next))).Meta)
	second.signal(syscall.SIGTERM)
	require.Equal(t, 7, second.wait(), "the code of its command")
	require.Contains(t, second.err.String(), "leading x with token "+uintString(uint64(next)))
	require.Empty(t, locks(t, s, "info", "x"))
}

// TestElectResigns checks that the leader passes a signal on to its command and resigns when the
// command has exited, so that the next candidate leads immediately.
func TestElectResigns(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			s := serve(t)
			dir := t.TempDir()
			one, two := filepath.Join(dir, "1"), filepath.Join(dir, "2")
			first := candidate(t, s, one, "--ttl", "10m")
			token := number(t, one)
			second := candidate(t, s, two, "--ttl", "10m")
			awaitQueue(t, s, "x", 1)
			first.signal(sig)
			code := 128 + int(sig)
			if sig == syscall.SIGTERM {
				code = 7
			}
			require.Equal(t, code, first.wait(), "that of its command")
			require.Greater(t, number(t, two), token, "a lease of ten minutes is not waited for")
			third := candidate(t, s, one, "--ttl", "10m")
			awaitQueue(t, s, "x", 1)
			third.signal(sig)
			require.Equal(t, 128+int(sig), third.wait(), "it has not led")
			require.Contains(t, third.err.String(), "gave up campaigning for x: signal: ")
			awaitQueue(t, s, "x", 0)
			second.signal(syscall.SIGTERM)
			require.Equal(t, 7, second.wait())
			require.Empty(t, locks(t, s, "ls"))
		})
	}
}

// TestElectAgain checks that a candidate whose command has exited campaigns again at the end of the
// queue until a signal ends it. USR1 goes to the command only.
func TestElectAgain(t *testing.T) {
	t.Parallel()
	s := serve(t)
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	first := start(t, s, "elect", "--ttl", "10m", "x", "--", "sh", "-c",
		`trap 'echo > `+file("usr1")+`; exit 3' USR1; echo $LOCK_TOKEN >> `+file("1")+`; while :; do sleep 0.02; done`)
	terms(t, file("1"), 1)
	second := candidate(t, s, file("2"), "--ttl", "10m")
	awaitQueue(t, s, "x", 1)
	first.signal(syscall.SIGUSR1)
	contents(t, file("usr1"))
	terms(t, file("2"), 1)
	awaitQueue(t, s, "x", 1)
	require.Contains(t, first.err.String(), "the command exited with code 3; campaigning for x again")

	require.NoError(t, syscall.Kill(int(number(t, file("2.pid"))), syscall.SIGKILL))
	require.Len(t, terms(t, file("1"), 2), 2)
	awaitQueue(t, s, "x", 1)
	require.Contains(t, second.err.String(), "the command exited with code 137; campaigning for x again")
	first.signal(syscall.SIGKILL)
	second.signal(syscall.SIGTERM)
	require.Equal(t, 128+15, second.wait())
}

// TestElectBroken checks that breaking a term ends the whole process group, and that the candidate
// campaigns and leads again after that.
func TestElectBroken(t *testing.T) {
	t.Parallel()
	s := serve(t)
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	p := start(t, s, "elect", "--kill-after", "200ms", "x", "--", "sh", "-c", `
		sh -c 'trap "" TERM; echo $$ > `+file("stubborn")+`; while :; do sleep 1; done' &
		until test -s `+file("stubborn")+`; do sleep 0.01; done
		echo $LOCK_TOKEN >> `+file("terms")+`; wait`)
	first := terms(t, file("terms"), 1)[0]
	stubborn := int(number(t, file("stubborn")))
	require.NoError(t, os.Remove(file("stubborn")))
	code, _, errs := run(t, s, "break", "-f", "--reason", "it hangs", "x")
	require.Zero(t, code, errs)
	gone(t, stubborn)
	again := terms(t, file("terms"), 2)[1]
	require.Greater(t, again, first)
	require.Regexp(t, `broken by an operator: by \S+@\S+: it hangs; ending the command`, p.err.String())
	require.Contains(t, p.err.String(), "killing it")
	require.Contains(t, p.err.String(), "campaigning for x again")
	p.signal(syscall.SIGTERM)
	require.Equal(t, 128+15, p.wait())
	// If a command exits by itself, lockctl leaves its remaining processes alone.
	require.NoError(t, syscall.Kill(int(number(t, file("stubborn"))), syscall.SIGKILL))
	require.Empty(t, locks(t, s, "ls"))
}

// TestElectOutage checks that a leader cut off from the server ends its command before its lease
// expires, and leads again once the server is back.
func TestElectOutage(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	s := serve(t)
	file := filepath.Join(t.TempDir(), "terms")
	p := candidate(t, s, file, "--ttl", "5s")
	first := terms(t, file, 1)[0]
	pid := int(number(t, file+".pid"))
	late := machine.Lateness(t)
	s.Stop()
	stopped := time.Now()
	gone(t, pid)
	require.Less(t, time.Since(stopped), 5*time.Second+200*time.Millisecond+3*late(), "after the end of the lease")
	kit.Eventually(t, "that it says so", func() bool { return strings.Contains(p.err.String(), "campaigning for x again") })
	require.Contains(t, p.err.String(), "connection lost")
	s.Restart()
	again := terms(t, file, 2)[1]
	require.Greater(t, again, first)
	leads(t, s, again)
	p.signal(syscall.SIGTERM)
	require.Equal(t, 7, p.wait())
}

// TestElectStopped checks that the command of a suspended leader does not run alongside the next
// leader's, because the guard ends it. When the leader is resumed, it campaigns again.
func TestElectStopped(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	s := serve(t)
	dir := t.TempDir()
	one, two := filepath.Join(dir, "1"), filepath.Join(dir, "2")
	first := candidate(t, s, one, "--ttl", "5s")
	number(t, one)
	pid := int(number(t, one+".pid"))
	second := candidate(t, s, two, "--ttl", "10m") // on a busy machine a short lease could be lost
	awaitQueue(t, s, "x", 1)
	pause(t, first)
	number(t, two)
	require.False(t, running(pid))
	first.signal(syscall.SIGCONT)
	awaitQueue(t, s, "x", 1)
	require.Contains(t, first.err.String(), "lock lost")
	second.signal(syscall.SIGTERM)
	require.Equal(t, 7, second.wait())
	terms(t, one, 2)
	first.signal(syscall.SIGTERM)
	require.Equal(t, 7, first.wait())
}

// TestElectExitCodes checks that elect --once exits after one term, with the exit codes of "lockctl
// run".
func TestElectExitCodes(t *testing.T) {
	t.Parallel()
	s := serve(t)
	for _, c := range []struct {
		code int
		says string
		args []string
	}{
		{0, "", []string{"--once", "x", "--", "true"}},
		{3, "", []string{"--once", "x", "sh", "-c", "exit 3"}},
		{128 + 9, "", []string{"--once", "x", "--", "sh", "-c", "kill -9 $$"}},
		{127, "cannot run no-such-command", []string{"x", "--", "no-such-command"}},
		{126, "cannot run", []string{"x", "--", os.DevNull}},
		{64, "a command is missing", []string{"x", "--"}},
		{64, "a command is missing", []string{"x", "--once"}},
		{64, "invalid TTL", []string{"--ttl", "0s", "x", "--", "true"}},
		{64, "invalid lock name", []string{"", "--", "true"}},
		{64, "the limit is 4096", []string{"--value", strings.Repeat("v", 4097), "x", "--", "true"}},
		{64, "negative", []string{"--kill-after=-1s", "x", "--", "true"}},
	} {
		code, _, errs := run(t, s, append([]string{"elect"}, c.args...)...)
		require.Equal(t, c.code, code, "%q: %s", c.args, errs)
		require.Contains(t, errs, c.says, "%q", c.args)
		require.NotContains(t, errs, "campaigning for x again", "%q", c.args)
	}
	file := filepath.Join(t.TempDir(), "term")
	p := candidate(t, s, file, "--once")
	number(t, file)
	code, _, errs := run(t, s, "break", "-f", "x")
	require.Zero(t, code, errs)
	require.Equal(t, 75, p.wait())
	require.Contains(t, p.err.String(), "broken by an operator")
	require.Empty(t, locks(t, s, "ls"))
}

// TestElectShown checks that info shows the leader and its value, and that watch reports changes of
// leader.
func TestElectShown(t *testing.T) {
	t.Parallel()
	s := serve(t)
	events := watch(t, s, "x")
	file := filepath.Join(t.TempDir(), "term")
	p := candidate(t, s, file, "--value", "10.0.0.7:80\x1b[2J")
	token := uintString(uint64(number(t, file)))
	require.Equal(t, map[string]string{"value": "10.0.0.7:80\x1b[2J"}, leads(t, s, token).Meta)
	_, out, _ := run(t, s, "info", "x")
	require.Regexp(t, `holder +\S+:`+uintString(uint64(p.cmd.Process.Pid))+` sh\n`, out)
	require.Contains(t, out, `value="10.0.0.7:80\x1b[2J"`)
	require.NotContains(t, out, "\x1b")
	p.signal(syscall.SIGTERM)
	require.Equal(t, 7, p.wait())
	kit.Eventually(t, "the end of the term", func() bool { return strings.Contains(events.out.String(), "released") })
	require.Regexp(t, `(?s)granted .* token `+token+`.*released .* token `+token, events.out.String())
}
