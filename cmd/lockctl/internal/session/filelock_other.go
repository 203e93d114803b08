//go:build !unix || solaris || aix

package session

import (
	"os"
)

// lockFile locks path by creating a file next to it, which fails if the file exists. After a
// crash the file has to be removed by hand, so the error names that file.
func lockFile(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	f.Close()
	return func() { os.Remove(path + ".lock") }, nil
}
