package supervise

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/natslock/locks/internal/verify/kit"
)

// TestMain runs the guard if a test has started this process as one.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "guard" {
		if err := (&Guard{}).Run(nil); err != nil {
			panic(err)
		}
		return
	}
	os.Exit(m.Run())
}

// guarded starts a guard that waits for orders, and a process group for it to guard. The group's
// only process exits with code 7 on SIGTERM.
func guarded(t *testing.T) (group *exec.Cmd, orders *os.File) {
	t.Helper()
	ready := filepath.Join(t.TempDir(), "ready")
	group = exec.Command("sh", "-c", "trap 'exit 7' TERM; echo > "+ready+"; while :; do sleep 0.01; done")
	group.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.NoError(t, group.Start())
	self, err := os.Executable()
	require.NoError(t, err)
	guard := exec.Command(self, "guard")
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
	kit.Eventually(t, "that the group waits for a TERM", func() bool {
		_, err := os.Stat(ready)
		return err == nil
	})
	return group, orders
}

// ended waits for a process to exit and returns its state.
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

// in returns the time d from now in the form used by the guard's orders.
func in(t *testing.T, d time.Duration) int64 {
	var ts unix.Timespec
	require.NoError(t, unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts))
	return ts.Nano() + d.Nanoseconds()
}

// TestGuardLateOrders checks that orders that arrive late are carried out immediately, because they
// contain absolute times.
func TestGuardLateOrders(t *testing.T) {
	t.Parallel()
	group, orders := guarded(t)
	_, err := fmt.Fprintln(orders, group.Process.Pid, in(t, -time.Second), in(t, -time.Millisecond), int64(time.Hour))
	require.NoError(t, err)
	require.Equal(t, syscall.SIGKILL, ended(t, group).Sys().(syscall.WaitStatus).Signal())
}

// TestGuardNewerOrders checks that a guard that was suspended itself obeys only the latest of the
// orders in its pipe. A closed pipe means that lockctl is dead.
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
