//go:build unix

package main

import (
	"os/exec"
	"syscall"
)

// canStop reports whether this system can stop a process and continue it later.
const canStop = true

// ownGroup lets a program and its children be stopped together.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// stop stops the program and its children, and resume continues them.
func (p *program) stop() error   { return syscall.Kill(-p.cmd.Process.Pid, syscall.SIGSTOP) }
func (p *program) resume() error { return syscall.Kill(-p.cmd.Process.Pid, syscall.SIGCONT) }
