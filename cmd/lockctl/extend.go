package main

import (
	"context"
	"time"

	"github.com/natslock/locks/cmd/lockctl/internal/session"
	"github.com/natslock/locks/natslock"
)

type extendCmd struct {
	TTL    *time.Duration `placeholder:"DURATION" help:"New lease, from now on (default that of the handle, whole seconds)."`
	JSON   bool           `name:"json" help:"Print an object with the handle, the fencing token and the end."`
	Handle handle         `arg:"" help:"The handle that acquire or extend has printed."`
}

func (*extendCmd) Help() string {
	return `Gives a lock that "lockctl acquire" took a whole TTL from now on, and prints its next
handle. The handle before it cannot be used again. The fencing token and the metadata
stay, and nobody gets the lock in between.

If extend fails, the script has no handle that is good. With an exit code other than 75
the lock may still be taken. It is free when the TTL has passed.

  H=$(lockctl acquire jobs) || exit
  H=$(lockctl extend "$H") || exit
  H=$(lockctl extend "$H" --ttl 10m) || exit

Exit code:
  1 the handle was used before, and the lock is still held by a later one
  64 usage, or not a handle   69 no server
  75 the lock was lost: its TTL had passed, or an operator broke it. Or it was released
  77 no permission   78 no bucket, or one not fit for locks`
}

func (c *extendCmd) Run(g *session.Globals) error {
	var opts []natslock.LockOption
	if c.TTL != nil {
		opts = append(opts, natslock.TTL(*c.TTL))
	}
	s, err := g.Open()
	if err != nil {
		return err
	}
	defer s.End()
	lock, err := c.Handle.adopt(g, s, opts...)
	if err != nil {
		return err
	}
	return handOver(g, lock, c.JSON)
}

type releaseCmd struct {
	Handle handle `arg:"" help:"The handle that acquire or extend has printed."`
}

func (*releaseCmd) Help() string {
	return `Ends a lock that "lockctl acquire" took: the next waiter gets it at once. Exit
code 0 says that nobody else had the lock since the handle was printed.

  lockctl release "$H"
  H=$(lockctl acquire jobs) && trap 'lockctl release "$H"' EXIT

Exit code:
  1 the handle was used before, and the lock is still held by a later one
  64 usage, or not a handle   69 no server: the TTL frees the lock
  75 the lock was lost: its TTL had passed, or an operator broke it. Or it was released
  77 no permission   78 no bucket, or one not fit for locks`
}

func (c *releaseCmd) Run(g *session.Globals) error {
	s, err := g.Open()
	if err != nil {
		return err
	}
	defer s.End()
	lock, err := c.Handle.adopt(g, s)
	if err != nil {
		return err
	}
	return lock.Unlock(context.Background())
}
