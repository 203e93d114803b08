package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"strconv"
	"time"

	"github.com/natslock/locks/cmd/lockctl/internal/session"
	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/cmd/lockctl/internal/supervise"
	"github.com/natslock/locks/internal/tool"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/semaphore"
)

type runCmd struct {
	choice    `embed:""`
	TTL       time.Duration `default:"15s" placeholder:"DURATION" help:"Lease: how long others wait if this machine dies (default ${default}, whole seconds)."`
	taking    `embed:""`
	naming    `embed:""`
	Keep      *time.Duration `placeholder:"DURATION" help:"Run a job once: after the command exits with 0, no call with this name runs it for this long (1s to 365 days)."`
	KillAfter time.Duration  `default:"5s" placeholder:"DURATION" help:"Time from TERM to KILL (default ${default})."`
	Shell     *string        `name:"command" short:"c" placeholder:"TEXT" help:"Run this text with $SHELL or /bin/sh."`
	Name      string         `arg:"" type:"name" predictor:"lock" help:"The lock's name."`
	Command   []string       `arg:"" optional:"" passthrough:"partial" help:"The command and its arguments."`
}

func (*runCmd) Help() string {
	return `Takes the mutex of that name, with --read or --write the reader-writer lock, and with
--permits the semaphore, for which all clients must give the same N. These are different
locks, which do not exclude each other.

After waiting for a second, lockctl reports who holds the lock, and its place in the queue.
Inside the command, at any depth, lockctl refuses to wait for a lock that an enclosing
command holds (LOCKCTL_HELD lists those), except a read lock inside a read lock if no writer
waits, and a permit if the enclosing commands leave one free.

The command's environment has LOCK_NAME, LOCK_TOKEN (the fencing token, above those of all
earlier holders), LOCK_TTL (seconds) and, with --permits, LOCK_SLOT (the permit, from 0:
tokens rise only within one permit). It runs in its own process group, in the foreground if
lockctl is. lockctl forwards INT, TERM, HUP, QUIT, USR1 and USR2.

--keep makes the command a job that is done once under its name, which should contain the
day, release or batch. When the command exits with 0, its mutex stays for this long, and
later calls exit with 0 and do nothing. Otherwise the next call runs the job again: call it
every few minutes. It does not wait: while another call runs the job, the exit code is 1, or
that of -E; with -E 0 lockctl prints nothing.

When the lock is lost in an outage or a break, the group gets TERM, and KILL after
--kill-after or before the lease ends on the server, whichever comes first. Processes that
the command leaves in the background when it ends continue without the lock.

A second process, the guard, ends the group if lockctl is killed. If lockctl is stopped
(^Z, SIGSTOP, a debugger), the group is dead before the next holder starts: with a TTL
of 15 s it gets TERM 10 s and KILL 13 s after the last renewal. The guard cannot reach a
process that left the group (setsid, a daemon), or act while the machine or container is
frozen, or if it is killed with its lockctl. Windows has no guard. In these cases only a
resource that checks LOCK_TOKEN is safe. lockctl may be the first process of a container.

  lockctl run deploy -- ./deploy.sh
  lockctl run -n -E 0 nightly -- ./backup.sh   # not twice, and no error
  lockctl run --keep 48h -E 0 report.$(date +%F) -- ./report.sh   # once a day
  lockctl run deploy -c 'make && make install'
  lockctl run --read index -- ./query
  lockctl run --permits 5 exports -- ./export

Exit code: the command's, 128 + N if signal N killed it or ended the wait, and
  0    also if the job was already done (--keep)
  1, or -E   the lock was not free in time (-n, -w, --keep)
  69   no server, or no confirmation that the job is done (--keep)
  75   the lock was lost, or the guard ended the command
  126  the command cannot be executed   127 the command was not found`
}

// AfterApply validates what kong's tags cannot express.
func (c *runCmd) AfterApply() error {
	switch {
	case c.KillAfter < 0:
		return fmt.Errorf("--kill-after %v: must not be negative", c.KillAfter)
	case c.Shell != nil && len(c.Command) > 0:
		return errors.New("-c and a command are mutually exclusive")
	}
	return cmp.Or(c.choice.check(), c.taking.check(), c.checkKeep())
}

// words returns the command to run, followed by its arguments.
func (c *runCmd) words(g *session.Globals) []string {
	if c.Shell != nil {
		return []string{cmp.Or(g.Getenv("SHELL"), "/bin/sh"), "-c", *c.Shell}
	}
	return c.Command
}

func (c *runCmd) Run(g *session.Globals) error {
	words := c.words(g)
	if len(words) == 0 && g.Server != g.Getenv("NATS_URL") { // to flock, -s means shared
		return tool.Usagef("a command is missing; -s is the server, and --read shares the lock; see lockctl run --help")
	}
	command, s, err := prepare(g, "run", words, c.naming, c.TTL, c.Create)
	if err != nil {
		return err
	}
	defer s.End()

	signals := g.Signals()
	var job *job
	take := c.method(s.Client, &c.taking)
	if c.Keep != nil {
		job = newJob(s.Client, *c.Keep)
		take = job.take
	}
	lock, err := c.acquire(s, signals, c.kind(), c.Name, c.TTL, take)
	switch {
	case c.Keep != nil && (errors.Is(err, natslock.ErrDone) || errors.Is(err, natslock.ErrLocked) && c.ConflictExitCode == 0):
		return nil
	case err != nil:
		return err
	}
	w := supervise.New(g.Console, c.TTL, c.KillAfter)
	cmd := command.under(lock, c.Name, w.TTL)
	if n, ok := semaphore.Slot(lock); ok {
		cmd.Env = append(cmd.Env, "LOCK_SLOT="+strconv.Itoa(n))
	}
	end, err := w.Run(cmd, lock, signals, s)
	if end.Stuck {
		return &tool.Error{Code: tool.ExitLost}
	}
	if job == nil {
		return command.outcome(end, err, lock.Unlock(context.Background()))
	}
	done := err == nil && end.Lost == nil && end.Code == 0
	unconfirmed := job.end(done)
	if done && unconfirmed != nil && !errors.Is(unconfirmed, natslock.ErrLost) {
		return unconfirmed
	}
	return command.outcome(end, err, unconfirmed)
}

// cannotRun returns the error for a command that could not be started. It has the exit code
// that a shell would use.
func cannotRun(name string, err error) error {
	code := tool.ExitNotExec
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		code = tool.ExitNotFound
	}
	if wrapped, ok := errors.AsType[*exec.Error](err); ok {
		err = wrapped.Err
	}
	if wrapped, ok := errors.AsType[*fs.PathError](err); ok {
		err = wrapped.Err
	}
	return tool.Exitf(code, "cannot run %s: %w", show.Plain(name), err)
}
