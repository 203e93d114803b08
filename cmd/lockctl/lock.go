package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/natslock/locks/cmd/lockctl/internal/session"
	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/cmd/lockctl/internal/supervise"
	"github.com/natslock/locks/natslock"
)

type lockCmd struct {
	choice `embed:""`
	TTL    time.Duration `default:"15s" placeholder:"DURATION" help:"Lease: how long the lock stays taken when this machine dies (default ${default}, whole seconds)."`
	taking `embed:""`
	naming `embed:""`
	Name   string `arg:"" predictor:"lock" help:"The lock's name."`
}

func (*lockCmd) Help() string {
	return `Takes the lock, prints its name and its fencing token in a line, and holds it until
standard input ends or a signal comes. Then lockctl releases the lock. It waits and
chooses among the locks of a name as "lockctl run" does. It runs no command: with
"lockctl run" a command ends when its lock is lost.

A person ends it with ^D or ^C. A program starts lockctl with a pipe as standard input,
waits for the line, and closes the pipe: the lock is released when the program is
killed, too. When lockctl ends before that, the lock was lost, and the program has to
stop its work. Standard input that is /dev/null ends at once. One that cannot be read,
as a terminal from the background, leaves the signals.

  lockctl lock deploy
  coproc HELD { lockctl lock deploy; } && read -r name token <&"${HELD[0]}" || exit

Exit code: 0, also if INT, TERM, HUP or QUIT ended the holding. 128 + N if signal N
ended the waiting.
  1, or -E   the lock was not free in time (-n, -w)
  64 usage   69 no server   75 the lock was lost
  77 no permission   78 no bucket, or one not fit for locks`
}

// AfterApply checks what kong cannot.
func (c *lockCmd) AfterApply() error { return errors.Join(c.choice.check(), c.taking.check()) }

func (c *lockCmd) Run(g *session.Globals) error {
	g.MayCreate = c.Create
	s, err := g.Open(natslock.WithTTL(c.TTL), natslock.WithTuning(natslock.Tuning{WatchAfter: 1}), c.as("lockctl lock"))
	if err != nil {
		return err
	}
	defer s.End()
	signals := supervise.Signals()
	lock, err := c.acquire(s, signals, c.kind(), c.Name, c.TTL, c.method(s.Client, c.Name, &c.taking))
	if err != nil {
		return err
	}
	supervise.AnnounceOutages(s, lock)
	signal.Ignore(syscall.SIGPIPE) // a reader that has gone must not leave the lock to its TTL
	if _, err := fmt.Fprintf(g.Out, "%s %d\n", show.Plain(c.Name), lock.Token()); err != nil {
		return errors.Join(err, lock.Unlock(context.Background()))
	}
	if err := untilEnd(g, lock, signals); err != nil {
		return err
	}
	switch err := lock.Unlock(context.Background()); {
	case errors.Is(err, natslock.ErrLost):
		return err
	case err != nil:
		g.Complain("the lock was held to the end, but is free only when its TTL is over: %v", err)
	}
	return nil
}

// untilEnd waits for the end of standard input, or for a signal. The error is that of a
// lock that was lost before.
func untilEnd(g *session.Globals, lock *natslock.Lock, signals <-chan os.Signal) error {
	ignoreBackgroundReads()
	ended := make(chan error, 1)
	// The read of standard input cannot be interrupted: it ends with the process.
	go func() {
		_, err := io.Copy(io.Discard, g.Stdin)
		ended <- err
	}()
	for {
		select {
		case err := <-ended:
			if err == nil {
				return nil
			}
			g.Complain("cannot read standard input: %v; holding lock %s until a signal comes", err, show.Plain(lock.Name()))
			ended = nil
		case sig := <-signals:
			if slices.Contains(supervise.Requests, sig) {
				return nil
			}
		case <-lock.Context().Done():
			return lock.Err()
		}
	}
}
