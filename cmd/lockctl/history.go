package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime/debug"
	"time"

	"github.com/natslock/locks/cmd/lockctl/internal/session"
	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/tool"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

type historyCmd struct {
	Pattern string        `arg:"" type:"name" predictor:"lock" help:"Name of a lock, or a pattern: \"*\" stands for one token, a final \">\" for all that follow."`
	Since   time.Duration `placeholder:"DURATION" help:"Show events since this long ago, such as 1h or 7d (default all that are kept)."`
	Verbose bool          `short:"v" help:"Also print renewals and each gap."`
	JSON    bool          `name:"json" help:"Print one object per line."`
}

func (*historyCmd) Help() string {
	return `Prints what has happened to a lock, the oldest event first, in the lines of "lockctl
watch". "lockctl init --history 7d" creates the history: the server copies each write to
the bucket into a stream beside it. An event takes about 265 bytes.

A line "gap" shows where a grant or an end of this lock is missing. The last line sums up
the other missing writes to the bucket; with -v each gap has a line. There are three
causes: the history does not reach back that far; it is behind the bucket; the server could
not copy a record before another replaced it, because two writes of one lock were about a
millisecond apart, or the history had no leader. A missing end may be shown as "expired",
and a missing grant as the next renewal.

Times are those of the copies: after an outage they show when the history caught up.

  lockctl history deploy --since 1h
  lockctl history 'orders.>' --json | jq 'select(.event == "expired")'

Exit code 0 even if there are no events; 77: see "lockctl perms PATTERN --history"; 78: no
bucket, or no history.`
}

// AfterApply validates what kong's tags cannot express.
func (c *historyCmd) AfterApply() error {
	switch {
	case c.Pattern == "": // an unset variable
		return errors.New("the name is empty")
	case c.Since < 0:
		return fmt.Errorf("--since %v: must be positive", c.Since)
	}
	return nil
}

func (c *historyCmd) Run(g *session.Globals) error {
	s, err := g.Open()
	if err != nil {
		return err
	}
	defer s.End()
	var since time.Time
	if c.Since > 0 {
		since = time.Now().Add(-c.Since)
	}
	// At the default setting, garbage collection would account for a tenth of the run time, and
	// even a long history produces little garbage relative to the memory of a typical machine.
	defer debug.SetGCPercent(debug.SetGCPercent(800))
	out := bufio.NewWriterSize(g.Out, 64<<10)
	events, err := c.print(admin.New(s.Client).History(context.Background(), c.Pattern, since), out)
	if flushed := out.Flush(); flushed != nil && err == nil {
		return flushed
	}
	switch {
	case errors.Is(err, kvstore.ErrNoHistory):
		return tool.Exitf(tool.ExitConfig, "bucket %s has no history: create one with \"lockctl init --history 7d\", which records events from then on", show.Plain(g.Bucket))
	case errors.Is(err, natslock.ErrPermission):
		return tool.Exitf(tool.ExitPermission, "%w; see \"lockctl perms PATTERN --history\"", err)
	case err != nil:
		return err
	}
	if events == 0 {
		g.Complain("no events for %s", show.Plain(c.Pattern))
		show.CheckPattern(g.Console, c.Pattern)
	}
	return nil
}

// print prints the events and returns how many it printed.
func (c *historyCmd) print(all iter.Seq2[admin.Event, error], out *bufio.Writer) (events int, err error) {
	holders := make(map[string]bool) // holders with a grant or renewal already printed
	var others show.Gaps
	defer func() {
		if line := others.Line(); line != "" && err == nil {
			_, err = out.WriteString(line + "\n")
		}
	}()
	for ev, err := range all {
		var line string
		known := holders[ev.ID]
		switch ev.Type {
		case admin.EventGranted, admin.EventRenewed:
			holders[ev.ID] = true
		case admin.EventReleased, admin.EventExpired:
			delete(holders, ev.ID)
		}
		switch gap := ev.Type == admin.EventGap; {
		case err != nil:
			return events, err
		case ev.Type == admin.EventRenewed && ev.Late == 0 && known && !c.Verbose:
			continue
		case gap && c.JSON:
			line = show.GapObject(ev)
		case gap && !c.Verbose && others.Add(ev):
			continue
		case gap:
			line = show.GapLine(ev)
		case c.JSON:
			events, line = events+1, show.EventObject(ev)
		default:
			events, line = events+1, show.EventLine(ev)
		}
		if _, err := out.WriteString(line + "\n"); err != nil {
			return events, err
		}
	}
	return events, nil
}
