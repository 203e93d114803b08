package cohort

import (
	"context"
	"errors"
	"fmt"

	"github.com/natslock/locks/internal/call"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/plain"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
)

// HandOff gives up the holder's share of the lease and hands the lock over; see [session.Holder.HandOff]. The client's
// waiters seek another lease.
func (h *holder) HandOff(ctx context.Context) (handed session.Handed, err error) {
	if err := h.MayHandOff(); err != nil {
		return handed, err
	}
	if ctx.Err() != nil {
		return handed, fmt.Errorf("hand off lock %q: nothing was sent and the lock is still held: %w", h.Name(), plain.EndOf(ctx))
	}
	_, _, err = h.Status()
	h.released.Do(func() {
		h.part()
		handed, h.result = h.Holder.HandOff(ctx)
		err = h.result
	})
	if err == nil && handed.ID == "" { // another call ended it in the meantime
		_, _, err = h.Status()
	}
	return handed, err
}

// Adopt takes over a lock that its holder has handed over. Its claim expects exactly the handed-over record and keeps
// that record's token. The error matches [call.ErrNotHandedOver] if there is no such record or it has expired.
func (c *Client) Adopt(ctx context.Context, req call.Request, from session.Handed) (Holding, error) {
	req.Kind, req.Name, req.Once = from.Kind, from.Name, true
	if req.TTL == 0 {
		req.TTL = from.TTL
	}
	a, err := c.begin(ctx, req)
	if err != nil {
		return nil, err
	}
	defer c.leave()
	defer a.Bound()()
	h := &holder{c: c, a: a}
	c.mu.Lock()
	k := c.lockOf(a.Keys).open(group{mode: a.Req.Mode, ttl: a.TTL()}, true)
	h.cohort = k
	k.founder = true
	c.unlock()
	a.Join(h)
	res := a.Adopt(from)
	var lease *session.Lease
	if res.Outcome == core.Granted {
		lease = a.Hold(res)
	}
	c.mu.Lock()
	k.founder = false
	if lease != nil {
		t := k.hold(lease, c.b.Instant())
		t.drained = true // by the holder that handed the lock over
		t.admit(h)
	}
	k.settle()
	c.unlock()
	if lease == nil {
		a.Withdraw()
		if errors.Is(res.Err, call.ErrNotHandedOver) {
			return nil, fmt.Errorf("adopt lock %q: %w", req.Name, res.Err)
		}
		return nil, a.Failure(res)
	}
	if res = h.enter(); res.Outcome == core.Granted {
		h.a = nil
		return h, nil
	}
	h.part()
	lease.Leave(record.StatusGone)
	if res.Outcome == core.Ended {
		return nil, a.GaveUp(res.Err)
	}
	return nil, fmt.Errorf("adopt lock %q: %w: its lease has ended", req.Name, session.ErrLost)
}
