package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/natslock/locks/cmd/lockctl/internal/session"
	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/internal/tool"
	"github.com/natslock/locks/natslock"
)

type acquireCmd struct {
	Write  bool          `help:"Take the reader-writer lock of that name for writing."`
	TTL    time.Duration `default:"1m" placeholder:"DURATION" help:"How long the lock stays taken, unless \"lockctl extend\" is called (default ${default}, whole seconds)."`
	taking `embed:""`
	JSON   bool   `name:"json" help:"Print an object with the handle, the fencing token and the end."`
	Name   string `arg:"" predictor:"lock" help:"The lock's name."`
}

func (*acquireCmd) Help() string {
	return `Waits for the lock as "lockctl run" does, takes it, prints its handle and ends. The
handle is one word. Later commands need it, on this machine or another one:

  H=$(lockctl acquire jobs --ttl 60s) || exit
  first-part
  H=$(lockctl extend "$H") || exit
  second-part
  lockctl release "$H"

No process renews the lock. It is free when its TTL has passed, also while the script
still works. Prefer "lockctl run", which renews the lock and ends the command in time.
Otherwise choose a TTL that is longer than each part of the script, and call extend
between the parts. A script that was killed leaves the lock to its TTL.

A handle is good once: extend prints the next one. It is no secret: each client that may
write the lock's record can use it. A lock that is held for reading cannot be handed over.

With --json, this prints an object with "handle", "kind", "name", "token", "ttl", "since"
and "expires". The script passes the token on to the resource that the lock protects: a
resource that refuses smaller tokens is safe from a script that took too long. The token
stays the same until the release.

  lockctl acquire -n nightly || exit 0
  lockctl acquire reports --json | jq -r '.handle, .token'

Exit code: 0, or 128 + N if signal N ended the waiting.
  1, or -E   the lock was not free in time (-n, -w)
  64 usage   69 no server   75 the lock was lost before its handle could be printed
  77 no permission   78 no bucket, or one not fit for locks`
}

// AfterApply checks what kong cannot.
func (c *acquireCmd) AfterApply() error { return c.check() }

func (c *acquireCmd) Run(g *session.Globals) error {
	g.MayCreate = c.Create
	s, err := g.Open(natslock.WithTTL(c.TTL))
	if err != nil {
		return err
	}
	defer s.End()
	kind := natslock.KindMutex
	if c.Write {
		kind = natslock.KindRW
	}
	lock, err := c.acquire(s, g.Signals(), kind, c.Name, c.TTL, c.exclusive(s.Client, c.Write))
	if err != nil {
		return err
	}
	return handOver(g, lock, c.JSON)
}

// handleJSON is what acquire --json and extend --json print. Fields are added, never
// renamed. The reference prints what the tags say.
type handleJSON struct {
	Handle  string    `json:"handle" doc:"for lockctl extend or release, once"`
	Kind    string    `json:"kind" doc:"mutex or rw"`
	Name    string    `json:"name" doc:"the lock's name, any bytes"`
	Token   uint64    `json:"token" doc:"fencing token, which extend keeps; below 2^53 until 2060"`
	TTL     float64   `json:"ttl" doc:"the lease"`
	Since   time.Time `json:"since" doc:"when the lock was taken or last extended, by the clock of this machine"`
	Expires time.Time `json:"expires" doc:"when the lock is free unless it is extended or released, by the clock of this machine"`
}

// handOver leaves the lock in the bucket and prints its handle.
func handOver(g *session.Globals, lock *natslock.Lock, asJSON bool) error {
	ctx, cancel := g.Bounded()
	defer cancel()
	since := time.Now()
	h, err := lock.Handoff(ctx)
	if err != nil {
		return err
	}
	text, err := h.MarshalText()
	if err != nil {
		return err
	}
	if asJSON {
		err = show.WriteJSON(g.Out, handleJSON{string(text), h.Kind.String(), h.Name, h.Token, h.TTL.Seconds(), since.UTC(), since.Add(h.TTL).UTC()})
	} else {
		_, err = fmt.Fprintln(g.Out, string(text))
	}
	if err != nil {
		return tool.Exitf(tool.ExitInternal, "cannot print the handle of lock %s: %w; the lock is free when its TTL of %v has passed", show.Plain(h.Name), err, h.TTL)
	}
	return nil
}

// handle is a handle on the command line.
type handle struct{ natslock.Handle }

// UnmarshalText implements encoding.TextUnmarshaler, for kong.
func (h *handle) UnmarshalText(text []byte) error {
	if len(text) == 0 { // an unset variable
		return errors.New("the handle is empty: the command that was to print it has failed")
	}
	return h.Handle.UnmarshalText(text)
}

// adopt takes the lock of a handle, with its metadata.
func (h *handle) adopt(g *session.Globals, s *session.Session, opts ...natslock.LockOption) (*natslock.Lock, error) {
	ctx, cancel := g.Bounded()
	defer cancel()
	info, err := s.Inspect(ctx, h.Kind, h.Name)
	if err != nil {
		return nil, err
	}
	if holder := info.Holder; holder != nil && len(holder.Meta) > 0 {
		opts = append(opts, natslock.Meta(holder.Meta))
	}
	lock, err := s.Adopt(ctx, h.Handle, append(opts, natslock.Detached())...)
	if errors.Is(err, natslock.ErrNotHandedOver) {
		return nil, h.refused(ctx, s, err)
	}
	return lock, err
}

// refused says what has become of the lock of a handle, and what to do.
func (h *handle) refused(ctx context.Context, s *session.Session, err error) error {
	name := show.Plain(h.Name)
	if errors.Is(err, natslock.ErrBroken) {
		return tool.Exitf(tool.ExitLost, "%w", err)
	}
	info, unknown := s.Inspect(ctx, h.Kind, h.Name)
	if unknown != nil {
		return unknown
	}
	now := "it is free now"
	switch holder := info.Holder; {
	case holder != nil && holder.Token == h.Token:
		return tool.Exitf(tool.ExitConflict, "this handle of lock %s was used before: use the handle that the last \"lockctl extend\" printed. Without that handle the lock is free in %s",
			name, show.ExpiresIn(*holder))
	case holder != nil && !holder.Overdue:
		now = fmt.Sprintf("%s has it now (token %d)", show.HolderName(*holder), holder.Token)
	case len(info.Readers) > 0:
		now = "there are readers inside now"
	}
	return tool.Exitf(tool.ExitLost, "lock %s is not taken by this handle any more, and %s. Its TTL of %v has passed, or it was broken or released. Work after that was not protected",
		name, now, h.TTL)
}
