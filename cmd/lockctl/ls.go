package main

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/natslock/locks/kvstore"
	"github.com/natslock/locks/natslock"
)

type lsCmd struct {
	Pattern string `arg:"" optional:"" default:">" help:"Names to list: \"*\" stands for one token, a last \">\" for all that follow."`
	JSON    bool   `name:"json" help:"Print an array of objects."`
}

func (*lsCmd) Help() string {
	return `One line for each lock: how it is held and by whom, with which fencing token,
for how long, when the lease ends unless it is renewed, how many read and how
many wait. Several readers share a line, which tells the longest time held and
the last end of a lease; a writer that waits for them to leave has one of its
own. "lockctl info" tells all of them apart.

A name that is a mutex and a reader-writer lock at once is marked: these are two
locks, which do not exclude each other. A record that lockctl cannot read is
listed too: it keeps others out all the same.`
}

func (c *lsCmd) Run(g *globals) error {
	infos, err := c.list(g)
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(infos)
	}
	if len(infos) == 0 {
		complain("no locks")
		return nil
	}
	both := bothKinds(infos)
	t := newTable("kind", "name", "mode", "holder", "token", "held", "expires", "readers", "queue", "")
	var right []table.ColumnConfig
	for _, column := range []string{"held", "expires", "readers", "queue"} {
		right = append(right, table.ColumnConfig{Name: column, Align: text.AlignRight, AlignHeader: text.AlignRight})
	}
	t.SetColumnConfigs(right)
	for _, info := range infos {
		appendLock(t, info, both[info.Name])
	}
	t.Render()
	if len(both) > 0 {
		complain("%s of both kinds: a mutex and a reader-writer lock of one name do not exclude each other", count(len(both), "name"))
	}
	return nil
}

// list reads the locks. A bucket that does not exist holds none; looking must
// not make it.
func (c *lsCmd) list(g *globals) ([]natslock.Info, error) {
	s, err := g.open(natslock.WithCreate(false))
	if errors.Is(err, kvstore.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer s.close()
	ctx, cancel := g.bounded()
	defer cancel()
	var infos []natslock.Info
	for info, err := range s.List(ctx, c.Pattern) {
		if err != nil {
			return nil, err
		}
		inOrder(info.Readers)
		infos = append(infos, info)
	}
	return infos, nil
}

// appendLock adds the rows of a lock: one for all who are in, and one for a
// writer that is not. What is the lock's own only the first row tells.
func appendLock(t table.Writer, info natslock.Info, both bool) {
	var readers any = "-"
	if info.Kind == natslock.RW {
		readers = len(info.Readers)
	}
	var queue any = len(info.Queue)
	note := ""
	if both {
		note = alarm.Sprint("also " + map[natslock.Kind]string{natslock.Mutex: "rw", natslock.RW: "mutex"}[info.Kind])
	}
	row := func(mode, holder, token, held, expires string) {
		t.AppendRow(table.Row{info.Kind.String(), plain(info.Name), mode, holder, token, held, expires, readers, queue, note})
		readers, queue, note = "", "", ""
	}
	if len(info.Readers) > 0 {
		row(natslock.Shared.String(), readerNames(info.Readers), tokenOf(info.Readers), brief(time.Since(info.Readers[0].Since)), lastEnd(info.Readers))
	}
	for _, h := range holdings(info) {
		if h.mode == natslock.Exclusive {
			row(h.mode.String(), h.name(), fmt.Sprint(h.Token), brief(time.Since(h.Since)), expiresIn(h.Holder))
		}
	}
	if info.Holder == nil && len(info.Readers) == 0 {
		row("free", "-", "-", "-", "-")
	}
}

func readerNames(readers []natslock.Holder) string {
	if len(readers) == 1 {
		return holderName(readers[0])
	}
	broken := 0
	for _, r := range readers {
		if r.Broken != nil {
			broken++
		}
	}
	first := readers[0]
	first.Broken = nil // counted
	name := fmt.Sprintf("%s and %d more", holderName(first), len(readers)-1)
	if broken > 0 {
		name += alarm.Sprintf(" (%d broken)", broken)
	}
	return name
}

// tokenOf is the token of a single reader. Several have one each.
func tokenOf(readers []natslock.Holder) string {
	if len(readers) > 1 {
		return "-"
	}
	return fmt.Sprint(readers[0].Token)
}

// lastEnd is when all of them are out if they are all dead.
func lastEnd(readers []natslock.Holder) string {
	last := slices.MaxFunc(readers, func(a, b natslock.Holder) int {
		if a.Expires.IsZero() != b.Expires.IsZero() { // never is last
			return map[bool]int{true: 1, false: -1}[a.Expires.IsZero()]
		}
		return a.Expires.Compare(b.Expires)
	})
	return expiresIn(last)
}
