//go:build unix

package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"
)

// guard is a second process of lockctl that watches the first. Nothing that
// lockctl could do itself helps against its own KILL: the system ends the
// command (on Linux), but not what the command has started, and that would go on
// without the lock.
//
// The two are joined by a pipe. Over it the guard is told until when the group
// may live; when it ends, lockctl is dead, and the guard ends the group. A guard
// that is no longer needed is killed before its pipe is closed.
type guard struct {
	pipe *os.File
	proc *os.Process
}

// startGuard starts the guard of a process group, or returns nil, which is a
// guard that does nothing: a command under a lock without a guard is better than
// no command.
func startGuard(pgid int) *guard {
	self, err := os.Executable()
	if err != nil {
		return nil
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil
	}
	defer r.Close()
	cmd := &exec.Cmd{
		Path: self, Args: []string{"lockctl", "guard", fmt.Sprint(pgid)},
		Env: []string{}, Dir: "/", Stdin: r,
		// Out of reach of the terminal and of signals to lockctl's group.
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if cmd.Start() != nil {
		w.Close()
		return nil
	}
	return &guard{w, cmd.Process}
}

// until tells until when the group may live, and how long from TERM to KILL.
func (g *guard) until(deadline time.Time, grace time.Duration) {
	if g != nil {
		fmt.Fprintln(g.pipe, deadline.UnixMilli(), grace.Milliseconds())
	}
}

func (g *guard) dismiss() {
	if g != nil {
		_ = g.proc.Kill()
		_, _ = g.proc.Wait() // not everywhere is there an init to do that
		g.pipe.Close()
	}
}

type guardCmd struct {
	Group int `arg:""`
}

func (c *guardCmd) Run(*globals) error {
	if c.Group <= 1 || isTerminal(os.Stdin) {
		return usagef("guard is started by lockctl run")
	}
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	var deadline, grace int64
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		_, _ = fmt.Sscan(lines.Text(), &deadline, &grace)
	}
	j := &job{pid: c.Group}
	j.terminate()
	kill := time.UnixMilli(deadline)
	if end := time.Now().Add(time.Duration(grace) * time.Millisecond); end.Before(kill) {
		kill = end
	}
	for j.alive() && time.Now().Before(kill) {
		time.Sleep(groupPoll)
	}
	j.kill()
	return nil
}
