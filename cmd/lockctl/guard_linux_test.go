package main_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
)

// guardOf returns the pid of a lockctl's guard; 0: there is none.
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

// A guard that is killed gets a successor.
func TestGuardKilled(t *testing.T) {
	t.Parallel()
	s := serve(t)
	file := filepath.Join(t.TempDir(), "pid")
	p := start(t, s, "run", "x", "--", "sh", "-c", "sh -c 'echo $$ > "+file+"; exec sleep 60' & wait")
	stranger := int(number(t, file)) // that dies with nobody by itself
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

// A binary that was replaced, or is gone, while lockctl waited has a guard all the same: the one
// that it was.
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

// guarded starts a guard that waits for orders, and a group for it whose only
// process ends with code 7 at a TERM.
func guarded(t *testing.T) (group *exec.Cmd, orders *os.File) {
	t.Helper()
	ready := filepath.Join(t.TempDir(), "ready")
	group = exec.Command("sh", "-c", "trap 'exit 7' TERM; echo > "+ready+"; while :; do sleep 0.01; done")
	group.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.NoError(t, group.Start())
	guard := exec.Command(binary, "guard")
	guard.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	r, orders, err := os.Pipe()
	require.NoError(t, err)
	guard.Stdin = r
	require.NoError(t, guard.Start())
	t.Cleanup(func() {
		_ = syscall.Kill(-group.Process.Pid, syscall.SIGKILL)
		orders.Close()
		_ = guard.Wait()
	})
	_, err = orders.WriteString("nonsense\n")
	require.NoError(t, err)
	kit.Eventually(t, "that the guard reads", func() bool {
		n, err := unix.IoctlGetInt(int(r.Fd()), unix.TIOCINQ)
		return err == nil && n == 0
	})
	require.NoError(t, r.Close())
	contents(t, ready)
	return group, orders
}

// ended returns how a process ended.
func ended(t *testing.T, cmd *exec.Cmd) *os.ProcessState {
	t.Helper()
	done := make(chan struct{})
	go func() { _ = cmd.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(kit.Patience):
		t.Fatal("the group does not end")
	}
	return cmd.ProcessState
}

// in is the instant after d, as the guard's orders have it.
func in(t *testing.T, d time.Duration) int64 {
	var ts unix.Timespec
	require.NoError(t, unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts))
	return ts.Nano() + d.Nanoseconds()
}

// Orders name instants: those that arrive late are carried out at once.
func TestGuardLateOrders(t *testing.T) {
	t.Parallel()
	group, orders := guarded(t)
	_, err := fmt.Fprintln(orders, group.Process.Pid, in(t, -time.Second), in(t, -time.Millisecond), int64(time.Hour))
	require.NoError(t, err)
	require.Equal(t, syscall.SIGKILL, ended(t, group).Sys().(syscall.WaitStatus).Signal())
}

// A guard that was itself stopped finds old orders, and newer ones behind them:
// only those count. At the end of the orders lockctl is dead.
func TestGuardNewerOrders(t *testing.T) {
	t.Parallel()
	group, orders := guarded(t)
	pid, past, future := group.Process.Pid, in(t, -time.Second), in(t, time.Hour)
	_, err := fmt.Fprintf(orders, "%d %d %d 0\n%d %d %d %d\n", pid, past, past, pid, future, future, int64(time.Hour))
	require.NoError(t, err)
	require.NoError(t, orders.Close())
	state := ended(t, group)
	require.Equal(t, 7, state.ExitCode(), "a TERM, and no KILL: %v", state)
}
