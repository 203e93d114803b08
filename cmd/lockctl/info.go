package main

import (
	"fmt"

	"github.com/natslock/locks/cmd/lockctl/internal/session"
	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/natslock/admin"
)

type infoCmd struct {
	Name string `arg:"" type:"name" predictor:"lock" help:"The lock's name."`
	JSON bool   `name:"json" help:"Print an array of objects, one for each kind of lock of that name."`
}

func (*infoCmd) Help() string {
	return `Shows the holder, or the writer and the readers, with their metadata, the queue in its
order, and a break if there was one. Each holder of a semaphore has its slot. Locks of
other kinds with that name are shown too.

  lockctl info deploy
  lockctl info deploy --json | jq '.[].holder.token'

Exit code: 0, even for a free lock.`
}

func (c *infoCmd) Run(g *session.Globals) error {
	infos, err := c.inspect(g)
	if err != nil {
		return err
	}
	if c.JSON {
		return show.PrintJSON(g.Out, infos)
	}
	if len(infos) == 0 {
		fmt.Fprintf(g.Out, "%s is free\n", show.Plain(c.Name))
		if note := show.NoPattern(c.Name); note != "" {
			g.Complain("no lock is named %s%s", show.Plain(c.Name), note)
		}
		return nil
	}
	for i, info := range infos {
		if i > 0 {
			fmt.Fprintln(g.Out)
		}
		show.PrintInfo(g.Out, info)
	}
	if len(infos) > 1 {
		fmt.Fprintln(g.Out, "\n"+show.Alarm.Sprint(show.InWords(len(infos))+" locks share this name: they do not exclude each other"))
	}
	return nil
}

// inspect returns the locks called c.Name, one for each kind.
func (c *infoCmd) inspect(g *session.Globals) ([]admin.Info, error) {
	s, err := g.Open()
	if err != nil {
		return nil, err
	}
	defer s.End()
	return s.Find(g, c.Name)
}
