//go:build !unix

package console

import "os"

// IsTerminal reports whether f is a character device, usually a terminal.
func IsTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// TerminalSize returns a guess.
func TerminalSize(*os.File) (columns, lines int) { return 80, 24 }

func inForeground(f *os.File) bool { return IsTerminal(f) }
