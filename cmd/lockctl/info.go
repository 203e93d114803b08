package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/natslock/locks/kvstore"
	"github.com/natslock/locks/natslock"
)

type infoCmd struct {
	Name string `arg:"" help:"The lock's name."`
	JSON bool   `name:"json" help:"Print an array of objects, one for each kind of lock of that name."`
}

func (*infoCmd) Help() string {
	return `Shows the holder with its metadata, a break if there was one, and the queue in
its order. A name can be a mutex and a reader-writer lock at once; they are
different locks, and both are shown. A free lock is no error.`
}

func (c *infoCmd) Run(g *globals) error {
	infos, err := c.inspect(g)
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(infos)
	}
	if len(infos) == 0 {
		fmt.Printf("%s is free\n", plain(c.Name))
		return nil
	}
	for i, info := range infos {
		if i > 0 {
			fmt.Println()
		}
		printInfo(info)
	}
	return nil
}

// inspect returns what there is of each kind.
func (c *infoCmd) inspect(g *globals) ([]natslock.Info, error) {
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
	for _, kind := range []natslock.Kind{natslock.Mutex, natslock.RW} {
		info, err := s.Inspect(ctx, kind, c.Name)
		if err != nil {
			return nil, err
		}
		if info.Holder != nil || len(info.Readers) > 0 || len(info.Queue) > 0 {
			infos = append(infos, info)
		}
	}
	return infos, nil
}

func printInfo(info natslock.Info) {
	state := "free, waited for"
	switch {
	case info.Holder != nil && info.Holder.Broken != nil:
		state = alarm.Sprint("broken, its holder may still be stopping")
	case info.Holder != nil:
		state = "held"
	case len(info.Readers) > 0:
		state = fmt.Sprintf("held by %d readers", len(info.Readers))
	}
	fmt.Printf("%s %s: %s\n", info.Kind, bold.Sprint(plain(info.Name)), state)
	if info.Holder != nil {
		printHolder("holder", *info.Holder)
	}
	for i, r := range info.Readers {
		printHolder(fmt.Sprintf("reader %d", i+1), r)
	}
	if len(info.Queue) == 0 {
		return
	}
	fmt.Printf("  queue of %d\n", len(info.Queue))
	t := newTable()
	for i, w := range info.Queue {
		mode := w.Mode.String()
		if info.Kind == natslock.Mutex {
			mode = ""
		}
		t.AppendRow(table.Row{"   ", i + 1, who(w.Owner, w.Host, w.PID), mode, "waits " + brief(time.Since(w.Since)),
			faint.Sprintf("ticket %d", w.Ticket)})
	}
	t.Render()
}

// printHolder prints a holder's block.
func printHolder(title string, h natslock.Holder) {
	t := newTable()
	row := func(label string, value any) { t.AppendRow(table.Row{" " + faint.Sprint(label), value}) }
	row(title, holderName(h))
	row("token", h.Token)
	row("held", fmt.Sprintf("%s, since %s", brief(time.Since(h.Since)), h.Since.Local().Format("2006-01-02 15:04:05")))
	switch {
	case h.Expires.IsZero():
		row("expires", "never: it has no TTL, somebody has to break it")
	case h.Broken != nil:
		row("free", fmt.Sprintf("in %s at the latest", expiresIn(h)))
	case h.Unreadable:
		row("expires", "in "+expiresIn(h))
	default:
		row("expires", fmt.Sprintf("in %s unless renewed, TTL %v", expiresIn(h), h.TTL))
	}
	if b := h.Broken; b != nil {
		row("broken", alarm.Sprintf("%s ago by %s: %s", brief(time.Since(b.At)), plain(b.By), plain(b.Reason)))
	}
	if len(h.Meta) > 0 {
		row("meta", metaList(h.Meta))
	}
	if h.ID != "" {
		row("id", faint.Sprint(plain(h.ID)))
	}
	row("revision", faint.Sprint(h.Revision))
	t.Render()
}
