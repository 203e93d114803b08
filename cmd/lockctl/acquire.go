package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/natslock/locks/cmd/lockctl/internal/session"
	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/internal/script"
	"github.com/natslock/locks/internal/tool"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

type acquireCmd struct {
	choice `embed:""`
	TTL    time.Duration `default:"1m" placeholder:"DURATION" help:"Lease, unless \"lockctl extend\" renews it (default ${default}, whole seconds, at most 366 days)."`
	taking `embed:""`
	Owner  string `placeholder:"TEXT" help:"Name of the holder (default USER@HOST:PID of the script)."`
	JSON   bool   `name:"json" help:"Print an object with the handle, the fencing token and the expiry."`
	Name   string `arg:"" type:"name" predictor:"lock" help:"The lock's name."`
}

func (*acquireCmd) Help() string {
	return `Waits for the lock as "lockctl run" does, takes it, prints its handle and exits. Later
commands need the handle, on this machine or another one:

  H=$(lockctl acquire jobs --ttl 60s) || exit
  first-part
  lockctl extend "$H" >/dev/null || exit
  second-part
  lockctl release "$H"

No process renews the lock: it is free when its TTL expires, even if the script is still
working. Prefer "lockctl run", which ends the command in time. Otherwise choose a TTL
longer than each part of the script, and call extend in between. The script has the lock to
itself until "valid_until" of --json, shortly before the lock is free. A resource that
refuses tokens below the last one is safe from a script that took too long.

The handle stays the same until the release. It is not a secret: any client that may write
the lock's record can use it. After an operator's break the next extend or release fails.

  lockctl acquire -n nightly || exit 0
  lockctl acquire --permits 5 exports --ttl 10m
  lockctl acquire reports --json | jq -r '.handle, .token'

Exit code: 0, 128 + N if signal N ended the wait, and
  1, or -E   the lock was not free in time (-n, -w)
  75   the lock was lost before its handle could be printed`
}

// AfterApply validates what kong's tags cannot express.
func (c *acquireCmd) AfterApply() error { return cmp.Or(c.choice.check(), c.taking.check()) }

func (c *acquireCmd) Run(g *session.Globals) error {
	g.MayCreate = c.Create
	caller := cmp.Or(os.Getppid(), os.Getpid()) // the parent's PID is 0 if the parent is outside the container
	owner := c.Owner
	if owner == "" {
		owner = fmt.Sprintf("%s:%d", session.Operator(), caller)
	}
	s, err := g.Open(natslock.WithOwner(owner), script.For(caller))
	if err != nil {
		return err
	}
	defer s.End()
	method := c.method(s.Client, &c.taking)
	lock, err := c.acquire(s, g.Signals(), c.kind(), c.Name, c.TTL, func(ctx context.Context, name string, opts ...natslock.LockOption) (*natslock.Lock, error) {
		return method(ctx, name, append(opts, script.Options()...)...)
	})
	if err != nil {
		return err
	}
	h, lasts, err := script.Leave(lock, c.TTL)
	if err != nil {
		return err
	}
	text, err := h.MarshalText()
	if err != nil {
		return err
	}
	signal.Ignore(syscall.SIGPIPE) // turn a write to a closed pipe into an error, so that the lock is released
	select {
	case sig := <-g.Signals(): // nobody is left to read the handle
		err = tool.Exitf(tool.ExitSignal+int(sig.(syscall.Signal)), "released lock %s: signal: %v", show.Plain(c.Name), sig)
	default:
		if err = printHeld(g, h, lasts, string(text), c.JSON); err != nil {
			err = tool.Exitf(tool.ExitInternal, "cannot print the handle of lock %s: %w", show.Plain(c.Name), err)
		}
	}
	if err != nil {
		ctx, cancel := g.Bounded()
		defer cancel()
		if failed := h.Release(ctx, s.Client); failed != nil {
			err = fmt.Errorf("%w; the lock was not released: %w", err, failed)
		}
	}
	return err
}

// handleJSON is the output of acquire --json and extend --json. Fields may be added but never
// renamed. The doc tags appear in the generated reference.
type handleJSON struct {
	Handle     string    `json:"handle" doc:"for lockctl extend and release"`
	Kind       string    `json:"kind" doc:"mutex, rw or semaphore"`
	Mode       string    `json:"mode" doc:"exclusive or shared"`
	Name       string    `json:"name" doc:"the lock's name, as ls prints it"`
	Slot       *int      `json:"slot" doc:"a semaphore's permit, from 0; null for other locks"`
	ID         string    `json:"id" doc:"the claim's id, for lockctl break --id"`
	Token      uint64    `json:"token" doc:"fencing token, kept by extend; below 2^53 until 2060"`
	TTL        float64   `json:"ttl" doc:"the lease"`
	Valid      float64   `json:"valid" doc:"how long the script has the lock to itself from now"`
	ValidUntil time.Time `json:"valid_until" doc:"the end of that time, by this machine's clock"`
	Expires    time.Time `json:"expires" doc:"when the lock is free unless extended or released, by this machine's clock"`
}

// printHeld prints text or, if asJSON is set, the handle as JSON.
func printHeld(g *session.Globals, h script.Handle, lasts script.Lasts, text string, asJSON bool) error {
	if !asJSON {
		_, err := fmt.Fprintln(g.Out, text)
		return err
	}
	word, err := h.MarshalText()
	if err != nil {
		return err
	}
	now, valid := time.Now().UTC(), lasts.Valid()
	out := handleJSON{string(word), h.Kind().String(), h.Mode().String(), show.Name(h.Name()), nil, h.ID, h.Token, lasts.TTL.Seconds(), valid.Seconds(), now.Add(valid), now.Add(valid + lasts.Margin)}
	if n, ok := h.Slot(); ok {
		out.Slot = &n
	}
	return show.WriteJSON(g.Out, out)
}

// inSeconds formats d for a shell, rounded down to whole seconds or, below one second, to
// milliseconds.
func inSeconds(d time.Duration) string {
	if d >= time.Second {
		return strconv.FormatInt(int64(d/time.Second), 10)
	}
	return fmt.Sprintf("0.%03d", max(d.Milliseconds(), 1))
}

// handle is a script handle given on the command line.
type handle struct{ script.Handle }

// UnmarshalText implements [encoding.TextUnmarshaler], which kong uses.
func (h *handle) UnmarshalText(text []byte) error {
	if len(text) == 0 { // an unset variable
		return errors.New("the handle is empty: the command that should have printed it failed")
	}
	return h.Handle.UnmarshalText(text)
}

// refused adds the lock's current state to an error that reports a lost lock. It returns other
// errors unchanged.
func (h *handle) refused(ctx context.Context, s *session.Session, err error) error {
	if !errors.Is(err, natslock.ErrLost) || errors.Is(err, natslock.ErrBroken) {
		return err
	}
	info, unknown := admin.New(s.Client).Inspect(ctx, h.Kind(), h.Name())
	if unknown != nil {
		return err
	}
	now := "it is free now"
	for _, held := range show.Holdings(info) {
		switch {
		case held.Overdue:
			continue
		case held.ID == h.ID:
			now = "it will be free in " + show.ExpiresIn(held.Holder)
			continue
		}
		now = fmt.Sprintf("%s has it now (token %d)", show.HolderName(held.Holder), held.Token)
		if slot, ok := h.Slot(); ok && slot != held.Slot {
			now = "its permit is free now"
			continue
		}
		if held.Mode == admin.Shared {
			now = "readers hold it now"
		}
		break
	}
	return tool.Exitf(tool.ExitLost, "lock %s is no longer held by this handle: its TTL expired, or it was broken or released; %s; work after that was not protected: %w",
		show.Plain(h.Name()), now, err)
}
