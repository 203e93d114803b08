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
	Value     string        `placeholder:"TEXT" help:"Shown to all while this candidate leads, an address for example."`
	TTL       time.Duration `default:"15s" placeholder:"DURATION" help:"Lease: how long nobody leads after this machine died (default ${default}, whole seconds)."`
	Once      bool          `help:"Lead for one term and end with the exit code of \"lockctl run\". Without a command: print the leader there is, and end."`
	Create    bool          `help:"Make the bucket if it is not there, with three replicas on a cluster."`
	KillAfter time.Duration `default:"5s" placeholder:"DURATION" help:"From TERM to KILL when the term is lost (default ${default}), cut short by the lease."`
	naming    `embed:""`
	JSON      bool     `name:"json" help:"Without a command: print an object in a line for each change."`
	Name      string   `arg:"" predictor:"lock" help:"The election's name."`
	Command   []string `arg:"" optional:"" passthrough:"partial" help:"The command and its arguments; without one the leader is printed."`
}

func (*electCmd) Help() string {
	return `With a command this is a candidate. It waits until it leads, and runs the command
while it does. When the command ends, lockctl resigns and campaigns again, behind the
candidates that wait by then. It pauses before that if the command ran for less than
10 s: for 100 ms at first, and for up to 10 s when that repeats. --once ends after one
term. So several machines that run the same line keep one command running.

The command is run as "lockctl run" does it: LOCK_NAME, LOCK_TOKEN and LOCK_TTL in its
environment, a process group of its own, and a guard. When the term is lost, by an
outage or a break, the group gets TERM, and KILL before another candidate leads. Then
lockctl campaigns again.

INT, TERM, HUP and QUIT end a candidate that waits. While it leads they go to the
command, and lockctl resigns and ends when the command does. USR1 and USR2 go to the
command only.

Without a command lockctl is no candidate. It prints the leader, and a line for each
change: another leader, another value, or no leader. Where a notification is lost, it
is right within 5 s. It waits until an outage of the server is over.

An election is the mutex of the same name. "lockctl info" shows its candidates, and
"lockctl break" ends a term. "lockctl run -n" leads only if nobody else does.

  lockctl elect scheduler --value 10.0.0.7:8080 -- ./scheduler
  lockctl elect scheduler
  lockctl elect scheduler --once --json | jq -r .leader.value

Exit code of a candidate that a signal ended: the command's, or 128 + N for signal N
if it did not lead. With --once the command's, or 128 + N if signal N killed it.
Without a command it is 0 when INT or TERM end it, or nobody reads any more.
  1 nobody leads (--once without a command)
  64 usage   69 no server   75 the term of --once was lost, or a killed command is still there
  77 no permission   78 no bucket, or one not fit for locks
  126 the command cannot be executed   127 there is none of that name`
}

// AfterApply checks what kong cannot.
func (c *electCmd) AfterApply() error {
	switch {
	case c.KillAfter < 0:
		return fmt.Errorf("--kill-after %v: negative", c.KillAfter)
	case c.JSON && len(c.Command) > 0:
		return errors.New("--json goes without a command")
	}
	return nil
}

func (c *electCmd) Run(g *session.Globals) error {
	if len(c.Command) > 0 {
		return c.campaign(g)
	}
	for _, flag := range []string{"value", "ttl", "create", "kill-after", "owner"} {
		if g.Given(flag) {
			return tool.Usagef("--%s goes with a command only: lockctl elect %s -- COMMAND", flag, show.Plain(c.Name))
		}
	}
	return c.observe(g)
}

// errEnough ends a campaign that has reached its end.
var errEnough = errors.New("no further term")

// campaign runs the command in each term.
func (c *electCmd) campaign(g *session.Globals) error {
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
	var last error // lockctl's end, after the last term
	stuck, ended := make(chan struct{}), make(chan error, 1)
	lead := func(_ context.Context, t *election.Term) error {
		// From here on signals are for the command. One that came before ends the campaign.
		if stop(); ctx.Err() != nil {
			return nil
		}
		w := supervise.New(g.Console, c.TTL, c.KillAfter)
		g.Complain("leads %s with token %d", show.Plain(c.Name), t.Token())
		end, err := w.Run(command.under(t, c.Name, w.TTL, s), t, signals, s)
		if end.Stuck { // a return would resign
			close(stuck)
			select {}
		}
		outcome := command.outcome(end, err, t.Resign(context.Background()))
		if c.Once || w.Asked || err != nil {
			last = outcome
			cancel(errEnough)
			return nil
		}
		g.Complain("the command has ended with exit code %d; campaigning for %s again", end.Code, show.Plain(c.Name))
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

// leaderJSON is what elect --json prints of a leader. Fields are added, never renamed. The
// reference prints what the tags say.
type leaderJSON struct {
	Token uint64 `json:"token" doc:"fencing token of the term; below 2^53 until 2060"`
	ID    string `json:"id" doc:"of its claim; break takes it"`
	show.Client
	Since time.Time `json:"since" doc:"when the term began, by the leader's own clock"`
	Value string    `json:"value" doc:"its --value, or another one that it has proclaimed"`
}

// changeJSON is a line of elect --json.
type changeJSON struct {
	Time   time.Time   `json:"time" doc:"when lockctl learned of it, by its own clock"`
	Name   string      `json:"name" doc:"the election's name"`
	Leader *leaderJSON `json:"leader" doc:"null: nobody leads"`
}

func changeOf(name string, at time.Time, l election.Leader) changeJSON {
	out := changeJSON{Time: at.UTC(), Name: name}
	if !l.Vacant() {
		out.Leader = &leaderJSON{l.Token, l.ID, show.Client{Owner: l.Owner, Host: l.Host, PID: l.PID}, l.Since.UTC(), string(l.Value)}
	}
	return out
}

// leaderLine is a change for reading.
func leaderLine(name string, at time.Time, l election.Leader) string {
	line := show.Faint.Sprint(show.ClockMillis(at)) + "  " + show.Bold.Sprint(show.Plain(name)) + "  "
	if l.Vacant() {
		return line + show.Alarm.Sprint("no leader")
	}
	line += fmt.Sprintf("led by %s for %s  ", show.Who(l.Owner, l.Host, l.PID), show.Brief(at.Sub(l.Since)))
	if len(l.Value) > 0 {
		line += "value " + show.Plain(string(l.Value)) + "  "
	}
	return line + show.Faint.Sprintf("token %d", l.Token)
}
