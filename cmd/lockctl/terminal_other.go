//go:build !unix

package main

import "os"

// isTerminal says whether f is a character device, which is nearly it.
func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// terminalSize is a guess.
func terminalSize(*os.File) (columns, lines int) { return 80, 24 }

func inForeground(f *os.File) bool { return isTerminal(f) }
