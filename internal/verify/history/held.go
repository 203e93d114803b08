package history

import (
	"context"
	"time"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
)

// Held is a lock that was granted.
type Held struct {
	rec  *Recorder
	c    *Client
	lock *natslock.Lock
	hold *Hold
}

// Lock returns the client's own handle. Call Unlock and Extend on the Held instead.
func (h *Held) Lock() *natslock.Lock { return h.lock }

// Unlock releases the lock.
func (h *Held) Unlock(ctx context.Context) error {
	op := h.op(Unlock)
	h.rec.mu.Lock()
	h.hold.Unlock = op.Call
	h.rec.mu.Unlock()
	err := h.lock.Unlock(ctx) // after this, ValidUntil is when the lock ended
	h.rec.end(op, outcomeOf(err), err)
	h.rec.mu.Lock()
	defer h.rec.mu.Unlock()
	h.hold.Until = h.rec.at(kit.ValidUntil(h.lock))
	h.hold.Unlocked, h.hold.Released = op.Return, err == nil
	delete(h.rec.open, h)
	return err
}

// Drop loses the handle, so that no goroutine will unlock the lock. In a bubble, the garbage
// collector cannot end the lock, so Drop ends it instead.
func (h *Held) Drop() { kit.Drop(h.lock) }

// Extend confirms the lock now.
func (h *Held) Extend(ctx context.Context, ttl time.Duration) error {
	op := h.op(Extend)
	err := h.lock.Extend(ctx, ttl)
	h.rec.end(op, outcomeOf(err), err)
	h.rec.mu.Lock()
	defer h.rec.mu.Unlock()
	h.rec.confirmed(h)
	return err
}

func (h *Held) op(do Action) *Op {
	return h.rec.begin(Op{Client: h.hold.Client, Lock: h.hold.Lock, Shared: h.hold.Shared, Do: do, Token: h.hold.Token, ID: h.hold.ID})
}

// Use asks the resource that the lock guards to do something, and reports whether it did. The
// resource refuses a token smaller than the largest token that it has seen from a holder that
// conflicts with the caller.
func (h *Held) Use() bool {
	op := h.op(Use)
	r := h.rec
	r.mu.Lock()
	seen := r.accepted[op.Lock]
	out := OK
	if op.Token < seen.exclusive || !op.Shared && op.Token < seen.any {
		out = Refused
	} else {
		seen.any = max(seen.any, op.Token)
		if !op.Shared {
			seen.exclusive = max(seen.exclusive, op.Token)
		}
		r.accepted[op.Lock] = seen
	}
	r.mu.Unlock()
	r.end(op, out, nil)
	return out == OK
}
