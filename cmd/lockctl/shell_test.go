//go:build unix

package main_test

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRunShellIsEnded checks that losing the lock ends a shell together with its child processes.
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

// TestRunAsFlock checks that a shell command line has the same output and exit code as under flock.
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
