package supervise

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
)

// onlyZombies reports whether a process group consists only of ended processes that no
// parent has collected. In a container without an init they stay forever, and the group
// accepts signals as if it were alive.
func onlyZombies(pgid int) bool {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil || len(stats) == 0 {
		return false
	}
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // ended meanwhile
		}
		// The format is "pid (name) state ppid pgrp ...", with any text as the name.
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		if len(fields) < 3 || string(fields[2]) != strconv.Itoa(pgid) {
			continue
		}
		if state := fields[0][0]; state != 'Z' && state != 'X' {
			return false
		}
	}
	return true
}
