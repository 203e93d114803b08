package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/charmbracelet/x/ansi"

	"github.com/natslock/locks/natslock"
)

// waitNotice is how long lockctl waits for a lock before it says so, and how often it
// repeats that on a terminal.
const waitNotice = time.Second

// noticed says that lockctl waits, for whom and at which place, when that takes a while:
// on a terminal in a line that is kept up to date, elsewhere once. stop ends that, and
// removes the line, before lockctl goes on.
func (s *session) noticed(ctx context.Context, kind natslock.Kind, name string) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	live := onForeground(s.stderr) && s.getenv("TERM") != "dumb"
	go func() {
		defer close(done)
		defer s.status.show("")
		tick := time.NewTicker(waitNotice)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			info, err := s.Inspect(ctx, kind, name)
			if ctx.Err() != nil {
				return
			}
			blocked, place := waitText(info, err)
			if live {
				if !onForeground(s.stderr) { // by now another job has the terminal
					continue
				}
				if place != "" {
					place = ", " + place
				}
				s.status.show(fmt.Sprintf("lockctl: waiting for lock %s%s: %s", plain(name), place, blocked))
				continue
			}
			if place != "" {
				blocked += "; " + place + " in the queue"
			}
			s.complain("waiting for lock %s: %s", plain(name), blocked)
			return
		}
	}()
	return func() { cancel(); <-done }
}

// waitText is what this process waits for, and its place in the queue.
func waitText(info natslock.Info, err error) (blocked, place string) {
	if err != nil {
		return err.Error(), ""
	}
	host, _ := os.Hostname()
	self := func(h string, pid int) bool { return pid == os.Getpid() && h == host }
	n, all := 0, 0
	for _, w := range info.Queue {
		if self(w.Host, w.PID) {
			n = all + 1
		}
		all += w.Goroutines
	}
	held := holdings(info)
	if len(held) > 1 && held[0].waits && self(held[0].Host, held[0].PID) {
		return "it is next, and waits for " + count(len(held)-1, "reader") + " to leave", ""
	}
	switch {
	case len(held) == 0:
		blocked = "it is free, and the waiters before this one have not taken it"
	case len(held) == 1:
		blocked = fmt.Sprintf("%s has had it for %s", held[0].name(), brief(time.Since(held[0].Since)))
	default:
		blocked = fmt.Sprintf("%s and %d more have it", held[0].name(), len(held)-1)
	}
	if n == 0 {
		return blocked + "; the bucket has not stored a place in the queue for this one, \"lockctl doctor\" finds out why", ""
	}
	return blocked, fmt.Sprintf("place %d of %d", n, all)
}

// statusLine is the line at the bottom of the terminal that says what lockctl waits for.
type statusLine struct {
	w    io.Writer  // standard error
	mu   sync.Mutex // also while it writes: a message and the line must not mix
	text string     // as it is on the terminal
}

const clearLine = "\r\x1b[K"

// show replaces the line. An empty text removes it.
func (l *statusLine) show(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if text != "" {
		columns := 80
		if f := terminal(l.w); f != nil {
			columns, _ = terminalSize(f)
		}
		text = ansi.Truncate(text, max(columns-len("^C "), 0), "...") // the terminal echoes that behind it
	}
	l.draw(text)
}

// draw writes the line. Under mu.
func (l *statusLine) draw(text string) {
	if l.text != "" || text != "" {
		fmt.Fprint(l.w, clearLine+text)
	}
	l.text = text
}

// above prints something in the place of the line, which follows it.
func (l *statusLine) above(print func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := l.text
	l.draw("")
	print()
	l.draw(text)
}

// onForeground says whether a stream is the terminal of this process, which has it for itself.
func onForeground(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && inForeground(f)
}
