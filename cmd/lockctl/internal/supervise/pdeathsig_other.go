//go:build unix && !linux

package supervise

import "syscall"

// dieWithParent does nothing: there is no such thing here. The guard remains.
func dieWithParent(*syscall.SysProcAttr) {}
