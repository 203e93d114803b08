package supervise

import "syscall"

// dieWithParent has the system kill the child when lockctl dies: also by KILL,
// and also when the guard died with it.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
