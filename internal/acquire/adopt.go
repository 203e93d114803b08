package acquire

import (
	"context"
	"errors"
	"fmt"

	"github.com/natslock/locks/internal/call"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
)

// HandOff ends the member's part in the lease and hands the lock over: see
// [session.Holder.HandOff]. The members behind it open a new run.
func (m *member) HandOff(ctx context.Context) (handed session.Handed, err error) {
	if err := m.MayHandOff(); err != nil {
		return handed, err
	}
	if ctx.Err() != nil {
		return handed, fmt.Errorf("hand off lock %q: nothing was sent, it is held: %w", m.Name(), context.Cause(ctx))
	}
	_, _, err = m.Status()
	m.released.Do(func() {
		m.part()
		handed, m.result = m.Holder.HandOff(ctx)
		err = m.result
	})
	if err == nil && handed.ID == "" { // another call has ended it meanwhile
		_, _, err = m.Status()
	}
	return handed, err
}

// Adopt takes a lock that its holder has handed over, by a claim that expects exactly the
// handed-over record and keeps its token. The error matches [call.ErrNotHandedOver] if there
// is none, or it has expired.
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
	m := &member{runs: &c.runs, a: a}
	a.In(m)
	a.Want.Owner, m.Want = m, &a.Want
	r := m.ownRun()
	res := a.Adopt(from)
	if res.Outcome == core.Granted {
		l := a.Hold(res)
		r.granted(m, l)
		r.Drained = true // by the holder that has handed it over
		if res = m.enter(r); res.Outcome == core.Granted {
			m.a, m.Want = nil, nil
			return m, nil
		}
		l.Leave(record.StatusGone)
		if res.Outcome == core.Ended {
			return nil, a.GaveUp(res.Err)
		}
		return nil, fmt.Errorf("adopt lock %q: %w: its lease has ended", req.Name, session.ErrLost)
	}
	a.Withdraw()
	if errors.Is(res.Err, call.ErrNotHandedOver) {
		return nil, fmt.Errorf("adopt lock %q: %w", req.Name, res.Err)
	}
	return nil, a.Failure(res)
}
