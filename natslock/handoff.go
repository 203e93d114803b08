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

// Handle names a lock handed over with [Lock.Handoff], for [Client.Adopt]. It travels to
// another process as text. It is not a secret: any client that may write the lock's record can
// adopt the lock.
type Handle struct {
	Name  string        // of the lock
	ID    string        // of the claim that was handed over, as in [Holder.ID]
	Token uint64        // the fencing token, which the adopted lock keeps
	TTL   time.Duration // of the record left in the bucket, and of the adopted lock

	kind record.Kind
}

// handleText begins the text of every handle.
const handleText = "natslock-handle-1"

// MarshalText returns the handle as one word of printable characters. The error matches
// [ErrInvalid] for a handle that was not made by Handoff.
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

// UnmarshalText reads the text of a handle. If the error matches [ErrInvalid], h is unchanged.
func (h *Handle) UnmarshalText(text []byte) error {
	fields := strings.Split(string(text), ":")
	if len(fields) != 6 || fields[0] != handleText {
		return fmt.Errorf("handle: %w: %.64q is not the text of a handle", ErrInvalid, text)
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

// check refuses a handle that was not made by Handoff.
func (h Handle) check() error {
	if h.kind != record.Mutex && h.kind != record.RW || h.Name == "" || h.ID == "" || strings.Contains(h.ID, ":") || h.Token == 0 || h.TTL < time.Second {
		return fmt.Errorf("handle: %w: no Handoff has made it", ErrInvalid)
	}
	return nil
}

// Handoff ends the lock here and leaves it in the bucket, with its fencing token, for a client
// that adopts it with the handle, in this process, in another or in a later one
// ([Client.Adopt]). The lock's context ends first, with a cause that matches [ErrHandedOff]:
// stop the work before the call. No one else gets the lock for one TTL, and it can be adopted
// until a margin before that. Waiters keep waiting. If an operator breaks the lock, no one can
// adopt it.
//
// It returns the handle if the server confirmed the record inside the validity of the lock. A
// later [Lock.Unlock] then does nothing and returns nil. Otherwise the error matches one of
// these:
//
//   - [ErrInvalid]: a lock with [Until] or [MinHold], a reader and a semaphore permit cannot be
//     handed over. The lock is still held.
//   - only ctx's error: ctx had ended before the call. The lock is still held.
//   - [ErrReleased], [ErrHandedOff], [ErrEnded], [ErrLost] or [ErrBroken]: the lock had ended,
//     or an operator broke it in the meantime, and the TTL frees it.
//   - [ErrUnavailable]: the server did not confirm the record before ctx ended, the release
//     timeout passed ([Tuning]), or the validity was over. The lock has ended here, and the TTL
//     frees it. The error matches ctx's if ctx ended.
//   - [ErrClosed]: the client was closed.
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

// Adopt takes a lock handed over with [Lock.Handoff]. The lock has the token of the handle, an
// ID of its own, and the handle's TTL unless opts set another. It is not renewed if the TTL is
// longer than 24 h: see [NoRenew]. Adopt waits only for the server's answers, up to 5 s, or one
// TTL if that is shorter.
//
// Adopt returns the held lock, or an error and no lock. If several calls use the same handle,
// only one gets the lock. If there is nothing to adopt, the error matches [ErrNotHandedOver]
// and says what the bucket has instead. It then also matches [ErrLocked] if the holder keeps
// the lock or another claim has it, [ErrBroken] if an operator broke it, and [ErrLost] if the
// record was removed or its validity is over. If the error matches [ErrUnavailable] or ctx's
// error, the server may have applied the request, and the TTL frees the lock. Other errors are
// those of [Client.TryLock].
//
// [Until], [Linger], [MinHold] and a handle not made by Handoff are refused with [ErrInvalid].
// [MaxWait] has no effect.
func (c *Client) Adopt(ctx context.Context, h Handle, opts ...LockOption) (*Lock, error) {
	if err := c.readyFor(ctx); err != nil {
		return nil, fmt.Errorf("adopt lock %.512q: %w", h.Name, err)
	}
	cfg, err := lockConfigOf(opts)
	if err == nil {
		err = h.check()
	}
	if err == nil && (cfg.req.Linger > 0 || cfg.req.MinHold > 0 || !cfg.req.Until.IsZero()) {
		err = invalid("Adopt", "goes with neither Until, nor Linger, nor MinHold")
	}
	if err != nil {
		return nil, fmt.Errorf("adopt lock %.512q: %w", h.Name, err)
	}
	cfg.req.MaxWait = 0
	cfg.req.Fixed = cfg.req.Fixed || cfg.req.TTL == 0 && h.TTL > clock.MaxTTL
	from := session.Handed{Kind: h.kind, Name: h.Name, ID: h.ID, Token: h.Token, TTL: h.TTL}
	return cfg.handle(func(req call.Request) (cohort.Holding, error) { return c.locks.Adopt(ctx, req, from) })
}
