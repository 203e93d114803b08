package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/natslock/locks/cmd/lockctl/internal/console"
	"github.com/natslock/locks/cmd/lockctl/internal/session"
	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/internal/tool"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

type breakCmd struct {
	Name   string  `arg:"" type:"name" predictor:"lock" help:"The lock's name."`
	Kind   string  `placeholder:"KIND" help:"mutex, rw or semaphore; required if locks of different kinds share the name."`
	ID     *string `name:"id" placeholder:"ID" help:"Break the holder, writer or reader with this id or unambiguous prefix."`
	Reason string  `default:"broken with lockctl" placeholder:"TEXT" help:"Reason to show to the holder, and in info, ls and watch."`
	Now    bool    `help:"Let the next client in at once, although the holder may still be working: an exception to mutual exclusion."`
	Force  bool    `short:"f" help:"Do not ask."`
}

func (*breakCmd) Help() string {
	return `Shows the holder, asks, and breaks that holder and no later one. The holder is notified
and can no longer renew its lease. No other client gets in before the holder has stopped or
its lease would have ended anyway. With --now the next client gets in at once: two may be
working at the same time, and only resources that check fencing tokens are safe.

Some locks have no process to notify: a script's, and one that its holder left to another
program (Lock.Handoff) or to the rest of a minimum hold. They are free when their TTL
expires or the script releases them, or at once with --now.

Every claim to a lock has an id, which "lockctl info" and "lockctl ls --wide" show. A
script that gives the id, or an unambiguous prefix, breaks that claim and never a later one.

For a reader-writer lock this breaks the writer or one reader, for a semaphore one holder.
If several match, they are listed and nothing is broken: choose with --kind or --id. A
writer that still waits for readers to leave gives way and queues again.

  lockctl break deploy --reason "host is gone"
  lockctl break -f deploy --id MAEFS64Q

Exit code 1: nothing was broken, because the lock was released, has another holder, or you
answered no.`
}

// AfterApply validates what kong's tags cannot express.
func (c *breakCmd) AfterApply() error {
	switch {
	case c.Kind != "" && c.Kind != admin.KindMutex.String() && c.Kind != admin.KindRW.String() && c.Kind != admin.KindSemaphore.String():
		return fmt.Errorf("--kind %q: must be mutex, rw or semaphore", c.Kind)
	case c.ID != nil && *c.ID == "": // an unset variable; an empty id would match every holder
		return errors.New("--id: the id is empty")
	}
	return nil
}

func (c *breakCmd) Run(g *session.Globals) error {
	s, err := g.Open(natslock.WithOwner(session.Operator()))
	if err != nil {
		return err
	}
	defer s.End()
	target, err := c.choose(g, s)
	if err != nil {
		return err
	}
	fmt.Fprintf(g.Out, "%s %s\n", target.Kind, show.Bold.Sprint(show.Plain(c.Name)))
	show.PrintHolder(g.Out, target)
	if target.Broken != nil && !c.Now {
		fmt.Fprintf(g.Out, "already broken: %s when the %s has stopped, within %s\n", target.Freed(), target.Role(), show.ExpiresIn(target.Holder))
		return nil
	}
	if err := c.confirm(g, target); err != nil {
		return err
	}
	ctx, cancel := g.Bounded()
	defer cancel()
	err = admin.New(s.Client).Break(ctx, admin.BreakRequest{Kind: target.Kind, Name: c.Name, ID: target.ID, Reason: c.Reason, Immediately: c.Now})
	if errors.Is(err, natslock.ErrReleased) {
		return tool.Exitf(tool.ExitConflict, "%w", err)
	}
	if err != nil {
		return err
	}
	fmt.Fprintln(g.Out, c.outcome(g, s, target))
	return nil
}

// choose returns the holder to break. It never guesses: if the command line is ambiguous,
// choose lists the candidates and returns an error.
func (c *breakCmd) choose(g *session.Globals, s *session.Session) (show.Holding, error) {
	infos, err := s.Find(g, c.Name)
	if err != nil {
		return show.Holding{}, err
	}
	var held, meant []show.Holding
	for _, info := range infos {
		for _, h := range show.Holdings(info) {
			held = append(held, h)
			if c.means(h) {
				meant = append(meant, h)
			}
		}
	}
	explicit := c.Kind != "" || c.ID != nil
	switch {
	case len(infos) > 1 && !explicit:
		listHoldings(g.Out, held)
		var kinds []string
		for _, info := range infos {
			kinds = append(kinds, "--kind "+info.Kind.String())
		}
		return show.Holding{}, tool.Usagef("there are %s locks named %s: choose one with %s or --id", show.InWords(len(infos)), show.Plain(c.Name), strings.Join(kinds, ", "))
	case len(meant) == 1:
		return meant[0], nil
	case len(meant) > 1 && c.ID != nil:
		listHoldings(g.Out, meant)
		return show.Holding{}, tool.Usagef("several holders of %s have an id that begins with %s: give more characters", show.Plain(c.Name), show.Plain(*c.ID))
	case len(meant) > 1:
		listHoldings(g.Out, meant)
		return show.Holding{}, tool.Usagef("%s has several holders: choose one with --id", show.Plain(c.Name))
	}
	return show.Holding{}, c.nobody(held)
}

// means reports whether h matches --kind and --id.
func (c *breakCmd) means(h show.Holding) bool {
	return (c.Kind == "" || c.Kind == h.Kind.String()) &&
		(c.ID == nil || strings.HasPrefix(h.ID, *c.ID))
}

// nobody returns the error for a command line that matches no holder.
func (c *breakCmd) nobody(held []show.Holding) error {
	var ids []string
	for _, h := range held {
		if c.Kind == "" || c.Kind == h.Kind.String() {
			ids = append(ids, show.Plain(h.ID))
		}
	}
	name := show.Plain(c.Name)
	if c.Kind != "" {
		name = c.Kind + " " + name
	}
	if len(ids) == 0 {
		return tool.Exitf(tool.ExitConflict, "%s is free: nothing to break%s", name, show.NoPattern(c.Name))
	}
	return tool.Exitf(tool.ExitConflict, "no holder of %s has an id that begins with %s (ids: %s): nothing was broken", name, show.Plain(*c.ID), strings.Join(ids, ", "))
}

// listHoldings prints the holders to choose from.
func listHoldings(w io.Writer, held []show.Holding) {
	if len(held) == 0 {
		return
	}
	t := show.NewTable(w, "kind", "mode", "holder", "token", "id")
	for _, h := range held {
		t.AppendRow(table.Row{h.Kind.String(), h.ModeName(), h.Name(), fmt.Sprint(h.Token), show.Plain(h.ID)})
	}
	t.Render()
}

// confirm asks the user for confirmation. Without a terminal it returns an error, so that a
// typo in a script cannot break a lock.
func (c *breakCmd) confirm(g *session.Globals, h show.Holding) error {
	if c.Force {
		return nil
	}
	if console.Terminal(g.Stdin) == nil {
		return tool.Usagef("cannot ask for confirmation without a terminal; use --force to break it")
	}
	fmt.Fprintf(g.Stderr, "%s. [y/N] ", show.BreakQuestion(h, c.Now))
	answer, err := bufio.NewReader(g.Stdin).ReadString('\n')
	if err != nil {
		fmt.Fprintln(g.Stderr) // end the prompt's line
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return tool.Exitf(tool.ExitConflict, "nothing was broken")
}

// outcome returns the message that tells the user when the lock will become free, based on the
// bucket's current contents.
func (c *breakCmd) outcome(g *session.Globals, s *session.Session, broken show.Holding) string {
	switch {
	case c.Now:
		return fmt.Sprintf("broken: %s now; the %s is notified, but may still be working", broken.Freed(), broken.Role())
	case broken.Waits:
		return "broken: the writer gives way and, if it was still waiting, queues again"
	}
	ctx, cancel := g.Bounded()
	defer cancel()
	info, err := admin.New(s.Client).Inspect(ctx, broken.Kind, c.Name)
	if err != nil {
		return fmt.Sprintf("broken: %s when the %s has stopped, within %v", broken.Freed(), broken.Role(), broken.TTL)
	}
	for _, h := range show.Holdings(info) {
		if h.ID == broken.ID {
			return fmt.Sprintf("broken: %s when the %s has stopped, within %s", broken.Freed(), broken.Role(), show.ExpiresIn(h.Holder))
		}
	}
	if broken.Mode == admin.Shared {
		return "broken: the reader has stopped and is out"
	}
	if broken.Kind == admin.KindSemaphore {
		return "broken: the holder has stopped; its permit was freed"
	}
	return fmt.Sprintf("broken: the %s has stopped; the lock was freed", broken.Role())
}
