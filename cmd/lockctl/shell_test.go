//go:build unix

package main_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A line of a shell runs by $SHELL, or /bin/sh, before and behind the lock's name. Its exit
// code is lockctl's, and it runs under the lock.
func TestRunShell(t *testing.T) {
	t.Parallel()
	s := serve(t)
	shell := filepath.Join(t.TempDir(), "shell")
	require.NoError(t, os.WriteFile(shell, []byte("#!/bin/sh\necho \"by $0 $1\"\nexec sh \"$@\"\n"), 0o755))
	runs := func(env string, args ...string) (int, string, string) {
		t.Helper()
		p := startWith(t, s, "", []string{"SHELL=" + env}, append([]string{"run"}, args...)...)
		code := p.wait()
		return code, p.out.String(), p.err.String()
	}
	for _, args := range [][]string{
		{"x", "-c", `echo "$LOCK_NAME" && exit 7`},
		{"-c", `echo "$LOCK_NAME" && exit 7`, "x"},
		{"x", "--command", `echo "$LOCK_NAME" && exit 7`},
	} {
		code, out, errs := runs("", args...)
		require.Equal(t, 7, code, "%q: %s", args, errs)
		require.Equal(t, "x\n", out, "%q", args)
	}
	code, out, errs := runs(shell, "x", "-c", "false || echo $((1+1))")
	require.Zero(t, code, errs)
	require.Equal(t, "by "+shell+" -c\n2\n", out)
	code, _, errs = runs("", "x", "-c", "")
	require.Zero(t, code, errs)

	// The flag of a command is not lockctl's.
	code, out, errs = runs("", "x", "sh", "-c", "echo inner")
	require.Zero(t, code, errs)
	require.Equal(t, "inner\n", out)
	code, out, errs = runs("", "x", "--", "sh", "-c", "echo inner")
	require.Zero(t, code, errs)
	require.Equal(t, "inner\n", out)

	code, _, errs = runs("", "x", "-c", "true", "--", "true")
	require.Equal(t, 64, code)
	require.Contains(t, errs, "-c and a command exclude each other")
	code, _, errs = runs("", "x")
	require.Equal(t, 64, code)
	require.Contains(t, errs, "a command is missing")
	code, _, errs = runs("/no/such/shell", "x", "-c", "true")
	require.Equal(t, 127, code)
	require.Contains(t, errs, "cannot run /no/such/shell")
}

// lockctl ends the processes of a shell with it when the lock is lost.
func TestRunShellIsEnded(t *testing.T) {
	t.Parallel()
	s := serve(t)
	pid := filepath.Join(t.TempDir(), "pid")
	p := start(t, s, "run", "x", "-c", "sleep 61 & echo $! > "+pid+" && wait")
	child := int(number(t, pid))
	code, _, errs := run(t, s, "break", "-f", "x")
	require.Zero(t, code, errs)
	require.Equal(t, 75, p.wait())
	gone(t, child)
}

// A line of a shell has the output and the exit code that flock has for it.
func TestRunAsFlock(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("flock"); err != nil {
		t.Skip("there is no flock to compare with")
	}
	s := serve(t)
	for _, line := range []string{"echo a && echo b", "exit 3", "kill -9 $$", "false; true"} {
		file := filepath.Join(t.TempDir(), "lock")
		want := exec.Command("flock", file, "-c", line)
		wanted, _ := want.Output()
		code, out, errs := run(t, s, "run", "x", "-c", line)
		require.Equal(t, string(wanted), out, "%s: %s", line, errs)
		require.Equal(t, want.ProcessState.ExitCode(), code, "%s: %s", line, errs)
	}
}
