//go:build unix

package main_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/record"
)

// TestRunReadersAndWriter checks that two readers hold the lock simultaneously, because each of
// their commands ends only after it has seen the other, and that a writer waits for both and then
// excludes all others.
func TestRunReadersAndWriter(t *testing.T) {
	t.Parallel()
	s := serve(t)
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	reader := func(me, other string) *process {
		return start(t, s, "run", "--read", "x", "--", "sh", "-c", `
			echo $LOCK_TOKEN > `+file(me)+`
			until test -e `+file(other)+`; do sleep 0.01; done
			echo > `+file(me+".met")+`
			until test -e `+file(me+".go")+`; do sleep 0.01; done
			test ! -e `+file("writing")+` && date +%s%N > `+file(me+".end"))
	}
	a, b := reader("a", "b"), reader("b", "a")
	contents(t, file("a.met"))
	contents(t, file("b.met"))
	writer := start(t, s, "run", "--write", "x", "--", "sh", "-c", `
		date +%s%N > `+file("begin")+`
		echo $LOCK_TOKEN > `+file("writing")+`
		until test -e `+file("w.go")+`; do sleep 0.01; done
		rm `+file("writing"))
	l := await(t, s, "x", "a writer before which nobody gets in", func(l lock) bool { return l.WriterWaits })
	require.Len(t, l.Readers, 2)
	late := start(t, s, "run", "--read", "x", "--", "sh", "-c", "test ! -e "+file("writing")+" && echo $LOCK_TOKEN")
	awaitQueue(t, s, "x", 1)
	for _, flag := range []string{"--read", "--write"} {
		code, _, errs := run(t, s, "run", flag, "-n", "x", "--", "true")
		require.Equal(t, 1, code, flag)
		require.Contains(t, errs, `lock "x" is held by`)
	}

	require.NoError(t, os.WriteFile(file("a.go"), nil, 0o600))
	require.Zero(t, a.wait())
	await(t, s, "x", "one reader", func(l lock) bool { return len(l.Readers) == 1 })
	require.NoFileExists(t, file("begin"), "over the second reader")
	require.NoError(t, os.WriteFile(file("b.go"), nil, 0o600))
	require.Zero(t, b.wait(), "no writer was in")
	token := number(t, file("writing"))
	require.Greater(t, number(t, file("begin")), max(number(t, file("a.end")), number(t, file("b.end"))))
	require.Greater(t, token, max(number(t, file("a")), number(t, file("b"))))
	l = await(t, s, "x", "the writer", func(l lock) bool { return !l.WriterWaits })
	require.Equal(t, "exclusive", l.Mode)
	require.Len(t, l.Queue, 1)
	code, _, errs := gaveUp(t, s, "run", "--read", "x", "--", "true")
	require.Equal(t, 1, code, errs)
	code, _, errs = run(t, s, "run", "-n", "x", "--", "true")
	require.Zero(t, code, "the mutex of that name is another lock: %s", errs)

	require.NoError(t, os.WriteFile(file("w.go"), nil, 0o600))
	require.Zero(t, writer.wait())
	require.Zero(t, late.wait(), "beside the writer")
	require.Greater(t, strings.TrimSpace(late.out.String()), uintString(uint64(token)))
	require.Empty(t, locks(t, s, "ls"))
}

// TestRunWriteGivesUp checks that a writer that gives up no longer holds up other clients.
func TestRunWriteGivesUp(t *testing.T) {
	t.Parallel()
	s := serve(t)
	_, pid := hold(t, s, "x", "--read")
	code, out, errs := gaveUp(t, s, "run", "--write", "x", "--", "echo", "inside")
	require.Equal(t, 1, code)
	require.Empty(t, out)
	require.Contains(t, errs, "gave up")
	free := func() {
		t.Helper()
		code, _, errs = run(t, s, "run", "--read", "-w", "5", "x", "--", "true")
		require.Zero(t, code, "before the lease of 15 s is over: %s", errs)
	}
	free()
	p := start(t, s, "run", "--write", "x", "--", "echo", "inside")
	// Wait for the renewal that the writer makes when it begins to watch its gate, because a
	// deletion that crosses a renewal needs a second try.
	await(t, s, "x", "a waiting writer", func(l lock) bool { return l.WriterWaits && l.Holder.Revision > record.TokenRevision(l.Holder.Token) })
	p.signal(syscall.SIGTERM)
	require.Equal(t, 128+15, p.wait())
	require.Empty(t, p.out.String())
	free()
	require.True(t, running(pid))
}

// TestBreakReader checks that breaking a reader ends that reader's process group only, and that the
// writer behind the readers gets in once the others have finished.
func TestBreakReader(t *testing.T) {
	t.Parallel()
	s := serve(t)
	file := filepath.Join(t.TempDir(), "pids")
	hung := start(t, s, "run", "--read", "--kill-after", "300ms", "x", "--", "sh", "-c", `
		sh -c 'trap "" TERM; echo $$ > `+file+`.stubborn; while :; do sleep 1; done' &
		echo $$ > `+file+`; wait`)
	child, stubborn := int(number(t, file)), int(number(t, file+".stubborn"))
	_, pid := hold(t, s, "x", "--read", "--meta", "who=other")
	l := locks(t, s, "info", "x")[0]
	require.Len(t, l.Readers, 2)
	first, second := l.Readers[0], l.Readers[1]
	require.Equal(t, hung.cmd.Process.Pid, first.PID, "in the order of their tokens")
	require.Equal(t, map[string]string{"who": "other"}, second.Meta)
	writer := start(t, s, "run", "--write", "x", "--", "echo", "inside")
	gate := await(t, s, "x", "a waiting writer", func(l lock) bool { return l.WriterWaits }).Holder

	for _, c := range []struct {
		code int
		says string
		args []string
	}{
		{64, "several holders: choose one with --id", nil},
		{64, "several holders", []string{"--kind", "rw"}},
		{64, "id is empty", []string{"--id", ""}},
		{1, "mutex x is free", []string{"--id", first.ID, "--kind", "mutex"}},
		{64, "must be mutex, rw or semaphore", []string{"--kind", "rwlock"}},
		{1, "no holder of x has an id that begins with none", []string{"--id", "none"}},
		{1, "no holder of x", []string{"--id", gate.ID + "A"}},
		{1, "mutex x is free", []string{"--kind", "mutex"}},
	} {
		code, out, errs := run(t, s, append([]string{"break", "-f", "x"}, c.args...)...)
		require.Equal(t, c.code, code, "%q: %s", c.args, errs)
		require.Contains(t, errs, c.says, "%q", c.args)
		if c.says == "several holders" {
			for _, h := range []holder{first, second, *gate} {
				require.Regexp(t, uintString(h.Token)+` +`+h.ID, out)
			}
			require.Contains(t, out, "(waits for readers)")
		}
	}
	for _, h := range append(locks(t, s, "info", "x")[0].Readers, *gate) {
		require.Nil(t, h.Broken)
	}

	prefix := first.ID[:1]
	for strings.HasPrefix(second.ID, prefix) || strings.HasPrefix(gate.ID, prefix) {
		prefix = first.ID[:len(prefix)+1]
	}
	code, out, errs := run(t, s, "break", "--id", prefix, "x")
	require.Equal(t, 64, code, "nobody to ask")
	require.Contains(t, errs, "--force")
	require.Contains(t, out, first.ID, "shown before it is broken")
	require.NotContains(t, out, second.ID)
	code, out, errs = run(t, s, "break", "-f", "--reason", "it hangs", "--id", prefix, "x")
	require.Zero(t, code, errs)
	require.Contains(t, out, first.ID)
	require.Contains(t, out, "broken: ")
	require.Equal(t, 75, hung.wait())
	require.Regexp(t, `broken by an operator: by \S+@\S+: it hangs`, hung.err.String())
	gone(t, child)
	gone(t, stubborn)

	l = await(t, s, "x", "one reader", func(l lock) bool { return len(l.Readers) == 1 })
	require.Equal(t, second.ID, l.Readers[0].ID)
	require.Nil(t, l.Readers[0].Broken)
	require.True(t, l.WriterWaits)
	require.True(t, running(pid), "the other reader goes on")
	require.Empty(t, writer.out.String())
	code, _, errs = run(t, s, "break", "-f", "--now", "--id", second.ID, "x")
	require.Zero(t, code, errs)
	gone(t, pid)
	require.Zero(t, writer.wait())
	require.Equal(t, "inside\n", writer.out.String())
}

// TestBreakWriter checks that a writer can be broken without choosing a holder, because it is the
// only one. A writer broken while it waits for readers gives way and gets in later.
func TestBreakWriter(t *testing.T) {
	t.Parallel()
	s := serve(t)
	p, pid := hold(t, s, "x", "--write")
	code, out, errs := run(t, s, "break", "-f", "--reason", "it hangs", "x")
	require.Zero(t, code, errs)
	require.Contains(t, out, "rw x\n")
	require.Contains(t, out, "writer")
	require.Equal(t, 75, p.wait())
	require.Contains(t, p.err.String(), "it hangs")
	require.False(t, running(pid))
	require.Empty(t, locks(t, s, "ls"))

	reader, _ := hold(t, s, "x", "--read")
	writer := start(t, s, "run", "--write", "x", "--", "echo", "inside")
	gate := await(t, s, "x", "a waiting writer", func(l lock) bool { return l.WriterWaits }).Holder
	behind := start(t, s, "run", "--read", "x", "--", "true")
	awaitQueue(t, s, "x", 1)
	code, out, errs = run(t, s, "break", "-f", "--id", gate.ID, "x")
	require.Zero(t, code, errs)
	require.Contains(t, out, "for the readers to leave")
	require.Contains(t, out, "gives way")
	await(t, s, "x", "another place of the writer", func(l lock) bool { return l.Holder == nil || l.Holder.Token != gate.Token })
	require.Empty(t, writer.out.String())
	reader.signal(syscall.SIGTERM)
	require.Equal(t, 128+15, reader.wait())
	require.Zero(t, behind.wait())
	require.Zero(t, writer.wait(), "it had queued again")
	require.Empty(t, locks(t, s, "ls"))
}
