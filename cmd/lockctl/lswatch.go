package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
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

// display shows the locks again and again. trouble is why they may be out of
// date, or empty.
type display interface {
	show(infos []admin.Info, trouble string) error
}

// watch lists, and lists again after every change. It always shows a list, and never the
// content of a notification.
func (c *lsCmd) watch(g *session.Globals) error {
	s, err := g.Connect()
	if err != nil {
		return err
	}
	defer s.End()
	show.CheckPattern(g.Console, c.Pattern)
	var d display = &changeLog{c: c, g: g}
	if f := console.Terminal(g.Out.W); f != nil && !c.JSON {
		d = &screen{c: c, f: f, url: s.URL}
	}
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

	var infos []admin.Info
	follows := false
	for {
		began := time.Now()
		trouble := ""
		switch now, err := c.listAgain(g, s); {
		case err == nil:
			infos = now
			// After a list: the refusals of seven subscriptions would hide that of the list.
			// The watch notifies of its beginning, so nothing is missed in between.
			if !follows {
				follows = true
				go c.follow(ctx, s, change)
			}
		case lasting(err):
			return err
		default:
			trouble = err.Error()
		}
		if err := d.show(infos, trouble); err != nil {
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
func (c *lsCmd) follow(ctx context.Context, s *session.Session, change func()) {
	for ctx.Err() == nil {
		for ev, err := range admin.New(s.Client).Watch(ctx, c.Pattern) {
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
func (c *lsCmd) listAgain(g *session.Globals, s *session.Session) ([]admin.Info, error) {
	away := fmt.Errorf("no connection to %s", s.URL)
	if !s.NC.IsConnected() {
		return nil, away
	}
	if s.Client == nil {
		if err := s.Open(g); err != nil {
			return nil, err
		}
	}
	infos, err := c.list(g, s)
	if err != nil && !s.NC.IsConnected() { // lost while it listed
		return nil, away
	}
	return infos, err
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
	c     *lsCmd
	f     *os.File
	url   string
	drawn bool
}

func (d *screen) show(infos []admin.Info, trouble string) error {
	columns, lines := console.TerminalSize(d.f)
	title := fmt.Sprintf("%s at %s, %s", show.Count(len(infos), "lock"), d.url, time.Now().Format("15:04:05"))
	both := show.BothKinds(infos)
	t := d.c.table(nil)
	for _, info := range infos[:min(len(infos), lines)] { // more cannot be seen
		t.AppendRows(d.c.rows(info, both[info.Name]))
	}
	rows := strings.Split(t.Render(), "\n")
	if room := max(lines-2, 1); len(rows) > room { // the title, and no line end that scrolls
		rows = append(rows[:room-1], show.Faint.Sprint("..."))
	}
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

// changeLog is a pipe or a file: the locks, and then those that have changed.
type changeLog struct {
	c       *lsCmd
	g       *session.Globals
	begun   bool                   // the header is printed
	empty   bool                   // it has printed that there are none
	shown   map[show.LockID]string // the printed rows
	widths  []int
	trouble string
}

func (d *changeLog) show(infos []admin.Info, trouble string) error {
	if trouble != "" {
		if d.trouble == "" {
			d.g.Complain("%s; trying again", trouble)
		}
		d.trouble = trouble
		return nil
	}
	if d.trouble != "" {
		d.g.Complain("connected again")
	}
	d.trouble = ""
	both := show.BothKinds(infos)
	now := make(map[show.LockID]string, len(infos))
	var news []admin.Info
	for _, info := range infos {
		id := show.IDOf(info)
		now[id] = fingerprint(info, both[info.Name])
		if now[id] != d.shown[id] {
			news = append(news, info)
		}
	}
	var freed []admin.Info
	for id := range d.shown {
		if _, there := now[id]; !there {
			freed = append(freed, admin.Info{Kind: id.Kind, Name: id.Name})
		}
	}
	slices.SortFunc(freed, func(a, b admin.Info) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Kind, b.Kind)) })
	d.shown = now
	if !d.begun && len(infos) == 0 && !d.empty && !d.c.JSON {
		d.g.Complain("no locks")
		d.empty = true
	}
	return d.print(append(freed, news...), both)
}

// fingerprint tells two states of a lock apart that are worth a line.
func fingerprint(info admin.Info, both bool) string {
	var b strings.Builder
	fmt.Fprint(&b, both)
	for _, h := range show.Holdings(info) {
		fmt.Fprint(&b, " ", h.Mode, h.Token, h.Broken != nil, h.Waits, h.Unreadable, h.Idle, h.Cooldown, h.HandedOver)
	}
	for _, w := range info.Queue {
		fmt.Fprint(&b, " ", w.ID)
	}
	return b.String()
}

func (d *changeLog) print(infos []admin.Info, both map[string]bool) error {
	if d.c.JSON {
		for _, info := range infos {
			if _, err := fmt.Fprintln(d.g.Out, show.LockObject(info, both[info.Name])); err != nil {
				return err
			}
		}
		return nil
	}
	if len(infos) == 0 {
		return nil
	}
	var rows []table.Row
	for _, info := range infos {
		rows = append(rows, d.c.rows(info, both[info.Name])...)
	}
	// Later lines stand under the columns of earlier ones.
	for i := range d.c.columns() {
		if len(d.widths) <= i {
			d.widths = append(d.widths, 0)
		}
		for _, row := range rows {
			d.widths[i] = max(d.widths[i], text.StringWidthWithoutEscSequences(fmt.Sprint(row[i])))
		}
	}
	t := d.c.table(d.g.Out, d.widths...)
	if d.begun {
		t.ResetHeaders()
	}
	d.begun = true
	t.AppendRows(rows)
	t.Render()
	return d.g.Out.Err
}
