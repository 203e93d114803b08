package main

import (
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/natslock/locks/cmd/lockctl/internal/session"
	"github.com/natslock/locks/internal/tool"
	"github.com/natslock/locks/natslock"
)

type serverCmd struct {
	Port int    `short:"p" default:"4222" placeholder:"PORT" help:"Port on the loopback interface (default ${default}); 0 for any free one."`
	Dir  string `type:"path" placeholder:"DIR" help:"Directory for the data (default: under the user's cache directory)."`
}

func (*serverCmd) Help() string {
	return `Runs a NATS server on the loopback interface, without users: every process on this machine
can use it. It keeps its data, and creates a missing bucket. In production run three
nats-servers.

It prints its URL when it is ready. INT, TERM or HUP ends it, unless that signal was
ignored at its start, as with nohup.

  lockctl server &
  export NATS_URL=nats://127.0.0.1:4222

Exit code: 0 when a signal ended it, 69 when the port or the directory is in use.`
}

// AfterApply validates what kong's tags cannot express.
func (c *serverCmd) AfterApply() error {
	if c.Port < 0 || c.Port > 65535 {
		return fmt.Errorf("--port %d: must be from 0 to 65535", c.Port)
	}
	return nil
}

func (c *serverCmd) Run(g *session.Globals) error {
	signals := make(chan os.Signal, 1)
	for _, sig := range []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP} {
		if !signal.Ignored(sig) { // ignored under nohup, or in the background of a script
			signal.Notify(signals, sig)
		}
	}
	e, err := session.StartKept(c.Dir, c.Port)
	if err != nil {
		return err
	}
	g.Connection, g.MayCreate = tool.Connection{Server: e.URL(), NoContext: true, Timeout: g.Timeout}, true
	if s, err := g.Open(natslock.WithLogger(slog.New(slog.DiscardHandler))); err == nil {
		s.End()
	} else { // the server is still useful, for example to repair the bucket
		g.Complain("%v", err)
	}
	defer e.Stop()
	if _, err := fmt.Fprintln(g.Out, e.URL()); err != nil {
		return err // without the URL no client can find the server
	}
	<-signals
	return nil
}
