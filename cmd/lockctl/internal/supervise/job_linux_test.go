package supervise

import (
	"os/exec"
	"syscall"
	"testing"

	"github.com/creack/pty"
	"github.com/stretchr/testify/require"
)

// TestStartStopped checks that a group that owns the terminal is continued if it is stopped before
// it executes the command. Any process can learn which group that is from the terminal's master.
func TestStartStopped(t *testing.T) {
	t.Parallel()
	master, slave, err := pty.Open()
	require.NoError(t, err)
	defer master.Close()
	defer slave.Close()
	child := exec.Command("sleep", "600")
	child.Stdin = slave
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	require.NoError(t, child.Start())
	pid := child.Process.Pid
	defer func() { _ = child.Process.Kill(); _ = child.Wait() }()
	require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	var ws syscall.WaitStatus
	_, err = syscall.Wait4(pid, &ws, syscall.WUNTRACED, nil)
	require.NoError(t, err)
	require.True(t, ws.Stopped())

	started := make(chan error)
	go func() { // waits like the thread that starts the child, until the child is continued
		_, err := syscall.Wait4(pid, &ws, syscall.WCONTINUED, nil)
		started <- err
	}()
	require.NoError(t, (&job{tty: master, given: true}).awaitStart(started))
	require.True(t, ws.Continued())
}
