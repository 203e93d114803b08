package main

import (
	"errors"
	"strings"
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
	return `One line for each holder: who, with which fencing token, for how long, when
the lease ends unless it is renewed, and how many wait. A record that lockctl
cannot read is listed too: it keeps others out all the same.`
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
	t := newTable("kind", "name", "holder", "token", "held", "expires", "queue")
	t.SetColumnConfigs([]table.ColumnConfig{
		{Name: "held", Align: text.AlignRight, AlignHeader: text.AlignRight},
		{Name: "expires", Align: text.AlignRight, AlignHeader: text.AlignRight},
		{Name: "queue", Align: text.AlignRight, AlignHeader: text.AlignRight},
	})
	for _, info := range infos {
		appendLock(t, info)
	}
	t.Render()
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
		infos = append(infos, info)
	}
	return infos, nil
}

// appendLock adds the rows of a lock: one for each who holds it. The queue is
// the lock's, so only the first row tells it.
func appendLock(t table.Writer, info natslock.Info) {
	kind, queue := info.Kind.String(), any(len(info.Queue))
	row := func(kind, holder string, more ...any) {
		t.AppendRow(append(append(table.Row{kind, plain(info.Name), holder}, more...), queue))
		queue = ""
	}
	if info.Holder == nil && len(info.Readers) == 0 {
		row(kind, "-", "-", "-", "-")
		return
	}
	if h := info.Holder; h != nil {
		row(kind, holderName(*h), h.Token, brief(time.Since(h.Since)), expiresIn(*h))
	}
	for _, r := range info.Readers {
		row(strings.TrimSpace(kind+" read"), holderName(r), r.Token, brief(time.Since(r.Since)), expiresIn(r))
	}
}
