package main

import (
	"time"

	"github.com/natslock/locks/cmd/lockctl/internal/session"
	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/internal/tool"
)

type extendCmd struct {
	TTL    *time.Duration `placeholder:"DURATION" help:"New lease, from now (default that of acquire)."`
	JSON   bool           `name:"json" help:"Print an object with the handle, the fencing token and the expiry."`
	Handle handle         `arg:"" help:"What acquire printed."`
}

func (*extendCmd) Help() string {
	return `Renews a lock of "lockctl acquire" for a full TTL from now, and prints for how many seconds
the script has it to itself: the TTL less a margin. Handle, token and metadata stay the same,
and no other client gets the lock in between. A lock that already lasts longer keeps its end.

  H=$(lockctl acquire jobs) || exit
  lockctl extend "$H" >/dev/null || exit
  lockctl extend "$H" --ttl 10m >/dev/null || exit
  left=$(lockctl extend "$H") && timeout "$left" ./second-part

Exit code 75: the lock was lost or released. After any other failure the script has the
lock for as long as before, and can try again.`
}

func (c *extendCmd) Run(g *session.Globals) error {
	var ttl time.Duration
	if c.TTL != nil {
		if ttl = *c.TTL; ttl == 0 {
			ttl = -1 // also invalid, whereas 0 would mean the handle's TTL
		}
	}
	s, err := g.Open()
	if err != nil {
		return err
	}
	defer s.End()
	ctx, cancel := g.Bounded()
	defer cancel()
	lasts, err := c.Handle.Extend(ctx, s.Client, ttl)
	if err != nil {
		return c.Handle.refused(ctx, s, err)
	}
	s.End() // may take a while, so compute the validity afterward
	if lasts.Valid() <= 0 {
		return tool.Exitf(tool.ExitLost, "lock %s was extended, but the extension has already expired", show.Plain(c.Handle.Name()))
	}
	return printHeld(g, c.Handle.Handle, lasts, inSeconds(lasts.Valid()), c.JSON)
}

type releaseCmd struct {
	Handle handle `arg:"" help:"What acquire printed."`
}

func (*releaseCmd) Help() string {
	return `Releases a lock of "lockctl acquire": the next waiter gets it at once. Exit code 0 means
that no other client had the lock since the acquire.

  lockctl release "$H"
  H=$(lockctl acquire jobs) || exit
  trap 'lockctl release "$H"' EXIT; trap 'exit 130' INT; trap 'exit 143' TERM

Exit code 75: the lock was already lost or released. 69: no server; the TTL frees the lock.`
}

func (c *releaseCmd) Run(g *session.Globals) error {
	s, err := g.Open()
	if err != nil {
		return err
	}
	defer s.End()
	ctx, cancel := g.Bounded()
	defer cancel()
	return c.Handle.refused(ctx, s, c.Handle.Release(ctx, s.Client))
}
