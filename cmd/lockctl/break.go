package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/user"
	"strings"

	"github.com/natslock/locks/kvstore"
	"github.com/natslock/locks/natslock"
)

type breakCmd struct {
	Name   string `arg:"" help:"The lock's name."`
	Token  uint64 `placeholder:"N" help:"Break only the holder with this token; needed to choose among readers."`
	Reason string `default:"broken with lockctl" placeholder:"TEXT" help:"Shown to the holder and to whoever looks."`
	Now    bool   `help:"Let the next one in at once, while the holder may still be at work."`
	Force  bool   `short:"f" help:"Do not ask."`
}

func (*breakCmd) Help() string {
	return `Shows the holder, asks, and breaks that holder and no later one. The holder is
told and cannot renew any more; nobody gets in before it has stopped or its
lease would have ended anyway. With --now the next one gets in at once: two may
be at work together then, and only resources that check fencing tokens are safe.

Exit code 1: nothing was broken, because the holder is gone, is another one, or
the answer was no.`
}

func (c *breakCmd) Run(g *globals) error {
	s, err := g.open(natslock.WithCreate(false), natslock.WithOwner(operator()))
	if errors.Is(err, kvstore.ErrNotFound) {
		return exitf(exitConflict, "%s is free, there is nothing to break", plain(c.Name))
	}
	if err != nil {
		return err
	}
	defer s.close()
	kind, holder, err := c.choose(g, s)
	if err != nil {
		return err
	}
	fmt.Printf("%s %s\n", kind, bold.Sprint(plain(c.Name)))
	printHolder("holder", holder)
	if holder.Broken != nil && !c.Now {
		fmt.Printf("broken already: free when the holder has stopped, in %s at the latest\n", expiresIn(holder))
		return nil
	}
	if err := c.confirm(holder); err != nil {
		return err
	}
	opts := []natslock.BreakOption{}
	if c.Now {
		opts = append(opts, natslock.Now())
	}
	ctx, cancel := g.bounded()
	defer cancel()
	err = s.Break(ctx, kind, c.Name, holder.Token, c.Reason, opts...)
	if errors.Is(err, natslock.ErrReleased) {
		return exitf(exitConflict, "%w", err)
	}
	if err != nil {
		return err
	}
	fmt.Println(c.outcome(g, s, kind, holder))
	return nil
}

// choose finds the one holder that is meant.
func (c *breakCmd) choose(g *globals, s *session) (natslock.Kind, natslock.Holder, error) {
	ctx, cancel := g.bounded()
	defer cancel()
	type candidate struct {
		kind natslock.Kind
		natslock.Holder
	}
	var found []candidate
	for _, kind := range []natslock.Kind{natslock.Mutex, natslock.RW} {
		info, err := s.Inspect(ctx, kind, c.Name)
		if err != nil {
			return 0, natslock.Holder{}, err
		}
		if info.Holder != nil {
			found = append(found, candidate{kind, *info.Holder})
		}
		for _, r := range info.Readers {
			found = append(found, candidate{kind, r})
		}
	}
	var tokens []string
	for _, f := range found {
		if f.Token == c.Token || (c.Token == 0 && len(found) == 1) {
			return f.kind, f.Holder, nil
		}
		tokens = append(tokens, fmt.Sprint(f.Token))
	}
	name := plain(c.Name)
	switch {
	case len(found) == 0:
		return 0, natslock.Holder{}, exitf(exitConflict, "%s is free, there is nothing to break", name)
	case c.Token == 0:
		return 0, natslock.Holder{}, usagef("%s has several holders: choose one with --token (%s)", name, strings.Join(tokens, ", "))
	}
	return 0, natslock.Holder{}, exitf(exitConflict, "%s is not held with token %d but with %s: nothing was broken", name, c.Token, strings.Join(tokens, ", "))
}

// confirm asks on the terminal. Where nobody can answer it refuses, rather
// than break a lock by a typo in a script.
func (c *breakCmd) confirm(h natslock.Holder) error {
	if c.Force {
		return nil
	}
	if !isTerminal(os.Stdin) {
		return usagef("not on a terminal, so nobody to ask: use --force to break it")
	}
	question := "Break it? Nobody gets in before the holder has stopped or its lease is over"
	if !h.Expires.IsZero() {
		question += fmt.Sprintf(", in %v at the latest", h.TTL)
	}
	if c.Now {
		question = "Break it NOW? The next one gets in while the holder may still be at work"
	}
	fmt.Fprintf(os.Stderr, "%s. [y/N] ", question)
	answer, err := bufio.NewReader(os.Stdin).ReadString('\n')
	if err != nil {
		fmt.Fprintln(os.Stderr) // the line that the user did not end
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return exitf(exitConflict, "nothing was broken")
}

// outcome says when the lock is free, from what the bucket has now.
func (c *breakCmd) outcome(g *globals, s *session, kind natslock.Kind, broken natslock.Holder) string {
	if c.Now {
		return "broken: free now; the holder is told, and may still be at work"
	}
	ctx, cancel := g.bounded()
	defer cancel()
	info, err := s.Inspect(ctx, kind, c.Name)
	if err != nil {
		return fmt.Sprintf("broken: free when the holder has stopped, in %v at the latest", broken.TTL)
	}
	for _, h := range append(info.Readers, orNone(info.Holder)...) {
		if h.Token == broken.Token {
			return fmt.Sprintf("broken: free when the holder has stopped, in %s at the latest", expiresIn(h))
		}
	}
	return "broken: the holder has stopped, the lock was freed"
}

func orNone(h *natslock.Holder) []natslock.Holder {
	if h == nil {
		return nil
	}
	return []natslock.Holder{*h}
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
