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
	"github.com/natslock/locks/semaphore"
)

type runCmd struct {
	choice    `embed:""`
	TTL       time.Duration `default:"15s" placeholder:"DURATION" help:"Lease: how long the lock stays taken when this machine dies (default ${default}, whole seconds)."`
	taking    `embed:""`
	naming    `embed:""`
	KillAfter time.Duration `default:"5s" placeholder:"DURATION" help:"From TERM to KILL when the lock is lost (default ${default}), cut short by the lease."`
	Shell     *string       `name:"command" short:"c" placeholder:"TEXT" help:"Run this text by $SHELL or /bin/sh, instead of a command."`
	Name      string        `arg:"" type:"name" predictor:"lock" help:"The lock's name."`
	Command   []string      `arg:"" optional:"" passthrough:"partial" help:"The command and its arguments."`
}

func (*runCmd) Help() string {
	return `Without --read, --write or --permits this takes the mutex of that name. --read and
--write name the reader-writer lock of that name, and --permits names the semaphore.
These are different locks, which do not exclude each other, so all clients have to
use the same kind. Of a semaphore at most N commands run at a time, if all of them
give the same N.

With -c the command is a line of a shell, as flock has it: $SHELL runs it, or /bin/sh if
that is unset.

After a second lockctl says on standard error that it waits, for whom, and at which place
in the queue. On a terminal that line changes with the queue, and goes when the lock is
granted. Inside the command, at any depth, lockctl refuses to wait for the same lock: it
would wait for itself. A lock for reading inside one for reading is allowed unless a writer
waits, and so is a permit while the commands around leave one free.

Others see the user, the machine, the process id and the name of the command as the
holder, or the text of --owner. lockctl never shows the arguments of the command, which
can hold secrets.

The command finds LOCK_NAME (as lockctl takes it), LOCK_TOKEN (the fencing token:
greater than that of every holder before) and LOCK_TTL (seconds) in its environment. With --permits it
also finds LOCK_SLOT, the number of its permit from 0. The token is then greater than
that of every holder of this slot before. It runs in a
process group of its own, in the foreground if lockctl is. lockctl passes INT,
TERM, HUP, QUIT, USR1 and USR2 on to the group. LOCKCTL_HELD has the locks around, for a
lockctl inside.

When the lock is lost, by an outage or a break, the whole group gets TERM. It gets
KILL after --kill-after or before the lease ends on the server, whichever is
first. Processes that a command leaves in the background when it ends continue
without the lock.

A second process, the guard, ends the group when lockctl cannot. When lockctl is
killed, the group gets TERM at once and KILL after --kill-after, or sooner if the
validity of the lock ends. When lockctl is stopped (^Z, SIGSTOP, a debugger), it
does not renew the lock, and the group is dead before the next holder starts. KILL
comes two margins before the lease ends on the server. TERM comes --kill-after
before that, at most a fifth of the TTL. A margin is a tenth of the TTL, at most
1 s. With a TTL of 15 s, TERM comes 10 s and KILL 13 s after the last renewal.

The guard does not reach a process that left the group (setsid, a daemon). It
cannot act while the machine or the container is frozen, nor if it is killed with its
lockctl. Windows has no guard. In these cases only a resource that checks LOCK_TOKEN is
safe. The first process of a container may be lockctl: it collects orphans.

  lockctl run deploy -- ./deploy.sh
  lockctl run -n -E 0 nightly -- ./backup.sh   # not twice, and no error
  lockctl run deploy -c 'make && make install'
  lockctl run --read index -- ./query
  lockctl run --permits 5 exports -- ./export

Exit code: the command's, 128 + N if signal N killed it or ended the waiting.
  1, or -E   the lock was not free in time (-n, -w)
  64 usage   69 no server   75 the lock was lost, or the guard ended the command
  77 no permission   78 no bucket, or one not fit for locks
  126 the command cannot be executed   127 there is none of that name`
}

// AfterApply checks what kong cannot.
func (c *runCmd) AfterApply() error {
	switch {
	case c.KillAfter < 0:
		return fmt.Errorf("--kill-after %v: negative", c.KillAfter)
	case c.Shell != nil && len(c.Command) > 0:
		return errors.New("-c and a command exclude each other")
	}
	return errors.Join(c.choice.check(), c.taking.check())
}

// words are the command and its arguments.
func (c *runCmd) words(g *session.Globals) []string {
	if c.Shell != nil {
		return []string{cmp.Or(g.Getenv("SHELL"), "/bin/sh"), "-c", *c.Shell}
	}
	return c.Command
}

func (c *runCmd) Run(g *session.Globals) error {
	command, s, err := prepare(g, "run", c.words(g), c.naming, c.TTL, c.Create)
	if err != nil {
		return err
	}
	defer s.End()

	signals := g.Signals()
	lock, err := c.acquire(s, signals, c.kind(), c.Name, c.TTL, c.method(s.Client, &c.taking))
	if err != nil {
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
	return command.outcome(end, err, lock.Unlock(context.Background()))
}

// cannotRun is the error of a command that was not started, with the code of
// the shells.
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
