package main_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
)

// guardOf returns the PID of the guard that belongs to a lockctl process, or 0 if there is none.
func guardOf(lockctl int) int {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		if len(fields) < 2 || string(fields[0]) == "Z" || string(fields[1]) != strconv.Itoa(lockctl) {
			continue
		}
		if args, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline")); bytes.HasPrefix(args, []byte("natslock-guard\x00guard\x00")) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			return pid
		}
	}
	return 0
}

// TestGuardKilled checks that lockctl replaces a killed guard.
func TestGuardKilled(t *testing.T) {
	t.Parallel()
	s := serve(t)
	file := filepath.Join(t.TempDir(), "pid")
	p := start(t, s, "run", "x", "--", "sh", "-c", "sh -c 'echo $$ > "+file+"; exec sleep 60' & wait")
	stranger := int(number(t, file)) // a grandchild that only the guard will kill
	var first, second int
	kit.Eventually(t, "a guard", func() bool { first = guardOf(p.cmd.Process.Pid); return first != 0 })
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", first))
	require.NoError(t, err)
	require.NotContains(t, string(name), "lockctl", "what kills lockctl by name would kill the guard too")
	require.NoError(t, syscall.Kill(first, syscall.SIGKILL))
	kit.Eventually(t, "another guard", func() bool { second = guardOf(p.cmd.Process.Pid); return second != 0 && second != first })
	require.True(t, running(stranger))
	p.signal(syscall.SIGKILL)
	p.wait()
	gone(t, stranger)
	gone(t, second)
}

// TestBinaryReplaced checks that lockctl can still start its guard if its binary was replaced or
// deleted while it waited: the guard runs the original binary.
func TestBinaryReplaced(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	s := serve(t)
	for _, by := range []string{"", "#!/bin/sh\nexit 9\n"} {
		holder, pid := hold(t, s, "x")
		old := filepath.Join(t.TempDir(), "lockctl")
		require.NoError(t, os.Link(binary, old))
		file := filepath.Join(t.TempDir(), "pid")
		p := startFrom(t, old, s, "", nil, "run", "x", "--", "sh", "-c", "echo $$ > "+file+"; exec sleep 600")
		awaitQueue(t, s, "x", 1)
		require.NoError(t, os.Remove(old))
		if by != "" {
			require.NoError(t, os.WriteFile(old, []byte(by), 0o700))
		}
		require.NoError(t, syscall.Kill(pid, syscall.SIGTERM))
		holder.wait()
		child := int(number(t, file))
		kit.Eventually(t, "a guard", func() bool { return guardOf(p.cmd.Process.Pid) != 0 })
		require.Empty(t, p.err.String())
		require.NoError(t, syscall.Kill(child, syscall.SIGTERM))
		p.wait()
	}
}
