//go:build unix

package supervise

import (
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natslock/locks/cmd/lockctl/internal/console"
	"github.com/natslock/locks/internal/tool"
)

var (
	platformRequests = []os.Signal{syscall.SIGHUP, syscall.SIGQUIT}
	platformMessages = []os.Signal{syscall.SIGUSR1, syscall.SIGUSR2}
)

// job is a command in its own process group. It behaves like a shell's job: it gets the
// terminal if lockctl has it, and when the user stops it, lockctl stops too. Apart from send,
// its methods must be called from a single goroutine.
type job struct {
	complain func(format string, args ...any)
	pid      int
	ended    <-chan int            // receives the exit code once
	stopped  <-chan syscall.Signal // receives the signals that stop the command

	guard     *guard // nil if there is none
	unguarded bool   // no guard could be started, and the user has been told

	tty    *os.File // nil without a controlling terminal
	given  bool     // the group has been given the terminal
	noStop chan os.Signal
}

// startJob starts the command in a separate goroutine, which then waits for it to end.
func startJob(cmd *exec.Cmd, complain func(format string, args ...any)) (*job, error) {
	ended, stopped, started := make(chan int, 1), make(chan syscall.Signal, 1), make(chan error)
	j := &job{complain: complain, ended: ended, stopped: stopped}
	j.tty, _ = os.OpenFile("/dev/tty", os.O_RDWR, 0)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if j.interactive() {
		if runtime.GOMAXPROCS(0) == 1 {
			runtime.GOMAXPROCS(2) // see awaitStart
		}
		cmd.SysProcAttr.Foreground, cmd.SysProcAttr.Ctty = true, int(j.tty.Fd())
		j.given = true
	}
	// Handle the terminal's stop key, so that lockctl can stop the command before it stops
	// itself: the command must never run while lockctl cannot renew the lock.
	j.noStop = make(chan os.Signal, 1)
	if !signal.Ignored(syscall.SIGTSTP) {
		signal.Notify(j.noStop, syscall.SIGTSTP)
	}
	// Without this, writing a message to a standard error that nobody reads would kill lockctl
	// while the command is running. The command itself keeps the default action.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	j.guard, _ = startGuard() // first, so that the command never runs without a guard
	go func() {
		err := cmd.Start()
		if err == nil {
			j.pid = cmd.Process.Pid
		}
		started <- err
		if err == nil {
			wait(j.pid, ended, stopped)
			_ = cmd.Process.Release()
		}
	}()
	if err := j.awaitStart(started); err != nil {
		j.close()
		return nil, err
	}
	go func() {
		for range j.noStop {
			j.send(syscall.SIGTSTP)
		}
	}()
	return j, nil
}

// startPoll is how often awaitStart checks on a command that has not started yet.
const startPoll = 20 * time.Millisecond

// awaitStart returns when the command is running or has failed to start.
//
// Between fork and exec the child is still a copy of lockctl, but it already owns the terminal,
// so ^Z stops it. Nobody is waiting for the child yet, because the thread that forked it blocks
// until the exec. awaitStart therefore continues the group that owns the terminal, and the ^Z
// is lost.
func (j *job) awaitStart(started <-chan error) error {
	if !j.given {
		return <-started
	}
	poll := time.NewTicker(startPoll)
	defer poll.Stop()
	for {
		select {
		case err := <-started:
			return err
		case <-poll.C:
			if pgrp, err := unix.IoctlGetInt(int(j.tty.Fd()), unix.TIOCGPGRP); err == nil && pgrp > 1 && pgrp != syscall.Getpgrp() {
				_ = syscall.Kill(-pgrp, syscall.SIGCONT)
			}
		}
	}
}

// wait reports when the child stops and when it ends. If lockctl is the first process of a
// container, it inherits all orphans, and wait reaps them.
func wait(pid int, ended chan<- int, stopped chan<- syscall.Signal) {
	children := pid
	if os.Getpid() == 1 {
		children = -1
	}
	for {
		var ws syscall.WaitStatus
		of, err := syscall.Wait4(children, &ws, syscall.WUNTRACED, nil)
		switch {
		case err == syscall.EINTR, err == nil && of != pid:
		case err != nil:
			ended <- tool.ExitInternal
			return
		case ws.Exited():
			ended <- ws.ExitStatus()
			return
		case ws.Signaled():
			ended <- tool.ExitSignal + int(ws.Signal())
			return
		case ws.Stopped():
			select {
			case stopped <- ws.StopSignal():
			default: // one is enough
			}
		}
	}
}

func (j *job) send(sig syscall.Signal) { _ = syscall.Kill(-j.pid, sig) }

// signal passes a signal on to the group.
func (j *job) signal(sig os.Signal) { j.send(sig.(syscall.Signal)) }

// terminate asks the group to end. It also continues the group, because a stopped process does
// not handle TERM until it is continued.
func (j *job) terminate() {
	j.send(syscall.SIGTERM)
	j.send(syscall.SIGCONT)
}

func (j *job) kill() { j.send(syscall.SIGKILL) }

// alive reports whether any process of the group is left.
func (j *job) alive() bool {
	return syscall.Kill(-j.pid, 0) != syscall.ESRCH && !onlyZombies(j.pid)
}

// close takes the terminal back and dismisses the guard.
func (j *job) close() {
	signal.Stop(j.noStop)
	close(j.noStop)
	j.takeTerminal()
	if j.tty != nil {
		j.tty.Close()
	}
	if j.guard != nil {
		j.guard.dismiss()
	}
}

// interactive reports whether the command gets the terminal when it starts. It does so only if
// lockctl has the terminal and is not part of a pipeline, whose other processes would lose the
// terminal.
func (j *job) interactive() bool {
	return j.inForeground() && console.IsTerminal(os.Stdin) && console.IsTerminal(os.Stdout)
}

// inForeground reports whether lockctl's own group has the terminal.
func (j *job) inForeground() bool {
	if j.tty == nil {
		return false
	}
	pgrp, err := unix.IoctlGetInt(int(j.tty.Fd()), unix.TIOCGPGRP)
	return err == nil && pgrp == syscall.Getpgrp()
}

func (j *job) giveTerminal() {
	j.given = unix.IoctlSetPointerInt(int(j.tty.Fd()), unix.TIOCSPGRP, j.pid) == nil
}

// takeTerminal takes the terminal back from the group if the group still has it. The kernel
// stops a background process that tries this unless the process ignores SIGTTOU, so
// takeTerminal ignores that signal from here on. Nothing else in lockctl needs it.
func (j *job) takeTerminal() {
	if !j.given {
		return
	}
	j.given = false
	if pgrp, err := unix.IoctlGetInt(int(j.tty.Fd()), unix.TIOCGPGRP); err != nil || pgrp != j.pid {
		return
	}
	signal.Ignore(syscall.SIGTTOU)
	_ = unix.IoctlSetPointerInt(int(j.tty.Fd()), unix.TIOCSPGRP, syscall.Getpgrp())
}

// suspend handles a command that was stopped by sig.
//
// A command that was stopped because it wants the terminal gets it if lockctl has it. Otherwise
// the user wants to stop the job, and the shell is waiting for lockctl to stop. While lockctl
// is stopped, it does not renew the lease, and the guard ends the group before the lock's
// validity ends. If lockctl is continued in time, it continues the command, but only if it
// still has the lock.
//
// lockctl ignores any other stop.
func (j *job) suspend(sig syscall.Signal, held func() bool) {
	give := j.given
	switch sig {
	case syscall.SIGTTIN, syscall.SIGTTOU:
		give = true
		if !j.inForeground() {
			j.stopSelf()
		}
	case syscall.SIGTSTP:
		j.takeTerminal()
		j.stopSelf()
	default:
		return
	}
	if !held() {
		return // terminate will continue the command
	}
	if give && j.inForeground() {
		j.giveTerminal()
	}
	j.send(syscall.SIGCONT)
}

// stopSelf stops lockctl's own group, as the terminal would have done, and returns when the
// group is continued. If there is no shell to continue the group, the group is orphaned and the
// kernel does not let the terminal's signals stop it, so stopSelf returns after a short wait.
//
// It sends TTIN rather than TSTP, because Go's runtime keeps TSTP from stopping a process that
// has asked to be notified of it.
func (j *job) stopSelf() {
	cont := make(chan os.Signal, 1)
	signal.Notify(cont, syscall.SIGCONT)
	defer signal.Stop(cont)
	_ = syscall.Kill(0, syscall.SIGTTIN)
	select {
	case <-cont:
	case <-time.After(100 * time.Millisecond):
	}
}
