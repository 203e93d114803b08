package console

import (
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/charmbracelet/x/ansi"
)

// StatusLine is the line at the bottom of the terminal that says what lockctl waits for.
type StatusLine struct {
	w    io.Writer  // standard error
	mu   sync.Mutex // also while it writes: a message and the line must not mix
	text string     // as it is on the terminal
}

const clearLine = "\r\x1b[K"

// Show replaces the line. An empty text removes it.
func (l *StatusLine) Show(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if text != "" {
		columns := 80
		if f := Terminal(l.w); f != nil {
			columns, _ = TerminalSize(f)
		}
		text = ansi.Truncate(text, max(columns-len("^C "), 0), "...") // the terminal echoes that behind it
	}
	l.draw(text)
}

// draw writes the line. Under mu.
func (l *StatusLine) draw(text string) {
	if l.text != "" || text != "" {
		fmt.Fprint(l.w, clearLine+text)
	}
	l.text = text
}

// above prints something instead of the line, which follows it.
func (l *StatusLine) above(print func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := l.text
	l.draw("")
	print()
	l.draw(text)
}

// OnForeground reports whether a stream is the terminal of this process, which has it for itself.
func OnForeground(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && inForeground(f)
}
