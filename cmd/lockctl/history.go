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
	Pattern string        `arg:"" type:"name" predictor:"lock" help:"Name of a lock, or a pattern: \"*\" stands for a token, a last \">\" for all that follow."`
	Since   time.Duration `placeholder:"DURATION" help:"Show the time from this long ago on, as 1h or 7d (default all that is kept)."`
	Verbose bool          `short:"v" help:"Print renewals too, and each gap."`
	JSON    bool          `name:"json" help:"Print one object per line."`
}

func (*historyCmd) Help() string {
	return `Prints what has happened to a lock, the oldest event first, in the lines of "lockctl
watch". "lockctl init --history 7d" makes the history: the server copies
each write to the bucket into a stream beside it. Before that there is none.

Where a record shows that a grant or an end of its lock is missing, a line "gap" says so: a
history that hides its gaps is worse than none. The last line sums up the other writes to
the bucket that are missing. They are of other locks, or a hold that left no trace. With -v
each gap has a line. There are three causes: nothing so old is kept; the server could not
copy a record before another one replaced it; the history is behind the bucket. The first
happens once, at the top. The second happens where two writes of one lock are about a
millisecond apart, because the bucket keeps the last one only, or while the history has no
leader. The end of a holder may be in the gap: then it
is missing, or shown as "expired". Of a holder whose grant is missing, the next renewal is
printed instead.

An event takes about 265 bytes: the default size of 256 MiB holds a million. On a busy
machine with two cores, 64 goroutines with a lock each made 6,700 cycles of lock and unlock
a second without a history and 5,100 with one. A single goroutine made 1,100 either way. The
history kept 97% of the writes of the 64, and 91% of those of the one. On quiet machines with
two cores, the first of 100,000 events of one lock are printed after 0.1s, and the last after
0.9 to 1.4s. Another lock beside them is answered for in 0.04s.

The times are those of the copies, which an idle server makes within a millisecond. A
history that has caught up after an outage shows the time of that.

  lockctl history deploy --since 1h
  lockctl history 'orders.>' --json | jq 'select(.event == "expired")'

With --json the lines are those of "lockctl watch --json", and each gap has one with the
event "gap", and its begin and end in time and until. Missed is the number of writes of any
locks, or null if that is not known. Remade is true if the bucket was re-created there. A gap
with a name is one that the lock's records show: missed counts its events, at least.

Exit codes:
  0 also when nothing has happened
  64 usage   69 no server   77 no permission: see "lockctl perms PATTERN --history"
  78 no bucket, or no history`
}

// AfterApply checks what kong cannot.
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
	// Garbage collection would take a tenth of the time. The garbage of a long history is
	// small beside the memory of a machine.
	defer debug.SetGCPercent(debug.SetGCPercent(800))
	out := bufio.NewWriterSize(g.Out, 64<<10)
	events, err := c.print(admin.New(s.Client).History(context.Background(), c.Pattern, since), out)
	if flushed := out.Flush(); flushed != nil && err == nil {
		return flushed
	}
	switch {
	case errors.Is(err, kvstore.ErrNoHistory):
		return tool.Exitf(tool.ExitConfig, "bucket %s has no history: make one with \"lockctl init --history 7d\"; it begins then", show.Plain(g.Bucket))
	case errors.Is(err, natslock.ErrPermission):
		return tool.Exitf(tool.ExitPermission, "%w; see \"lockctl perms PATTERN --history\"", err)
	case err != nil:
		return err
	}
	if events == 0 {
		g.Complain("nothing has happened to %s", show.Plain(c.Pattern))
		show.CheckPattern(g.Console, c.Pattern)
	}
	return nil
}

// print prints the events, and returns how many there were.
func (c *historyCmd) print(all iter.Seq2[admin.Event, error], out *bufio.Writer) (events int, err error) {
	holders := make(map[string]bool) // whose grant was printed, or a renewal in its place
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
