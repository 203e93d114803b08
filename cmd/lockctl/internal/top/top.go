// Package top implements the full-screen view of the locks. Its model draws snapshots of a
// picture, which is a mirror of the bucket with rates and events.
package top

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"

	tea "charm.land/bubbletea/v2"

	"github.com/natslock/locks/cmd/lockctl/internal/console"
	"github.com/natslock/locks/cmd/lockctl/internal/session"
	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/internal/mirror"
	"github.com/natslock/locks/internal/plain"
	"github.com/natslock/locks/internal/tool"
)

// Command is "lockctl top".
type Command struct {
	Pattern string `arg:"" type:"name" optional:"" default:">" help:"Names to show: \"*\" stands for one token, a final \">\" for all that follow."`
	Sort    string `default:"queue" enum:"queue,wait,held,expires,grants,readers,holder,name" placeholder:"BY" help:"queue (the most contended first), wait, held, expires, grants, readers, holder or name."`
	Reason  string `default:"broken with lockctl top" placeholder:"TEXT" help:"Reason of a break, shown to the holder and by lockctl info."`
}

// Help returns the detailed help for the command.
func (*Command) Help() string {
	return `A live view of the locks, the most contended first, with holder, time since the grant, end
of the lease unless renewed, length of the queue, longest wait and grants per second. A
hand-over is a grant to a waiter, except inside the client of a lingering lock.

top reports when it cannot reach the server, and when the bucket has no leader or is unfit.
Until that is over the list is as last read, and a lock whose lease ends is "unknown". A
lock that has become free stays for two seconds. "lockctl ls --help" explains "idle" and
"overdue".

  up, down, j, k   select; also page up and down, home, end
  enter            details of a lock, and its events; esc goes back
  /                show only names and holders that contain a text; esc ends it
  s, r             next sort order; reverse it
  b                break the holder, after a y, as "lockctl break" does
  B                break it and let the next client in at once
  ?                help
  q                quit

The selected line begins with ">". The first line stays selected until you choose another,
and then the selection follows its lock; home ends that. A "!" marks a name used by locks
of different kinds. A lock's screen has up to 200 of its events since top began.

  lockctl top 'orders.>'
  lockctl top --sort held

Exit code 64: usage, or no terminal. 69: no server at the start, or none left that lets
this user in.`
}

// AfterApply validates what kong's tags cannot express.
func (c *Command) AfterApply() error {
	if c.Pattern == "" { // an unset variable
		return errors.New("the pattern is empty")
	}
	return nil
}

// Run shows the screen until q or a signal ends it. It returns an error if the screen ends for
// any other reason.
func (c *Command) Run(g *session.Globals) error {
	if console.Terminal(g.Stdin) == nil || console.Terminal(g.Out.W) == nil || g.Getenv("TERM") == "dumb" {
		return tool.Usagef("top needs a terminal; see lockctl ls and lockctl watch")
	}
	s, err := g.Connect()
	if err != nil {
		return err
	}
	defer s.End()

	show.ASCII = show.ASCIILocale(g.Getenv)
	p := newPicture()
	p.mirror = s.Mirror(g, mirror.Config{Pattern: c.Pattern, Event: p.event, Changed: p.changed, Turned: p.turned})
	said := &complaint{after: g.Stderr}
	g.Complaints = said // safe, because no other goroutine is running yet
	show.CheckPattern(g.Console, c.Pattern)
	ctx, cancel := context.WithCancel(context.Background())
	program := tea.NewProgram(newTop(c, s.URL, g.Bucket, g.Timeout, p, said), tea.WithFPS(topFrames))
	var background sync.WaitGroup
	var failed error
	background.Go(func() {
		if failed = s.Follow(ctx, p.mirror, c.Pattern); failed != nil {
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
	return plain.Join(failed, err)
}

// complaint keeps the latest complaint while there is a screen to show it on.
type complaint struct {
	after io.Writer // receives the complaints once the screen has ended
	mu    sync.Mutex
	text  string
	ended bool
}

func (c *complaint) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return c.after.Write(b)
	}
	line, _, _ := strings.Cut(string(b), "\n")
	c.text = show.Plain(strings.TrimPrefix(line, "lockctl: "))
	return len(b), nil
}

func (c *complaint) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
}

// take returns the complaint and clears it.
func (c *complaint) take() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	text := c.text
	c.text = ""
	return text
}
