//go:build unix && !solaris && !aix

package session

import (
	"os"

	"golang.org/x/sys/unix"
)

// lockFile locks the file at path, creating it if necessary. It fails immediately if the file
// is already locked. The lock always ends with the process.
func lockFile(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}
