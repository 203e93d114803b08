package natslock

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/natslock/locks/internal/call"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/cohort"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
)

// Handle identifies a lock that was handed over with [Lock.Handoff], so that [Client.Adopt] can
// take it, even in another process. It is not a secret: any client that is allowed to write the
// lock's record can adopt the lock.
type Handle struct {
	Name  string        // of the lock
	ID    string        // of the claim, as in [Holder.ID]
	Token uint64        // the fencing token, which the adopted lock keeps
	TTL   time.Duration // of the record in the bucket, and by default of the adopted lock

	kind record.Kind
}

// handleText is the prefix of every marshaled handle.
const handleText = "natslock-handle-1"

// MarshalText encodes the handle as one word of printable characters. The error matches
// [ErrInvalid] if the handle does not come from Handoff.
func (h Handle) MarshalText() ([]byte, error) {
	if err := h.check(); err != nil {
		return nil, err
	}
	encoded, err := record.EncodeName(h.Name)
	if err != nil {
		return nil, fmt.Errorf("handle: %w: %w", ErrInvalid, err)
	}
	return fmt.Appendf(nil, "%s:%s:%s:%s:%d:%d", handleText, h.kind, encoded, h.ID, h.Token, int64(h.TTL/time.Second)), nil
}

// UnmarshalText decodes the text of a handle. On failure, the error matches [ErrInvalid] and h
// is unchanged.
func (h *Handle) UnmarshalText(text []byte) error {
	fields := strings.Split(string(text), ":")
	if len(fields) != 6 || fields[0] != handleText {
		return fmt.Errorf("handle: %w: %.64q is not a handle", ErrInvalid, text)
	}
	read := Handle{ID: fields[3]}
	prefix := record.LockPrefix
	if fields[1] == record.RW.String() {
		read.kind, prefix = record.RW, record.GatePrefix
	}
	key, known := record.ParseKey(prefix + fields[2])
	token, err := strconv.ParseUint(fields[4], 10, 64)
	seconds, err2 := strconv.ParseUint(fields[5], 10, 31)
	read.Name, read.Token, read.TTL = key.Name, token, time.Duration(seconds)*time.Second
	if !known || err != nil || err2 != nil || read.kind.String() != fields[1] || read.check() != nil {
		return fmt.Errorf("handle: %w: %.64q cannot be read", ErrInvalid, text)
	}
	*h = read
	return nil
}

// check refuses a handle that cannot come from Handoff.
func (h Handle) check() error {
	if h.kind != record.Mutex && h.kind != record.RW || h.Name == "" || h.ID == "" || strings.Contains(h.ID, ":") || h.Token == 0 || h.TTL < time.Second {
		return fmt.Errorf("handle: %w: it was not returned by Handoff", ErrInvalid)
	}
	return nil
}

// Handoff ends the lock here but leaves its record in the bucket, so that a client in this
// process or another one can adopt the lock and its fencing token: see [Client.Adopt]. The
// lock's context ends first, with a cause that matches [ErrHandedOff], so stop the work before
// the call. For one TTL nobody else gets the lock. It can be adopted until a margin before the
// TTL ends, unless an operator breaks it.
//
// Handoff returns the handle if the server confirmed the record within the lock's validity. A
// later [Lock.Unlock] then does nothing and returns nil. The error matches [ErrInvalid] for a
// reader, a semaphore permit, and a lock with [Until] or [MinHold], and only ctx's error if ctx
// had ended before the call. The lock is then still held.
//
// After any other error, the lock has ended here, and it becomes free when its TTL ends. The
// error matches [ErrUnavailable] if the server did not confirm the record within the validity
// and before ctx ended or the release timeout passed, and [ErrClosed] if the client was closed.
// If the lock had already ended, or an operator broke it in the meantime, the error matches one
// of those listed at [Lock.Context].
func (l *Lock) Handoff(ctx context.Context) (Handle, error) {
	h := l.holding()
	if ctx == nil && h != (noLock{}) {
		return Handle{}, fmt.Errorf("hand off lock %q: %w", l.Name(), errNoContext)
	}
	handed, err := h.HandOff(ctx)
	if err != nil {
		runtime.KeepAlive(l)
		return Handle{}, public(err)
	}
	l.cleanup.Stop()
	return Handle{kind: handed.Kind, Name: handed.Name, ID: handed.ID, Token: handed.Token, TTL: handed.TTL}, nil
}

// Adopt acquires a lock that was handed over with [Lock.Handoff]. The lock keeps the handle's
// token, and its TTL unless opts set another, but has a new ID. If the TTL is longer than 24 h,
// the lock is not renewed. Adopt waits only for the server's answers: up to 5 s, or one TTL if
// that is shorter. It refuses [Until], [Linger] and [MinHold].
//
// If several calls use the same handle, only one gets the lock. If there is nothing to adopt,
// the error matches [ErrNotHandedOver], and also [ErrLocked] if the holder kept the lock or
// another claim has it, [ErrBroken] if an operator broke it, and [ErrLost] if the record was
// removed or its validity is over. If the error matches [ErrUnavailable] or ctx's error, the
// server may have applied the request, in which case the lock becomes free when its TTL ends.
// Other errors are those of [Client.TryLock].
func (c *Client) Adopt(ctx context.Context, h Handle, opts ...LockOption) (*Lock, error) {
	if err := c.readyFor(ctx); err != nil {
		return nil, fmt.Errorf("adopt lock %.512q: %w", h.Name, err)
	}
	cfg, err := lockConfigOf(opts)
	if err == nil {
		err = h.check()
	}
	if err == nil && (cfg.req.Linger > 0 || cfg.req.MinHold > 0 || !cfg.req.Until.IsZero()) {
		err = invalid("Adopt", "cannot be combined with Until, Linger or MinHold")
	}
	if err != nil {
		return nil, fmt.Errorf("adopt lock %.512q: %w", h.Name, err)
	}
	cfg.req.MaxWait = 0
	cfg.req.Fixed = cfg.req.Fixed || cfg.req.TTL == 0 && h.TTL > clock.MaxTTL
	from := session.Handed{Kind: h.kind, Name: h.Name, ID: h.ID, Token: h.Token, TTL: h.TTL}
	return cfg.handle(func(req call.Request) (cohort.Holding, error) { return c.locks.Adopt(ctx, req, from) })
}
