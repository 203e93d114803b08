package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/natslock/locks/cmd/lockctl/internal/session"
	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/cmd/lockctl/internal/supervise"
	"github.com/natslock/locks/election"
	"github.com/natslock/locks/internal/tool"
	"github.com/natslock/locks/natslock/admin"
)

type electCmd struct {
	Value     string        `placeholder:"TEXT" help:"Text to show while this candidate leads, such as an address."`
	TTL       time.Duration `default:"15s" placeholder:"DURATION" help:"Lease: how long no candidate leads if this machine dies (default ${default}, whole seconds)."`
	Once      bool          `help:"Lead for one term only."`
	Create    bool          `help:"Create a missing bucket, with three replicas on a cluster."`
	KillAfter time.Duration `default:"5s" placeholder:"DURATION" help:"Time from TERM to KILL (default ${default})."`
	naming    `embed:""`
	Name      string   `arg:"" type:"name" predictor:"lock" help:"The election's name."`
	Command   []string `arg:"" optional:"" passthrough:"partial" help:"The command and its arguments."`
}

func (*electCmd) Help() string {
	return `Waits until this candidate leads, and runs the command while it does. When the command
ends, lockctl resigns and campaigns again, behind the candidates that wait by then; if the
command ran for less than 10 s, it first pauses for up to 10 s. So several machines that
run the same line keep one command running.

The command runs as in "lockctl run", with the same variables and a guard. When the term is
lost in an outage or a break, the group gets TERM, and KILL before another candidate leads.
Then lockctl campaigns again.

INT, TERM, HUP and QUIT end a waiting candidate. A leader passes them to the command,
resigns when the command ends, and exits.

An election is the mutex of the same name. "lockctl info" shows the leader, its value and
the candidates, "lockctl watch" each change of leader, and "lockctl break" ends a term.

  lockctl elect scheduler --value 10.0.0.7:8080 -- ./scheduler
  lockctl info scheduler --json | jq -r '.[].holder.meta.value'

Exit code of a candidate that a signal ended: the command's, or 128 + N for signal N
if it did not lead. With --once the command's, 128 + N if signal N killed it, and
  75   the term of --once was lost, or a killed command has not exited
  126  the command cannot be executed   127 the command was not found`
}

// AfterApply validates what kong's tags cannot express.
func (c *electCmd) AfterApply() error {
	if c.KillAfter < 0 {
		return fmt.Errorf("--kill-after %v: must not be negative", c.KillAfter)
	}
	return nil
}

// errEnough is the cause that Run cancels the campaign with after the last term.
var errEnough = errors.New("no further term")

// Run campaigns for leadership, and runs the command during each term.
func (c *electCmd) Run(g *session.Globals) error {
	command, s, err := prepare(g, "elect", c.Command, c.naming, c.TTL, c.Create)
	if err != nil {
		return err
	}
	defer s.End()

	around := nesting{around: tokensAround(g.Console, c.Name)}
	if err := around.check(context.Background(), s, admin.KindMutex, c.Name); err != nil {
		return err
	}
	signals := g.Signals()
	ctx, cancel := context.WithCancelCause(context.Background())
	stop := endBySignal(signals, cancel)
	var last error // what lockctl returns after the last term
	stuck, ended := make(chan struct{}), make(chan error, 1)
	lead := func(_ context.Context, t *election.Term) error {
		// From here on, signals go to the command, but a signal that has already arrived ends
		// the campaign.
		if stop(); ctx.Err() != nil {
			return nil
		}
		w := supervise.New(g.Console, c.TTL, c.KillAfter)
		g.Complain("leading %s with token %d", show.Plain(c.Name), t.Token())
		end, err := w.Run(command.under(t, c.Name, w.TTL), t, signals, s)
		if end.Stuck { // returning would resign, and let another client lead
			close(stuck)
			select {}
		}
		outcome := command.outcome(end, err, t.Resign(context.Background()))
		if c.Once || w.Asked || err != nil {
			last = outcome
			cancel(errEnough)
			return nil
		}
		g.Complain("the command exited with code %d; campaigning for %s again", end.Code, show.Plain(c.Name))
		stop = endBySignal(signals, cancel)
		return nil
	}
	e := election.New(s.Client, c.Name, election.TTL(c.TTL), election.Value([]byte(c.Value)))
	go func() { ended <- e.Run(ctx, lead) }()
	select {
	case <-stuck:
		return &tool.Error{Code: tool.ExitLost}
	case err = <-ended:
	}
	switch why := context.Cause(ctx).(type) {
	case nil:
		return err
	case signaled:
		return tool.Exitf(tool.ExitSignal+int(why.sig), "gave up campaigning for %s: %v", show.Plain(c.Name), why)
	}
	return last
}
