package demo

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/natslock/locks/cmd/lockctl/internal/console"
	"github.com/natslock/locks/cmd/lockctl/internal/session"
	"github.com/natslock/locks/internal/plain"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

// Victim is the hidden command that runs in the process that the demo kills. It takes the lock
// and holds it, and exits on its own only if the demo does.
type Victim struct {
	Lock string        `arg:""`
	TTL  time.Duration `required:""`
}

// Run reports the lock's events to the demo on standard output. It returns when standard input
// ends, or with an error if the lock is lost.
func (c *Victim) Run(g *session.Globals) error {
	events := make(chan string, 64)
	s, err := g.Open(natslock.WithOwner("victim"), natslock.WithTTL(c.TTL),
		admin.WithObserver(func(_ context.Context, ev admin.Event) {
			select {
			case events <- fmt.Sprintln(ev.Type, ev.Token):
			default:
			}
		}))
	if err != nil {
		return err
	}
	defer s.End()
	l, err := s.Lock(context.Background(), c.Lock)
	if err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() { _, _ = io.Copy(io.Discard, os.Stdin); close(ended) }()
	for {
		select {
		case line := <-events:
			fmt.Print(line)
		case <-ended:
			return l.Unlock(context.Background())
		case <-l.Context().Done():
			return l.Err()
		}
	}
}

// victim is the demo's side of the victim process.
type victim struct {
	cmd   *exec.Cmd
	stdin io.Closer
	lines *bufio.Scanner
	dead  bool
}

func (d *demo) startVictim() (*victim, error) {
	self, err := console.Self()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, "--no-context", "--server", d.g.Server, "--bucket", d.g.Bucket, "victim", "--ttl", d.ttl.String(), demoLock)
	cmd.Stderr = os.Stderr
	// The user's environment may point to other servers.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "NATS_") || strings.HasPrefix(v, "LOCKCTL_")
	})
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	d.say("victim", "runs as a separate process, pid %d", cmd.Process.Pid)
	return &victim{cmd: cmd, stdin: stdin, lines: bufio.NewScanner(stdout)}, nil
}

// await waits for the next event of type want and returns its token.
func (v *victim) await(want admin.EventType) (token uint64, err error) {
	for v.lines.Scan() {
		var typ string
		if _, err := fmt.Sscan(v.lines.Text(), &typ, &token); err == nil && typ == want.String() {
			return token, nil
		}
	}
	return 0, plain.Join(fmt.Errorf("the victim ended before it was killed"), v.lines.Err())
}

func (v *victim) granted() (uint64, error) { return v.await(admin.EventGranted) }

func (v *victim) renewed() error { _, err := v.await(admin.EventRenewed); return err }

// kill kills the victim and returns the time of the kill.
func (v *victim) kill() (time.Time, error) {
	v.dead = true
	at := time.Now()
	if err := v.cmd.Process.Kill(); err != nil {
		return at, err
	}
	_ = v.cmd.Wait()
	return at, nil
}

// stop ends the victim if it has not been killed.
func (v *victim) stop() {
	if !v.dead {
		_ = v.stdin.Close()
		_ = v.cmd.Wait()
	}
}
