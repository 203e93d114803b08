//go:build unix

package main_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

// After a second a waiter says for whom it waits, and at which place: once, and for each
// kind of lock. A lock that is free at once has nothing to say.
func TestRunSaysThatItWaits(t *testing.T) {
	t.Parallel()
	for _, kind := range [][]string{nil, {"--write"}, {"--permits", "1"}} {
		t.Run(strings.Join(kind, " "), func(t *testing.T) {
			t.Parallel()
			s := serve(t)
			p, _ := hold(t, s, "x", kind...)
			args := append(append([]string{"run"}, kind...), "x", "--", "true")
			first := start(t, s, args...)
			awaitQueue(t, s, "x", 1)
			second := start(t, s, args...)
			said(t, first, "place 1 of ")
			said(t, second, "place 2 of 2 in the queue\n")
			holder := fmt.Sprintf(":%d sh has had it for ", p.cmd.Process.Pid)
			require.Contains(t, first.err.String(), "lockctl: waiting for lock x: ")
			require.Contains(t, first.err.String(), holder)
			p.signal(syscall.SIGTERM)
			p.wait()
			require.Zero(t, first.wait())
			require.Zero(t, second.wait())
			require.Equal(t, 1, strings.Count(second.err.String(), "\n"), "said once: %s", second.err)
			require.Empty(t, p.err.String())
		})
	}
}

// On a terminal a line shows the place in the queue and the holder as they are, and is
// gone when the lock is granted.
func TestRunWaitsOnTerminal(t *testing.T) {
	t.Parallel()
	s := serve(t)
	p, _ := hold(t, s, "x")
	first := start(t, s, "run", "x", "--", "true")
	awaitQueue(t, s, "x", 1)
	v := display(t, s, nil, "run", "x", "--", "echo", "inside")
	v.resize(160, 24) // the name of this machine may be long
	holder := fmt.Sprintf(":%d sh has had it for ", p.cmd.Process.Pid)
	text := v.shows("lockctl: waiting for lock x, place 2 of 2: ", holder)
	v.until("a later time", func(now string) bool { return now != text && strings.Contains(now, holder) })
	first.signal(syscall.SIGTERM)
	require.Equal(t, 128+15, first.wait())
	v.shows("place 1 of 1: ")
	v.resize(40, 24)
	v.until("a short line", func(now string) bool {
		return strings.Contains(now, "waiting for lock x, place...\n") && strings.Count(strings.TrimSpace(now), "\n") == 0
	})
	p.signal(syscall.SIGTERM)
	p.wait()
	require.Zero(t, v.ends())
	require.Equal(t, "inside", strings.TrimSpace(v.text()))

}

// A message stands above the line of a waiter, and the end of the waiting removes it.
func TestRunGivesUpOnTerminal(t *testing.T) {
	t.Parallel()
	s := serve(t)
	hold(t, s, "y")
	v := display(t, s, nil, "run", "y", "--", "true")
	v.shows("waiting for lock y, place 1 of 1")
	v.press("\x03")
	require.Equal(t, 128+2, v.ends())
	require.NotContains(t, v.text(), "place 1 of 1")
	require.Contains(t, v.text(), "lockctl: gave up waiting for lock y: signal: interrupt")
	require.Equal(t, 1, strings.Count(strings.TrimSpace(v.text()), "lockctl"))

	// A terminal that cannot move its cursor gets the line once.
	v = display(t, s, []string{"TERM=dumb"}, "run", "y", "-w", "2.5", "--", "true")
	require.Equal(t, 1, v.ends())
	require.Equal(t, 1, strings.Count(v.text(), "waiting for lock y"))
	require.NotContains(t, v.output(), "\x1b")
}

// A writer that readers keep waiting has no place in the queue, and nothing is wrong.
func TestRunSaysThatReadersAreInside(t *testing.T) {
	t.Parallel()
	s := serve(t)
	hold(t, s, "x", "--read")
	p := start(t, s, "run", "--write", "x", "--", "true")
	said(t, p, "lockctl: waiting for lock x: it is next, and waits for 1 reader to leave\n")
}

// A bucket that takes no more writes: a waiter says that it has no place.
func TestRunSaysThatTheBucketIsFull(t *testing.T) {
	t.Parallel()
	s := serve(t)
	hold(t, s, "x")
	js := jetStream(t, s)
	stream, err := js.Stream(t.Context(), "KV_natslock")
	require.NoError(t, err)
	config := stream.CachedInfo().Config
	config.MaxBytes, config.Discard = 1, jetstream.DiscardNew
	_, err = js.UpdateStream(t.Context(), config)
	require.NoError(t, err)
	p := start(t, s, "run", "x", "--", "true")
	said(t, p, `the bucket has not stored a place in the queue for this one, "lockctl doctor" finds out why`)
}

// A lock that is wanted again inside its own command is refused: it would wait for itself.
func TestRunNested(t *testing.T) {
	t.Parallel()
	s, other := serve(t), serve(t)
	nested := func(outer, inner []string) (int, string) {
		t.Helper()
		args := append(append([]string{"run", "--ttl", "20s"}, outer...), "--", binary)
		code, _, errs := run(t, s, append(args, inner...)...)
		return code, errs
	}
	const refused = "is held for the command that this one is a part of (LOCK_TOKEN="
	for _, c := range [][2][]string{
		{{"x"}, {"run", "x", "--", "true"}},
		{{"x"}, {"run", "-w", "60", "x", "--", "true"}},
		{{"x"}, {"acquire", "x"}},
		{{"--write", "x"}, {"run", "--read", "x", "--", "true"}},
		{{"--read", "x"}, {"run", "--write", "x", "--", "true"}},
	} {
		code, errs := nested(c[0], c[1])
		require.Equal(t, 64, code, "%q: %s", c, errs)
		require.Contains(t, errs, "lock x "+refused, "%q", c)
	}
	// Other locks in between hide nothing.
	for _, c := range [][2][]string{
		{{"x"}, {"run", "y", "--", binary, "run", "x", "--", "true"}},
		{{"x"}, {"run", "y", "--", binary, "acquire", "x"}},
		{{"x"}, {"elect", "y", "--once", "--", binary, "elect", "x", "--", "true"}},
		{{"--read", "x"}, {"run", "x", "--", binary, "run", "--write", "x", "--", "true"}},
		{{"--permits", "1", "x"}, {"run", "--permits", "1", "x", "--", "true"}},
		{{"--permits", "2", "x"}, {"run", "--permits", "2", "x", "--", binary, "run", "--permits", "2", "x", "--", "true"}},
	} {
		code, errs := nested(c[0], c[1])
		require.Equal(t, 64, code, "%q: %s", c, errs)
		require.Contains(t, errs, "It would wait for itself", "%q", c)
	}
	for _, c := range [][2][]string{
		{{"x"}, {"run", "y", "--", "true"}},
		{{"x"}, {"run", "--write", "x", "--", "true"}},
		{{"--read", "x"}, {"run", "--read", "x", "--", "true"}},
		{{"--permits", "2", "x"}, {"run", "y", "--", binary, "run", "--permits", "2", "x", "--", "true"}},
		{{"x"}, {"-s", other.URL(), "run", "x", "--", "true"}},
		{{"--permits", "2", "x"}, {"run", "--permits", "2", "x", "--", "true"}},
	} {
		code, errs := nested(c[0], c[1])
		require.Zero(t, code, "%q: %s", c, errs)
	}
	code, errs := nested([]string{"x"}, []string{"run", "-n", "x", "--", "true"})
	require.Equal(t, 1, code, errs)
	require.Contains(t, errs, "is held by")
}
