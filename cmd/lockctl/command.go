package main

import (
	"errors"
	"os/exec"
	"slices"
	"strconv"
	"time"

	"github.com/natslock/locks/cmd/lockctl/internal/console"
	"github.com/natslock/locks/cmd/lockctl/internal/session"
	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/cmd/lockctl/internal/supervise"
	"github.com/natslock/locks/internal/tool"
	"github.com/natslock/locks/natslock"
)

// command is the command that the user wants to run under a lock.
type command struct {
	*console.Console
	path string
	args []string // args[0] is the command's name
}

// prepare looks up the command and opens the bucket. The caller must end the session.
func prepare(g *session.Globals, sub string, args []string, name naming, ttl time.Duration, create bool) (command, *session.Session, error) {
	c, err := lookUp(g.Console, sub, args)
	if err != nil {
		return c, nil, err
	}
	g.MayCreate = create
	// Watch the lock from the start, so that a break ends the command immediately.
	s, err := g.Open(natslock.WithTTL(ttl), natslock.WithTuning(natslock.Tuning{WatchAfter: 1}), name.as(c.args[0]))
	return c, s, err
}

// lookUp resolves the command. It is called before the lock is taken, so that a typo does not
// keep other clients waiting.
func lookUp(con *console.Console, sub string, args []string) (command, error) {
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) == 0 {
		return command{}, tool.Usagef("a command is missing; see lockctl %s --help", sub)
	}
	path, err := exec.LookPath(args[0])
	if err != nil {
		return command{}, cannotRun(args[0], err)
	}
	return command{con, path, args}, nil
}

// under returns the command to execute, with the lock's name, token and TTL in its environment.
func (c command) under(lock supervise.Held, name string, ttl time.Duration) *exec.Cmd {
	return &exec.Cmd{
		Path: c.path, Args: c.args,
		Stdin: c.Stdin, Stdout: c.Out.W, Stderr: c.Stderr,
		Env: append(slices.Clone(c.Environ),
			"LOCK_NAME="+show.Name(name),
			"LOCK_TOKEN="+strconv.FormatUint(lock.Token(), 10),
			"LOCK_TTL="+strconv.Itoa(int(ttl.Seconds())),
			envHeld+"="+withHeld(c.Console, name, lock.Token())),
	}
}

// outcome returns the error that lockctl exits with after the command has ended. start is the
// error from starting the command, and release is the error from releasing its lock.
func (c command) outcome(end supervise.Ending, start, release error) error {
	switch {
	case start != nil:
		return cannotRun(c.args[0], start)
	case end.Lost != nil:
		end.Code = tool.ExitLost
	case errors.Is(release, natslock.ErrLost): // noticed only on release
		c.Complain("%v; the command had finished, but may have overlapped with another holder", release)
		end.Code = tool.ExitLost
	case release != nil:
		c.Complain("the lock was held to the end, but will be free only when its TTL expires: %v", release)
	}
	if end.Code != 0 {
		return &tool.Error{Code: end.Code}
	}
	return nil
}
