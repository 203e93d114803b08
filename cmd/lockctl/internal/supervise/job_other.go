//go:build !unix

package supervise

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/natslock/locks/cmd/lockctl/internal/session"
	"github.com/natslock/locks/internal/tool"
)

var platformRequests, platformMessages []os.Signal

var started = time.Now()

// now returns the time since the program started. Unlike on Unix, no other process has to
// understand it.
func now() instant { return instant(time.Since(started)) }

// job is a running command. Without process groups and signals it does only the bare minimum:
// when the lock is lost, it kills the command, but not the command's children.
type job struct {
	cmd     *exec.Cmd
	ended   chan int
	stopped chan syscall.Signal // never receives a value
	gone    chan struct{}
}

func startJob(cmd *exec.Cmd, _ func(format string, args ...any)) (*job, error) {
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	j := &job{cmd: cmd, ended: make(chan int, 1), gone: make(chan struct{})}
	go func() {
		code := 0
		var exit *exec.ExitError
		if err := cmd.Wait(); errors.As(err, &exit) {
			code = exit.ExitCode()
		} else if err != nil {
			code = tool.ExitInternal
		}
		close(j.gone)
		j.ended <- code
	}()
	return j, nil
}

func (j *job) signal(sig os.Signal)                { _ = j.cmd.Process.Signal(sig) }
func (j *job) terminate()                          { j.kill() }
func (j *job) kill()                               { _ = j.cmd.Process.Kill() }
func (j *job) suspend(syscall.Signal, func() bool) {}
func (j *job) guardBy(orders) bool                 { return false }
func (j *job) close()                              {}

func (j *job) alive() bool {
	select {
	case <-j.gone:
		return false
	default:
		return true
	}
}

// Guard stands in for the hidden guard command, which is not supported on this system.
type Guard struct{}

// Run returns a usage error.
func (*Guard) Run(*session.Globals) error { return tool.Usagef("there is no guard on this system") }
