//go:build unix

package main_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

func TestShowNothing(t *testing.T) {
	t.Parallel()
	s := serve(t)
	code, out, errs := run(t, s, "ls")
	require.Zero(t, code)
	require.Empty(t, out)
	require.Equal(t, "lockctl: no locks\n", errs)
	code, out, errs = run(t, s, "ls", "--json")
	require.Zero(t, code)
	require.JSONEq(t, "[]", out)
	require.Empty(t, errs)
	code, out, _ = run(t, s, "info", "x")
	require.Zero(t, code)
	require.Equal(t, "x is free\n", out)
	code, _, errs = run(t, s, "break", "-f", "x")
	require.Equal(t, 1, code)
	require.Contains(t, errs, "x is free")
}

func TestShowLocks(t *testing.T) {
	t.Parallel()
	s := serve(t)
	held, _ := hold(t, s, "orders.42", "--meta", "ticket=OPS-1", "--ttl", "30s")
	hold(t, s, "deploy")
	waiting := start(t, s, "run", "orders.42", "--", "true")
	awaitQueue(t, s, "orders.42", 1)

	all := locks(t, s, "ls")
	require.Len(t, all, 2)
	require.Equal(t, "deploy", all[0].Name)
	require.Equal(t, "orders.42", all[1].Name)
	l := locks(t, s, "ls", "orders.*")
	require.Equal(t, all[1:], l)
	require.Equal(t, l, locks(t, s, "info", "orders.42"))
	require.Equal(t, "mutex", l[0].Kind)
	h := l[0].Holder
	require.Equal(t, held.cmd.Process.Pid, h.PID)
	require.Equal(t, 30.0, h.TTL)
	require.Equal(t, map[string]string{"ticket": "OPS-1"}, h.Meta)
	require.WithinDuration(t, time.Now().Add(25*time.Second), *h.Expires, 10*time.Second)
	require.False(t, h.Unreadable)
	require.Nil(t, h.Broken)
	require.Equal(t, "exclusive", l[0].Mode)
	require.NotNil(t, l[0].Readers)
	require.False(t, l[0].WriterWaits)
	require.False(t, l[0].BothKinds)
	require.Equal(t, waiting.cmd.Process.Pid, l[0].Queue[0].PID)
	require.Equal(t, "exclusive", l[0].Queue[0].Mode)
	require.Greater(t, l[0].Queue[0].Ticket, record.TokenRevision(h.Token))

	_, out, _ := run(t, s, "ls")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	require.Len(t, lines, 3)
	require.Equal(t, []string{"KIND", "NAME", "MODE", "HOLDER", "TOKEN", "HELD", "EXPIRES", "READERS", "QUEUE"}, strings.Fields(lines[0]))
	require.Regexp(t, `^mutex +deploy +exclusive +\S+:\d+ sh +\d{16} +\S+s +\d+s +- +0$`, lines[1])
	require.Regexp(t, `^mutex +orders\.42 +exclusive +\S+:\d+ sh +\d{16} +\S+s +\d+s +- +1$`, lines[2])
	require.NotContains(t, out, "\x1b", "no colours in a pipe")

	_, out, _ = run(t, s, "info", "orders.42")
	for _, want := range []string{"mutex orders.42: held", "ticket=OPS-1", "TTL 30s", "queue of 1", "waits "} {
		require.Contains(t, out, want)
	}
	code, _, errs := run(t, s, "ls", "")
	require.Equal(t, 64, code, errs)
}

func TestBreak(t *testing.T) {
	t.Parallel()
	s := serve(t)
	p, _ := hold(t, s, "x")
	h := locks(t, s, "info", "x")[0].Holder

	code, out, errs := run(t, s, "break", "x")
	require.Equal(t, 64, code, "nobody to ask")
	require.Contains(t, errs, "--force")
	require.Contains(t, out, "holder")

	code, _, errs = run(t, s, "break", "-f", "--id", "1", "x") // ids have no digit below 2
	require.Equal(t, 1, code)
	require.Contains(t, errs, "there is "+h.ID+": nothing was broken")
	require.Nil(t, locks(t, s, "info", "x")[0].Holder.Broken)

	code, out, errs = run(t, s, "break", "-f", "--id", h.ID[:8], "--reason", "tired of it", "x")
	require.Zero(t, code, errs)
	require.Contains(t, out, h.ID)
	require.Contains(t, out, uintString(h.Token))
	require.Equal(t, 75, p.wait())
	require.Contains(t, p.err.String(), "tired of it")
	require.Empty(t, locks(t, s, "ls"), "the holder frees the lock when it has stopped")
}

// A broken holder that is paused frees nothing: the lock is shown as broken
// until its lease is over.
func TestBreakOfPausedHolder(t *testing.T) {
	t.Parallel()
	s := serve(t)
	p, _ := hold(t, s, "x", "--ttl", "20s")
	pause(t, p)
	code, out, errs := run(t, s, "break", "-f", "--reason", "it sleeps", "x")
	require.Zero(t, code, errs)
	require.Regexp(t, `broken: free when the holder has stopped, in (1\d|20)s at the latest`, out)
	h := locks(t, s, "info", "x")[0].Holder
	require.Equal(t, "it sleeps", h.Broken.Reason)
	_, out, _ = run(t, s, "info", "x")
	require.Contains(t, out, "it sleeps")
	_, out, _ = run(t, s, "ls")
	require.Contains(t, out, "(broken)")
	code, out, _ = run(t, s, "break", "-f", "x")
	require.Zero(t, code)
	require.Contains(t, out, "broken already")
	code, out, errs = run(t, s, "break", "-f", "--now", "x")
	require.Zero(t, code, errs)
	require.Contains(t, out, "free now")
	require.Empty(t, locks(t, s, "ls"))
}

func TestUnreadableRecord(t *testing.T) {
	t.Parallel()
	s := serve(t)
	code, _, errs := run(t, s, "run", "x", "--", "true") // makes the bucket
	require.Zero(t, code, errs)
	js, err := s.Connect().JetStream()
	require.NoError(t, err)
	_, err = js.Publish("$KV.natslock.lock.bad", []byte("\xc1 none of ours"), nats.Context(timeout(t)))
	require.NoError(t, err)

	l := locks(t, s, "ls")
	require.Len(t, l, 1)
	require.Equal(t, "bad", l[0].Name)
	require.True(t, l[0].Holder.Unreadable)
	_, out, _ := run(t, s, "ls")
	require.Contains(t, out, "unreadable")
	_, out, _ = run(t, s, "info", "bad")
	require.Contains(t, out, "unreadable")
	id := "unreadable-" + uintString(l[0].Holder.Revision)
	require.Equal(t, id, l[0].Holder.ID)
	require.Contains(t, out, id)
	_, out, _ = run(t, s, "ls", "--wide")
	require.Contains(t, out, id)
	code, _, errs = run(t, s, "run", "-n", "bad", "--", "true")
	require.Equal(t, 1, code)
	require.Contains(t, errs, "unknown owner")

	next := start(t, s, "run", "bad", "--", "echo", "inside")
	awaitQueue(t, s, "bad", 1)
	code, _, errs = run(t, s, "break", "-f", "--now", "--id", id, "bad")
	require.Zero(t, code, errs)
	require.Zero(t, next.wait())
	require.Equal(t, "inside\n", next.out.String())
}

// Names and records of others cannot steer the terminal.
func TestHostileName(t *testing.T) {
	t.Parallel()
	s := serve(t)
	evil := "\x1b[2J\u009b2J\u202e\U000e0001"
	hold(t, s, "a\x1b[2Jb *>", "--meta", "k="+evil, "--owner", evil)
	for _, args := range [][]string{{"ls", "--json"}, {"info", "--json", "a\x1b[2Jb *>"}} {
		code, out, errs := run(t, s, args...)
		require.Zero(t, code, errs)
		require.False(t, strings.ContainsFunc(out, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }), "%q", out)
	}
	shown := locks(t, s, "ls")[0]
	require.Equal(t, evil, shown.Holder.Owner)
	require.Equal(t, map[string]string{"k": evil}, shown.Holder.Meta)
	for _, args := range [][]string{{"ls"}, {"info", "a\x1b[2Jb *>"}} {
		code, out, errs := run(t, s, args...)
		require.Zero(t, code)
		require.NotContains(t, out+errs, "\x1b")
		require.Contains(t, out, `"a\x1b[2Jb *>"`)
	}
	require.Equal(t, "a\x1b[2Jb *>", locks(t, s, "ls")[0].Name)
}

// A message about a server that does not answer names what has named the server.
func TestUnavailableSource(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "nats", "context"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "nats", "context", "prod.json"), []byte(`{"url": "nats://127.0.0.1:1"}`), 0o600))
	for _, c := range []struct {
		env, args []string
		says      string
	}{
		{nil, []string{"-s", "nats://127.0.0.1:1"}, "1; --server names it"},
		{nil, []string{"-s", "nats://127.0.0.1:1", "--context", "prod"}, "1 (context prod); --server names it"},
		{[]string{"NATS_URL=nats://127.0.0.1:1"}, nil, "1; NATS_URL names it"},
		{nil, []string{"--context", "prod"}, "1; context prod names it"},
		{[]string{"NATS_CONTEXT=prod"}, nil, "1; context prod names it"},
	} {
		p := startWith(t, nil, "", append(c.env, "XDG_CONFIG_HOME="+dir), append(c.args, "ls")...)
		require.Equal(t, 69, p.wait(), c.says)
		require.Equal(t, "lockctl: no server at nats://127.0.0.1:"+c.says+": start that server, or name another one\n", p.err.String())
	}
}

// What is no handle is said to be none, with what one looks like.
func TestNoHandle(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"release", "extend"} {
		code, _, errs := run(t, nil, command, "xyz")
		require.Equal(t, 64, code)
		require.Equal(t, `lockctl: "xyz" is not the text of a handle: a handle is the word that "lockctl acquire" has printed, and begins with natslock-script-; see lockctl `+command+" --help\n", errs)
		_, _, errs = run(t, nil, command, "")
		require.Contains(t, errs, "lockctl: the handle is empty")
	}
}

func TestUnavailable(t *testing.T) {
	t.Parallel()
	began := time.Now()
	for _, args := range [][]string{{"ls"}, {"info", "x"}, {"break", "-f", "x"}, {"run", "x", "--", "true"}} {
		code, _, errs := run(t, nil, append([]string{"--server", "nats://u:secret@127.0.0.1:1"}, args...)...)
		require.Equal(t, 69, code)
		require.Equal(t, "lockctl: no server at nats://127.0.0.1:1; --server names it: start that server, or name another one\n", errs)
	}
	within(t, 4*time.Second, time.Since(began))

	s := testutil.RunServer(t, testutil.WithoutJetStream())
	code, _, errs := run(t, s, "run", "x", "--", "true")
	require.Equal(t, 69, code)
	require.Contains(t, errs, "no JetStream at")
	s = testutil.RunServer(t, testutil.WithConfigText(`authorization { user: a, password: b }`))
	code, _, errs = run(t, s, "ls")
	require.Equal(t, 77, code)
	require.Contains(t, errs, "refuses the login")
}

func TestHelpAndVersion(t *testing.T) {
	t.Parallel()
	code, out, _ := run(t, nil, "--version")
	require.Zero(t, code)
	require.Regexp(t, `^lockctl \S+.*, go1\.`, out)
	for _, command := range []string{"run", "ls", "info", "break", "demo"} {
		code, out, _ := run(t, nil, command, "--help")
		require.Zero(t, code)
		require.Contains(t, out, "Usage: lockctl "+command)
	}
	_, out, _ = run(t, nil, "--help")
	require.LessOrEqual(t, strings.Count(out, "\n"), 46, "it fits a screen:\n%s", out)
	require.Regexp(t, `(?s)Take a lock:\n  run .*See what is locked:\n  ls .*Take care of locks and their bucket:\n  break .*Begin:\n  demo `, out)
	require.NotContains(t, out, "--tlscert")
	for _, args := range [][]string{{"--help-connection"}, {"info", "--help-connection"}} {
		code, out, _ = run(t, nil, args...)
		require.Zero(t, code)
		require.Regexp(t, `(?m)^  -s, --server=URL +Servers to connect to, .*\$NATS_URL`, out)
		require.Regexp(t, `(?m)^      --tlscert=FILE +TLS certificate`, out)
	}
	_, out, _ = run(t, nil, "run", "--help")
	require.Contains(t, strings.Join(strings.Fields(out), " "), "These are different locks, which do not exclude each other")
	code, _, errs := run(t, nil, "runn")
	require.Equal(t, 64, code)
	require.Contains(t, errs, "did you mean")
}

func TestDemo(t *testing.T) {
	t.Parallel()
	began := time.Now()
	code, out, errs := run(t, nil, "demo")
	require.Zero(t, code, errs)
	within(t, 12*time.Second, time.Since(began))
	require.Equal(t, 19, strings.Count(out, "gets it, token "))
	require.Contains(t, out, "after the kill of victim")
	require.Contains(t, out, "is notified")
	require.Contains(t, out, "19 grants, tokens strictly rising, no overlap, counter 17 of 17")
	require.NotContains(t, out, "\x1b")
	require.Empty(t, errs)
}

// ls and info show a lock that its holder has left, for the rest of a minimum hold or to an adopter, as one that nobody
// renews. A break waits for its end, or lets the next one in at once.
func TestLookAtLeftLock(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(c *natslock.Client) error{
		"minimum hold": func(c *natslock.Client) error {
			l, err := c.Lock(timeout(t), "job", natslock.MinHold(time.Hour))
			return errors.Join(err, l.Unlock(timeout(t)))
		},
		"hand-over": func(c *natslock.Client) error {
			l, err := c.Lock(timeout(t), "job", natslock.TTL(time.Hour))
			_, err2 := l.Handoff(timeout(t))
			return errors.Join(err, err2)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t)
			withBucket(t, s)
			require.NoError(t, leave(client(t, s, natslock.WithOwner("scheduler"))))
			_, out, _ := run(t, s, "ls")
			require.Regexp(t, `(?m)^mutex +job +exclusive +scheduler on .* 59m`, out)
			_, out, _ = run(t, s, "info", "job")
			require.Regexp(t, `expires +in 59m\d\ds, TTL 1h0m0s: its holder does not renew it`, out)
			code, out, errs := run(t, s, "break", "-f", "job")
			require.Zero(t, code, errs)
			require.Regexp(t, `free when the holder has stopped, in 59m\d\ds at the latest`, out)
			code, _, errs = run(t, s, "break", "-f", "--now", "job")
			require.Zero(t, code, errs)
			_, out, _ = run(t, s, "info", "job")
			require.Equal(t, "job is free\n", out)
		})
	}
}
