package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/natslock/locks/cmd/lockctl/internal/console"
	"github.com/natslock/locks/cmd/lockctl/internal/session"
	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/natslock/admin"
)

type watchCmd struct {
	Pattern string `arg:"" type:"name" optional:"" default:">" help:"Names to watch: \"*\" stands for one token, a final \">\" for all that follow."`
	Verbose bool   `short:"v" help:"Also print renewals."`
	JSON    bool   `name:"json" help:"Print one object per line."`
}

func (*watchCmd) Help() string {
	return `Prints a line for each event, with its time, type, lock, holder or waiter, fencing token or
ticket in the queue, and the time waited or held.

  queued     a client began to wait
  granted    a client got the lock; a writer, the gate that keeps out new readers
  renewed    a lease was renewed (with -v)
  late       a lease was renewed more than two thirds of its TTL after the last time:
             one more such delay ends it
  released   the holder unlocked
  expired    a lease ended: the holder is dead or cut off
  broken     an operator broke a hold
  gave up    a waiter stopped waiting

Events are hints: those during an outage of the server are missed, and those while the
bucket has no leader, which watch checks every 10 s. Standard error says when that was.
The watch begins when "watching" is printed. A holder that was never seen has no name when
it leaves. "idle" marks an event of a lock that no goroutine was inside at its last renewal.
When the bucket is deleted, watch waits for the next one.

  lockctl watch 'orders.>'
  lockctl watch --json | jq 'select(.event == "expired") | .name'

With --json each line has "time", "event" ("gave_up" with an underscore), "kind", "name",
"mode", "token" or "ticket", and the fields of a holder in "lockctl ls --json". "ttl",
"expires", "waited", "held" and "broken" are null if they do not apply. "grants" is the
number of grants that the event reports, "after" the time since the last renewal of a late
one. Events between "time" and "until" of the event "gap" may be missing, after an outage or
because the reader left 65,536 events unread; "remade": the bucket was re-created in the gap.`
}

// AfterApply validates what kong's tags cannot express.
func (c *watchCmd) AfterApply() error {
	if c.Pattern == "" { // an unset variable
		return errors.New("the pattern is empty")
	}
	return nil
}

func (c *watchCmd) Run(g *session.Globals) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// When the output is closed, end the watch normally rather than by a signal.
	signal.Ignore(syscall.SIGPIPE)
	s, err := g.Connect()
	if err != nil {
		return err
	}
	defer s.End()
	show.CheckPattern(g.Console, c.Pattern)
	p := &watchPrinter{c: c, con: g.Console, url: s.URL, end: stop}
	f := &session.Feed{Globals: g, Session: s, Pattern: c.Pattern, Event: p.event, Disconnected: p.disconnected, Absent: p.absent}
	return f.Run(ctx)
}

// watchPrinter prints events to standard output and interruptions to standard error.
type watchPrinter struct {
	c   *watchCmd
	con *console.Console
	url string
	end func() // called when nobody is reading the output

	mu      sync.Mutex
	began   bool
	missing string    // why there is nothing to watch
	remade  bool      // the bucket has been missing or re-created since the watch last began
	last    time.Time // time of the last event
}

func (p *watchPrinter) event(ev admin.Event) {
	switch {
	case ev.Type == admin.EventWatching:
		p.watching(ev)
		return
	case ev.Type == admin.EventRenewed && ev.Late == 0 && !p.c.Verbose:
		return
	}
	p.mu.Lock()
	p.last = ev.Time
	p.mu.Unlock()
	line := show.EventLine(ev)
	if p.c.JSON {
		line = show.EventObject(ev)
	}
	p.print(line)
}

func (p *watchPrinter) print(line string) {
	if _, err := fmt.Fprintln(p.con.Out, line); err != nil {
		p.end()
	}
}

// watching reports that the watch has begun, or has resumed after a gap. With --json, it also
// prints the gap.
func (p *watchPrinter) watching(ev admin.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	again := ""
	if p.began {
		again = " again; events in between were missed"
		gap := admin.Event{Type: admin.EventGap, Time: ev.Since, Until: ev.Time}
		if gap.Time.IsZero() { // the watch itself was restarted
			gap.Time = p.last
		}
		if p.remade {
			gap.Cause = kvstore.ErrRemade
		}
		if p.c.JSON {
			p.print(show.GapObject(gap))
		}
	}
	p.began, p.missing, p.remade, p.last = true, "", false, ev.Time
	p.con.Complain("watching %s at %s%s", show.Plain(p.c.Pattern), p.url, again)
}

func (p *watchPrinter) disconnected() {
	p.con.Complain("lost the connection to %s; waiting for it to come back", p.url)
}

func (p *watchPrinter) absent(why error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	text := why.Error()
	p.remade = p.remade || errors.Is(why, kvstore.ErrNotFound) || errors.Is(why, kvstore.ErrRemade)
	if errors.Is(why, kvstore.ErrNotFound) {
		text = "the bucket does not exist"
	}
	if text != p.missing {
		p.missing = text
		p.con.Complain("%s; waiting for it", text)
	}
}
