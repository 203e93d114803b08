package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/natslock/locks/cmd/lockctl/internal/console"
	"github.com/natslock/locks/cmd/lockctl/internal/session"
	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/natslock/admin"
)

// waitNotice is how long lockctl waits for a lock before it prints a message, and how often it
// updates that message on a terminal.
const waitNotice = time.Second

// noticed tells the user what lockctl is waiting for, and where it is in the queue, if the wait
// exceeds waitNotice. On a terminal it keeps a status line up to date; elsewhere it prints a
// single message. stop ends the notices and removes the status line before it returns.
func noticed(ctx context.Context, s *session.Session, kind admin.Kind, name string) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	live := console.OnForeground(s.Stderr) && s.Getenv("TERM") != "dumb"
	go func() {
		defer close(done)
		defer s.Status.Show("")
		tick := time.NewTicker(waitNotice)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			info, err := admin.New(s.Client).Inspect(ctx, kind, name)
			if ctx.Err() != nil {
				return
			}
			blocked, place := waitText(info, err)
			if live {
				if !console.OnForeground(s.Stderr) { // another job has the terminal now
					continue
				}
				if place != "" {
					place = ", " + place
				}
				s.Status.Show(fmt.Sprintf("lockctl: waiting for lock %s%s: %s", show.Plain(name), place, blocked))
				continue
			}
			if place != "" {
				blocked += "; " + place + " in the queue"
			}
			s.Complain("waiting for lock %s: %s", show.Plain(name), blocked)
			return
		}
	}()
	return func() { cancel(); <-done }
}

// waitText describes what this process is waiting for, and its place in the queue. place is
// empty if the process has none.
func waitText(info admin.Info, err error) (blocked, place string) {
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
	held := show.Holdings(info)
	if len(held) > 1 && held[0].Waits && self(held[0].Host, held[0].PID) {
		return "next in line, waiting for " + show.Count(len(held)-1, "reader") + " to leave", ""
	}
	switch {
	case len(held) == 0:
		blocked = "it is free, but the waiters ahead of this one have not taken it yet"
	case len(held) == 1:
		blocked = fmt.Sprintf("%s has held it for %s", held[0].Name(), show.Brief(time.Since(held[0].Since)))
	default:
		blocked = fmt.Sprintf("%s and %d more hold it", held[0].Name(), len(held)-1)
	}
	if n == 0 {
		return blocked + "; this client has no place in the queue; run \"lockctl doctor\" to find out why", ""
	}
	return blocked, fmt.Sprintf("place %d of %d", n, all)
}
