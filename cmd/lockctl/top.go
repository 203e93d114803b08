package main

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"

	tea "charm.land/bubbletea/v2"
)

type topCmd struct {
	Pattern string `arg:"" optional:"" default:">" help:"Names to show: \"*\" stands for one token, a last \">\" for all that follow."`
	Reason  string `default:"broken with lockctl top" placeholder:"TEXT" help:"Reason of a break, shown to the holder and by lockctl info."`
}

func (*topCmd) Help() string {
	return `A live view of the locks. Each line has the holder, the time of the grant, the end
of the lease unless it is renewed, the length of the queue and the longest wait.
Above them are the grants per second, and the hand-overs among them, from a holder
to a waiter. Grants inside the client of a lock that lingers are no hand-overs. top
draws from events, and reads all locks now and then. When it cannot reach the
server it says so, and continues when the server is back.

  up, down, j, k   choose; also page up and down, home, end
  enter            everything about one lock; esc goes back
  /                show only names and holders that contain a text; esc ends it
  s, r             sort by the next column; the other way round
  b                break the holder, after a y: as "lockctl break" does, it ends
                   that holder and no later one, and keeps others out until it
                   has stopped or its lease is over
  B                break it so that the next one gets in at once
  ?                help
  q                quit

A "!" marks a name that is a mutex and a reader-writer lock at once: these do not
exclude each other. The mode "idle" is explained in "lockctl ls --help". A narrow
screen shows the end of a token.

  lockctl top 'orders.>'

Exit code: 0 at q, INT or TERM.
  64 usage, or no terminal   69 no server at the start, or none any more that
  lets this user in   77 no permission   78 no bucket, or one not fit for locks`
}

// AfterApply checks what kong cannot.
func (c *topCmd) AfterApply() error {
	if c.Pattern == "" { // an unset variable
		return errors.New("the pattern is empty")
	}
	return nil
}

func (c *topCmd) Run(g *globals) error {
	if !isTerminal(os.Stdin) || !isTerminal(os.Stdout) || os.Getenv("TERM") == "dumb" {
		return usagef("top needs a terminal; see lockctl ls and lockctl watch")
	}
	s, err := g.connect()
	if err != nil {
		return err
	}
	defer s.close()

	p := newPicture()
	f := &feed{g: g, s: s, pattern: c.Pattern, event: p.event, disconnected: p.disconnected, absent: p.absent}
	p.f = f
	said := &complaint{}
	complaints = said // nobody else is running yet
	checkPattern(c.Pattern)
	ctx, cancel := context.WithCancel(context.Background())
	program := tea.NewProgram(newTop(c, s.url, g.Bucket, p, said), tea.WithFPS(20))
	var background sync.WaitGroup
	var failed error
	background.Go(func() { p.run(ctx) })
	background.Go(func() {
		if failed = f.run(ctx); failed != nil {
			program.Quit()
		}
	})
	_, err = program.Run()
	cancel()
	background.Wait()
	said.end()
	if errors.Is(err, tea.ErrInterrupted) {
		err = nil
	}
	return errors.Join(failed, err)
}

// complaint keeps the last thing that was complained of, for as long as there is
// a screen to show it on.
type complaint struct {
	mu    sync.Mutex
	text  string
	ended bool
}

func (c *complaint) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return os.Stderr.Write(b)
	}
	line, _, _ := strings.Cut(string(b), "\n")
	c.text = plain(strings.TrimPrefix(line, "lockctl: "))
	return len(b), nil
}

func (c *complaint) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
}

// take returns it once.
func (c *complaint) take() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	text := c.text
	c.text = ""
	return text
}
