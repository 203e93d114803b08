package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/natslock/locks/cmd/lockctl/internal/session"
	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/election"
	"github.com/natslock/locks/internal/tool"
)

// observe prints the leader, and its changes.
func (c *electCmd) observe(g *session.Globals) error {
	s, err := g.Open()
	if err != nil {
		return err
	}
	defer s.End()
	e := election.New(s.Client, c.Name)
	if c.Once {
		return c.leader(g, e)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// A reader that has gone ends the observation in order, not by a signal.
	signal.Ignore(syscall.SIGPIPE)
	s.NC.SetDisconnectErrHandler(func(nc *nats.Conn, _ error) {
		if !nc.IsClosed() {
			g.Complain("lost the connection to %s, waiting for it", s.URL)
		}
	})
	for l, err := range e.Observe(ctx) {
		if err != nil {
			return err
		}
		switch err := c.print(g, l); {
		case errors.Is(err, syscall.EPIPE):
			return nil
		case err != nil:
			return err
		}
	}
	return nil
}

// leader prints the leader there is.
func (c *electCmd) leader(g *session.Globals, e *election.Election) error {
	ctx, cancel := g.Bounded()
	defer cancel()
	l, err := e.Leader(ctx)
	if err != nil && !errors.Is(err, election.ErrNoLeader) {
		return err
	}
	if err := c.print(g, l); err != nil {
		return err
	}
	if l.Vacant() {
		return &tool.Error{Code: tool.ExitConflict}
	}
	return nil
}

func (c *electCmd) print(g *session.Globals, l election.Leader) error {
	at := time.Now()
	line := leaderLine(c.Name, at, l)
	if c.JSON {
		line = show.OneLine(changeOf(c.Name, at, l))
	}
	_, err := fmt.Fprintln(g.Out, line)
	return err
}
