package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/natslock/locks/cmd/lockctl/internal/console"
	"github.com/natslock/locks/internal/tool"
	"github.com/natslock/locks/natslock"
)

type breakCmd struct {
	Name   string  `arg:"" predictor:"lock" help:"The lock's name."`
	Kind   string  `placeholder:"KIND" help:"mutex, rw or semaphore; needed when there are several of that name."`
	ID     *string `name:"id" placeholder:"ID" help:"Break the holder, writer or reader with this id, or with the only id that begins so."`
	Reason string  `default:"broken with lockctl" placeholder:"TEXT" help:"Shown to the holder, and by info, ls and watch."`
	Now    bool    `help:"Let the next one in at once, while the holder may still be working: an exception to mutual exclusion."`
	Force  bool    `short:"f" help:"Do not ask."`
}

func (*breakCmd) Help() string {
	return `Shows the holder, asks, and breaks that holder and no later one. The holder is
notified and cannot renew its lease any more. No other client gets in before the
holder has stopped or its lease would have ended anyway. With --now the next client
gets in at once. Then two may be working at the same time, and only resources that
check fencing tokens are safe.

Every claim to a lock has an id, which "lockctl info", "lockctl ls --wide" and
their JSON show. --id takes the beginning of one, as far as it is unambiguous. A
script that gives the id breaks that claim and never a later one. A record that
lockctl cannot read has an id too, made of its revision.

Of a reader-writer lock this breaks the writer or one reader, of a semaphore one
holder; the others go on. Where several could be meant they are listed and nothing is broken: choose
with --kind or --id. A writer that still waits for readers to leave gives way and
queues again.

  lockctl break deploy --reason "host is gone"
  lockctl break -f deploy --id MAEFS64Q

Exit code 1: nothing was broken, because the holder is gone, is another one, or
the answer was no.`
}

// AfterApply checks what kong cannot.
func (c *breakCmd) AfterApply() error {
	switch {
	case c.Kind != "" && c.Kind != natslock.KindMutex.String() && c.Kind != natslock.KindRW.String() && c.Kind != natslock.KindSemaphore.String():
		return fmt.Errorf("--kind %q: not mutex, rw or semaphore", c.Kind)
	case c.ID != nil && *c.ID == "": // an unset variable, and it would match any
		return errors.New("--id: the id is empty")
	}
	return nil
}

func (c *breakCmd) Run(g *globals) error {
	s, err := g.open(natslock.WithOwner(operator()))
	if err != nil {
		return err
	}
	defer s.close()
	target, err := c.choose(g, s)
	if err != nil {
		return err
	}
	fmt.Fprintf(g.Out, "%s %s\n", target.kind, bold.Sprint(plain(c.Name)))
	printHolder(g.Out, target)
	if target.Broken != nil && !c.Now {
		fmt.Fprintf(g.Out, "broken already: %s when the %s has stopped, in %s at the latest\n", target.freed(), target.role(), expiresIn(target.Holder))
		return nil
	}
	if err := c.confirm(g, target); err != nil {
		return err
	}
	ctx, cancel := g.bounded()
	defer cancel()
	err = s.Break(ctx, natslock.BreakRequest{Kind: target.kind, Name: c.Name, ID: target.ID, Reason: c.Reason, Immediately: c.Now})
	if errors.Is(err, natslock.ErrReleased) {
		return tool.Exitf(tool.ExitConflict, "%w", err)
	}
	if err != nil {
		return err
	}
	fmt.Fprintln(g.Out, c.outcome(g, s, target))
	return nil
}

// choose finds the one holder that is meant. It never guesses: what is broken
// was named, or is all there is.
func (c *breakCmd) choose(g *globals, s *session) (holding, error) {
	infos, err := s.inspect(g, c.Name)
	if err != nil {
		return holding{}, err
	}
	var held, meant []holding
	for _, info := range infos {
		for _, h := range holdings(info) {
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
		return holding{}, tool.Usagef("%s is %s locks: choose with %s or --id", plain(c.Name), inWords(len(infos)), strings.Join(kinds, ", "))
	case len(meant) == 1:
		return meant[0], nil
	case len(meant) > 1 && c.ID != nil:
		listHoldings(g.Out, meant)
		return holding{}, tool.Usagef("several holders of %s have an id that begins with %s: give more of it", plain(c.Name), plain(*c.ID))
	case len(meant) > 1:
		listHoldings(g.Out, meant)
		return holding{}, tool.Usagef("%s has several holders: choose with --id", plain(c.Name))
	}
	return holding{}, c.nobody(held)
}

// means says whether the command line allows h.
func (c *breakCmd) means(h holding) bool {
	return (c.Kind == "" || c.Kind == h.kind.String()) &&
		(c.ID == nil || strings.HasPrefix(h.ID, *c.ID))
}

// nobody says why no holder of the lock is meant.
func (c *breakCmd) nobody(held []holding) error {
	var ids []string
	for _, h := range held {
		if c.Kind == "" || c.Kind == h.kind.String() {
			ids = append(ids, plain(h.ID))
		}
	}
	name := plain(c.Name)
	if c.Kind != "" {
		name = c.Kind + " " + name
	}
	if len(ids) == 0 {
		return tool.Exitf(tool.ExitConflict, "%s is free, there is nothing to break%s", name, noPattern(c.Name))
	}
	return tool.Exitf(tool.ExitConflict, "no holder of %s has an id that begins with %s, but there is %s: nothing was broken", name, plain(*c.ID), strings.Join(ids, ", "))
}

// listHoldings shows whom to choose among.
func listHoldings(w io.Writer, held []holding) {
	if len(held) == 0 {
		return
	}
	t := newTable(w, "kind", "mode", "holder", "token", "id")
	for _, h := range held {
		t.AppendRow(table.Row{h.kind.String(), h.modeName(), h.name(), fmt.Sprint(h.Token), plain(h.ID)})
	}
	t.Render()
}

// confirm asks on the terminal. Where nobody can answer it refuses, rather
// than break a lock by a typo in a script.
func (c *breakCmd) confirm(g *globals, h holding) error {
	if c.Force {
		return nil
	}
	if console.Terminal(g.Stdin) == nil {
		return tool.Usagef("not on a terminal, so nobody to ask: use --force to break it")
	}
	fmt.Fprintf(g.Stderr, "%s. [y/N] ", breakQuestion(h, c.Now))
	answer, err := bufio.NewReader(g.Stdin).ReadString('\n')
	if err != nil {
		fmt.Fprintln(g.Stderr) // the line that the user did not end
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return tool.Exitf(tool.ExitConflict, "nothing was broken")
}

// breakQuestion says what a break would do.
func breakQuestion(h holding, now bool) string {
	kept, next := "Nobody", "The next one"
	if h.mode == natslock.Shared {
		kept, next = "No writer", "A writer"
	}
	if h.kind == natslock.KindSemaphore {
		kept, next = "Nobody with its permit", "The next one"
	}
	if now {
		return fmt.Sprintf("Break it NOW? %s gets in while the %s may still be at work", next, h.role())
	}
	if h.left() {
		return "Break it? Nobody holds it (" + h.modeName() + "): the next one gets in at once"
	}
	question := fmt.Sprintf("Break it? %s gets in before the %s has stopped or its lease is over", kept, h.role())
	if !h.Expires.IsZero() {
		question += fmt.Sprintf(", in %v at the latest", h.TTL)
	}
	if h.wasIdle() {
		question += ". The lock was idle when last renewed: its client gives it to any other that asks"
	}
	return question
}

// outcome says when the lock is free, from what the bucket has now.
func (c *breakCmd) outcome(g *globals, s *session, broken holding) string {
	switch {
	case c.Now:
		return fmt.Sprintf("broken: %s now; the %s is notified, and may still be at work", broken.freed(), broken.role())
	case broken.waits:
		return "broken: the writer gives way, and queues again if it was still waiting"
	}
	ctx, cancel := g.bounded()
	defer cancel()
	info, err := s.Inspect(ctx, broken.kind, c.Name)
	if err != nil {
		return fmt.Sprintf("broken: %s when the %s has stopped, in %v at the latest", broken.freed(), broken.role(), broken.TTL)
	}
	for _, h := range holdings(info) {
		if h.ID == broken.ID {
			return fmt.Sprintf("broken: %s when the %s has stopped, in %s at the latest", broken.freed(), broken.role(), expiresIn(h.Holder))
		}
	}
	if broken.mode == natslock.Shared {
		return "broken: the reader has stopped and is out"
	}
	if broken.kind == natslock.KindSemaphore {
		return "broken: the holder has stopped, its permit was freed"
	}
	return fmt.Sprintf("broken: the %s has stopped, the lock was freed", broken.role())
}

// operator is who breaks: the person, not the process.
func operator() string {
	name := "somebody"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	host, _ := os.Hostname()
	return name + "@" + host
}
