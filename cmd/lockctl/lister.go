package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/nats-io/nats.go"

	"github.com/natslock/locks/cmd/lockctl/internal/console"
	"github.com/natslock/locks/cmd/lockctl/internal/session"
	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/internal/tool"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

const (
	// watchPause is the shortest time between two lists, however much changes.
	watchPause = 100 * time.Millisecond
	// watchShare bounds the part of the time that lists may take, as 1/n.
	watchShare = 4
	// watchAgain is the time to the next list without a change, because notifications
	// can be lost. It is also how often the times on a terminal are updated.
	watchAgain = time.Second
)

// lister lists, and lists again after every change of the locks of a pattern. It always shows a list, and never the
// content of a notification.
type lister struct {
	pattern string
	list    func(*session.Session) error    // keeps the list
	show    func(url, trouble string) error // shows it
}

func (l lister) run(g *session.Globals) error {
	s, err := g.Connect()
	if err != nil {
		return err
	}
	defer s.End()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	changed := make(chan struct{}, 1)
	change := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	lost := make(chan error, 1)
	s.NC.SetDisconnectErrHandler(func(*nats.Conn, error) { change() })
	s.NC.SetReconnectHandler(func(*nats.Conn) { change() })
	s.NC.SetClosedHandler(func(nc *nats.Conn) { lost <- nc.LastError() })
	defer s.NC.SetClosedHandler(nil)

	follows := false
	for {
		began := time.Now()
		trouble := ""
		switch err := l.listAgain(g, s); {
		case err == nil:
			// After a list: the refusals of seven subscriptions would hide that of the list.
			// The watch notifies of its beginning, so nothing is missed in between.
			if !follows {
				follows = true
				go l.follow(ctx, s, change)
			}
		case lasting(err):
			return err
		default:
			trouble = err.Error()
		}
		if err := l.show(s.URL, trouble); err != nil {
			return err
		}
		pause := time.NewTimer(max(watchPause, watchShare*time.Since(began)))
		again := time.After(watchAgain)
		select {
		case <-changed:
		case <-again:
		case err := <-lost:
			return tool.Exitf(tool.ExitUnavailable, "the connection to %s is closed: %w", s.URL, err)
		}
		<-pause.C
	}
}

// follow calls change after each change of the locks, until ctx ends.
func (l lister) follow(ctx context.Context, s *session.Session, change func()) {
	for ctx.Err() == nil {
		for ev, err := range admin.New(s.Client).Watch(ctx, l.pattern) {
			if errors.Is(err, natslock.ErrClosed) {
				return
			}
			if err != nil || ev.Type != admin.EventRenewed {
				change()
			}
		}
		time.Sleep(watchAgain) // whatever ended it, listing goes on
	}
}

// listAgain lists. It opens the bucket with the first list.
func (l lister) listAgain(g *session.Globals, s *session.Session) error {
	away := fmt.Errorf("no connection to %s", s.URL)
	if !s.NC.IsConnected() {
		return away
	}
	if s.Client == nil {
		if err := s.Open(g); err != nil {
			return err
		}
	}
	err := l.list(s)
	if err != nil && !s.NC.IsConnected() { // lost while it listed
		return away
	}
	return err
}

// lasting says whether it is no use to try again.
func lasting(err error) bool {
	switch tool.CodeOf(err) {
	case tool.ExitUsage, tool.ExitPermission, tool.ExitConfig:
		return true
	case tool.ExitUnavailable:
		return false
	}
	_, coded := errors.AsType[*tool.Error](err)
	return coded
}

// screen is a terminal, which every list redraws.
type screen struct {
	f     *os.File
	drawn bool
}

// draw shows a title and as many rows as there is room for.
func (d *screen) draw(title, trouble string, rows []string) error {
	columns, lines := console.TerminalSize(d.f)
	if room := max(lines-2, 1); len(rows) > room { // the title, and no line end that scrolls
		rows = append(rows[:room-1], show.Faint.Sprint("..."))
	}
	title += ", " + time.Now().Format("15:04:05")
	if trouble != "" {
		title = show.Alarm.Sprint(trouble) + ", " + title
	}
	var b strings.Builder
	if !d.drawn {
		b.WriteString("\x1b[2J")
	}
	d.drawn = true
	b.WriteString("\x1b[H")
	for _, row := range append([]string{show.Faint.Sprint(title)}, rows...) {
		b.WriteString(text.Trim(row, columns) + "\x1b[0m\x1b[K\n")
	}
	b.WriteString("\x1b[J")
	_, err := d.f.WriteString(b.String())
	return err
}

// outage is why there is no list, for a pipe or a file: both its ends are complaints.
type outage struct{ trouble string }

func (o *outage) goesOn(g *session.Globals, trouble string) bool {
	if trouble != "" && o.trouble == "" {
		g.Complain("%s; trying again", trouble)
	}
	if trouble == "" && o.trouble != "" {
		g.Complain("connected again")
	}
	o.trouble = trouble
	return trouble != ""
}
