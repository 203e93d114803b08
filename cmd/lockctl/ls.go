package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/natslock/locks/cmd/lockctl/internal/session"
	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/internal/tool"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

type lsCmd struct {
	Pattern string `arg:"" type:"name" optional:"" default:">" predictor:"lock" help:"Names to list: \"*\" stands for one token, a final \">\" for all that follow."`
	Wide    bool   `help:"Also show TTL, id, revision, metadata, and a line for each reader."`
	Sort    string `default:"name" enum:"name,held,expires,queue" placeholder:"BY" help:"name, held (longest first), expires (soonest first) or queue (longest first)."`
	JSON    bool   `name:"json" help:"Print an array of objects."`
}

func (*lsCmd) Help() string {
	return `Prints a line for each lock, with its mode, holder, fencing token, time held, end of the
lease unless renewed, and numbers of readers and waiters. Readers share a line, with the
longest time held and the latest end of a lease. A writer that waits for them to leave has
its own line. A semaphore's mode shows how many permits are taken.

A lock is "idle" if its client keeps it for its own goroutines, and none of them was inside
at the last renewal. It is "overdue" if its lease has ended but the server has not removed
the record: it is no longer held. A name used by locks of different kinds is marked: they
do not exclude each other. Unreadable records are listed too, because they still block
other clients.

A name that is not UTF-8, contains unprintable characters or begins with a double quote is
shown in double quotes, as Go quotes: "a\xff". Every command accepts this form. In a shell
put it in single quotes: '"a\xff"'.

  lockctl ls 'orders.>' --sort held
  lockctl ls --json | jq -r '.[] | select(.queue != []) | .name'

Exit code 69: no leader of the bucket answers, so the locks are unknown.`
}

func (c *lsCmd) Run(g *session.Globals) error {
	infos, err := c.find(g)
	if err != nil {
		return err
	}
	if c.JSON {
		if len(infos) == 0 {
			show.CheckPattern(g.Console, c.Pattern)
		}
		return show.PrintJSON(g.Out, infos)
	}
	if len(infos) == 0 {
		g.Complain("no locks")
		show.CheckPattern(g.Console, c.Pattern)
		return nil
	}
	both := show.BothKinds(infos)
	t := c.table(g.Out)
	for _, info := range infos {
		t.AppendRows(c.rows(info, both[info.Name]))
	}
	t.Render()
	if len(both) > 0 {
		g.Complain("%s used by locks of different kinds, which do not exclude each other", show.Count(len(both), "name"))
	}
	return nil
}

func (c *lsCmd) find(g *session.Globals) ([]admin.Info, error) {
	s, err := g.Open()
	if err != nil {
		return nil, err
	}
	defer s.End()
	return c.list(g, s)
}

func (c *lsCmd) list(g *session.Globals, s *session.Session) ([]admin.Info, error) {
	ctx, cancel := g.Bounded()
	defer cancel()
	if err := s.Led(ctx, g); err != nil {
		return nil, err
	}
	var infos []admin.Info
	for info, err := range admin.New(s.Client).List(ctx, c.Pattern) {
		if errors.Is(err, natslock.ErrPermission) {
			return nil, tool.Exitf(tool.ExitPermission, "%w; list the names that this user may read, such as \"orders.>\"", err)
		}
		if err != nil {
			return nil, err
		}
		infos = append(infos, info)
	}
	c.sort(infos)
	return infos, nil
}

// sort orders the locks, which arrive sorted by name, as --sort requests.
func (c *lsCmd) sort(infos []admin.Info) {
	first := func(info admin.Info, of func(show.Holding) time.Time) time.Time { // zero if the lock is not held
		var first time.Time
		for _, h := range show.Holdings(info) {
			if at := of(h); !at.IsZero() && (first.IsZero() || at.Before(first)) {
				first = at
			}
		}
		return first
	}
	by := func(of func(show.Holding) time.Time) {
		slices.SortStableFunc(infos, func(a, b admin.Info) int {
			at, bt := first(a, of), first(b, of)
			if at.IsZero() != bt.IsZero() {
				return map[bool]int{true: 1, false: -1}[at.IsZero()]
			}
			return at.Compare(bt)
		})
	}
	switch c.Sort {
	case "held":
		by(func(h show.Holding) time.Time { return h.Since })
	case "expires":
		by(func(h show.Holding) time.Time { return h.Expires })
	case "queue":
		slices.SortStableFunc(infos, func(a, b admin.Info) int { return cmp.Compare(b.Waiting(), a.Waiting()) })
	}
}

// columns returns the table's column headers.
func (c *lsCmd) columns() []string {
	columns := []string{"kind", "name", "mode", "holder", "token", "held", "expires", "readers", "queue"}
	if c.Wide {
		columns = append(columns, "ttl", "revision", "id", "meta")
	}
	return append(columns, "") // the note has no header
}

// table returns an empty table with a header.
func (c *lsCmd) table(w io.Writer) table.Writer {
	t := show.NewTable(w)
	var header table.Row
	var configs []table.ColumnConfig
	for i, column := range c.columns() {
		header = append(header, column)
		config := table.ColumnConfig{Number: i + 1}
		switch column {
		case "held", "expires", "readers", "queue", "ttl", "revision":
			config.Align, config.AlignHeader = text.AlignRight, text.AlignRight
		}
		configs = append(configs, config)
	}
	t.SetColumnConfigs(configs)
	t.AppendHeader(header)
	return t
}

// rows returns a lock's table rows. Unless the table is wide, readers share a row, as do permit
// holders. Every other holder has its own row. Only the first row fills the columns that
// describe the lock itself.
func (c *lsCmd) rows(info admin.Info, both bool) (rows []table.Row) {
	readers, queue, note := "-", fmt.Sprint(info.Waiting()), ""
	if info.Kind == admin.KindRW {
		readers = fmt.Sprint(len(info.Readers))
	}
	if both {
		note = show.Alarm.Sprint("also another kind")
	}
	row := func(mode, holder, token, held, expires string, wide ...any) {
		r := table.Row{info.Kind.String(), show.Plain(info.Name), mode, holder, token, held, expires, readers, queue}
		if c.Wide {
			r = append(r, wide...)
		}
		rows = append(rows, append(r, note))
		readers, queue, note = "", "", ""
	}
	held := show.Holdings(info)
	permits := info.Kind == admin.KindSemaphore && len(held) > 0
	if all := show.Together(info); !c.Wide && (len(all) > 1 || permits) {
		first := len(held) - len(all) // the readers come after the writer
		mode := admin.Shared.String()
		switch {
		case permits:
			mode = show.PermitsOf(info)
		case show.AllIdle(held[first:]):
			mode = held[first].ModeName()
		}
		row(mode, show.ReaderNames(all), "-", show.Brief(time.Since(show.HeldSince(info))), show.LastEnd(all))
		held = held[:first]
	}
	// Show holders before a writer that is still waiting for readers to leave.
	slices.SortStableFunc(held, func(a, b show.Holding) int { return cmp.Compare(b.Mode, a.Mode) })
	for _, h := range held {
		ttl := "-"
		if h.TTL > 0 {
			ttl = h.TTL.String()
		}
		row(h.ModeName(), h.Name(), fmt.Sprint(h.Token), show.Brief(time.Since(h.Since)), show.Expiry(h.Holder), ttl, fmt.Sprint(h.Revision), show.Plain(h.ID), show.MetaList(h.Meta))
	}
	if len(rows) == 0 {
		r := table.Row{info.Kind.String(), show.Plain(info.Name), "free", "-", "-", "-", "-", readers, queue}
		if c.Wide {
			r = append(r, "-", "-", "-", "")
		}
		rows = append(rows, append(r, note))
	}
	return rows
}
