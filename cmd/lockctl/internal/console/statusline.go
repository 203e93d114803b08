package console

import (
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/charmbracelet/x/ansi"
)

// StatusLine is the line at the bottom of the terminal that shows what lockctl is waiting for.
type StatusLine struct {
	w    io.Writer  // standard error
	mu   sync.Mutex // held while writing, so that messages and the line do not mix
	text string     // as shown on the terminal
}

const clearLine = "\r\x1b[K"

// Show replaces the line. If text is empty, Show removes the line.
func (l *StatusLine) Show(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if text != "" {
		columns := 80
		if f := Terminal(l.w); f != nil {
			columns, _ = TerminalSize(f)
		}
		text = ansi.Truncate(text, max(columns-len("^C "), 0), "...") // the terminal echoes "^C" after the text
	}
	l.draw(text)
}

// draw writes the line. The caller must hold mu.
func (l *StatusLine) draw(text string) {
	if l.text != "" || text != "" {
		fmt.Fprint(l.w, clearLine+text)
	}
	l.text = text
}

// above clears the line, calls print, and draws the line again.
func (l *StatusLine) above(print func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := l.text
	l.draw("")
	print()
	l.draw(text)
}

// OnForeground reports whether stream is a terminal on which this process is in the foreground.
func OnForeground(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && inForeground(f)
}
