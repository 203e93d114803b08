//go:build unix

package main_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
)

// TestRunStopped checks that the guard ends the whole process group of a suspended lockctl, which
// cannot do so itself, before the next holder starts.
func TestRunStopped(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	s := serve(t)
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	p := start(t, s, "run", "--ttl", "5s", "x", "--", "sh", "-c", `
		trap 'echo > `+file("asked")+`' TERM
		sh -c 'trap "" TERM; echo $$ > `+file("stubborn")+`; while :; do date +%s%N >> `+file("beats")+`; sleep 0.01; done' &
		while :; do wait; done`)
	stubborn := int(number(t, file("stubborn")))
	next := start(t, s, "run", "x", "--", "sh", "-c", "date +%s%N > "+file("began")+"; sleep 0.2")
	awaitQueue(t, s, "x", 1)
	pause(t, p)

	require.Zero(t, next.wait(), next.err)
	alone := time.Duration(number(t, file("began")) - number(t, file("beats")))
	t.Logf("the next holder starts %v after the last sign of life", alone)
	require.Positive(t, alone, "both work")
	require.FileExists(t, file("asked"), "a TERM before the KILL")
	require.False(t, running(stubborn))
	p.signal(syscall.SIGCONT)
	require.Equal(t, 75, p.wait())
	require.Contains(t, p.err.String(), "lock lost")
}

// TestRunStoppedUntilTerm checks that a lockctl resumed after the guard's TERM, while the lock is
// still valid, keeps the lock and gives the command time to exit.
func TestRunStoppedUntilTerm(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	s := serve(t)
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	// KILL follows a second after TERM. A shell that waits runs its trap immediately, even on a
	// busy machine, because it needs no other process.
	p := start(t, s, "run", "--ttl", "5s", "x", "--", "sh", "-c", `
		trap 'echo > `+file("asked")+`' TERM
		echo $$ > `+file("child")+`
		sleep 1000 & wait
		while ! test -e `+file("go")+`; do sleep 0.01; done`)
	child := int(number(t, file("child")))
	first := locks(t, s, "info", "x")[0].Holder.Revision
	// The command may start before the guard has its orders, but a renewal implies that it has
	// them.
	await(t, s, "x", "a renewal", func(l lock) bool { return l.Holder != nil && l.Holder.Revision > first })
	pause(t, p)
	contents(t, file("asked"))
	p.signal(syscall.SIGCONT)
	at := locks(t, s, "info", "x")[0].Holder.Revision
	for range 2 {
		before := at
		at = await(t, s, "x", "a renewal", func(l lock) bool { return l.Holder != nil && l.Holder.Revision > before }).Holder.Revision
	}
	require.True(t, running(child))
	require.NoError(t, os.WriteFile(file("go"), nil, 0o600))
	require.Equal(t, 75, p.wait())
	require.Contains(t, p.err.String(), "the guard has ended the command")
	require.Empty(t, locks(t, s, "ls"))
}

// TestRunOutageOneSignal checks that a running lockctl ends the command itself, without an
// additional signal from the guard.
func TestRunOutageOneSignal(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	s := serve(t)
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	// Here too, KILL follows a second after TERM.
	p := start(t, s, "run", "--ttl", "10s", "x", "--", "sh", "-c", `
		trap 'echo TERM >> `+file("signals")+`' TERM
		echo $$ > `+file("child")+`
		while :; do sleep 1000 & wait; done`)
	child := int(number(t, file("child")))
	s.Stop()
	gone(t, child)
	require.Equal(t, 75, p.wait())
	require.Equal(t, "TERM", contents(t, file("signals")))
	require.Contains(t, p.err.String(), "lock lost")
	require.NotContains(t, p.err.String(), "guard")
}

// TestRunOnceBehindStopped checks that while the first waiter of a free lock is suspended, -n
// always reports that the lock has a queue.
func TestRunOnceBehindStopped(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	s := serve(t)
	for _, kind := range []struct {
		key              string
		wait, try, again []string
	}{
		{key: "lock.x", try: []string{"run", "-n", "x", "--", "true"}, again: []string{"acquire", "-n", "x"}},
		{key: "rw.x", wait: []string{"--write"}, try: []string{"run", "-n", "--write", "x", "--", "true"}, again: []string{"run", "-n", "--read", "x", "--", "true"}},
	} {
		holder, pid := hold(t, s, "x", kind.wait...)
		waiter := start(t, s, slices.Concat([]string{"run"}, kind.wait, []string{"x", "--", "true"})...)
		awaitQueue(t, s, "x", 1)
		pause(t, waiter)
		require.NoError(t, syscall.Kill(pid, syscall.SIGTERM))
		holder.wait()
		stream, err := jetStream(t, s).Stream(t.Context(), "KV_natslock")
		require.NoError(t, err)
		kit.Eventually(t, "the end of the tombstone", func() bool {
			_, err := stream.GetLastMsgForSubject(t.Context(), "$KV.natslock."+kind.key)
			return errors.Is(err, jetstream.ErrMsgNotFound)
		})
		for _, args := range [][]string{kind.try, kind.try, kind.again} {
			code, _, errs := run(t, s, args...)
			require.Equal(t, 1, code, "%q: %s", args, errs)
			require.Equal(t, "lockctl: lock \"x\" has a queue, 1 waiting\n", errs, "%q", args)
		}
		waiter.signal(syscall.SIGCONT)
		require.Zero(t, waiter.wait(), waiter.err)
	}
}

// TestDemoStandsStill checks that the demo survives a pause of two seconds, which can happen on a
// busy machine.
func TestDemoStandsStill(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	p := start(t, nil, "demo")
	kit.Eventually(t, "a grant", func() bool { return strings.Contains(p.out.String(), "gets the lock, token ") })
	pause(t, p)
	time.Sleep(2 * time.Second)
	p.signal(syscall.SIGCONT)
	require.Zero(t, p.wait(), p.err)
	require.Contains(t, p.out.String(), "19 grants, tokens strictly rising, no overlap, counter 17 of 17")
}

func TestDemo(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	began := time.Now()
	code, out, errs := run(t, nil, "demo")
	require.Zero(t, code, errs)
	within(t, 12*time.Second, time.Since(began))
	require.Equal(t, 19, strings.Count(out, "gets the lock, token "))
	require.Contains(t, out, "after the kill of victim")
	require.Contains(t, out, "is notified")
	require.Contains(t, out, "19 grants, tokens strictly rising, no overlap, counter 17 of 17")
	require.NotContains(t, out, "\x1b")
	require.Empty(t, errs)
}
