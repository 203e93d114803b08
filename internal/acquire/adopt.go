package acquire

import (
	"context"
	"errors"
	"fmt"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
)

// ErrNotHandedOver says that there is nothing to adopt. Package natslock documents it.
var ErrNotHandedOver = errors.New("lock not handed over")

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
// record of that and keeps its token. The error matches [ErrNotHandedOver] if the record
// says otherwise.
func (c *Client) Adopt(ctx context.Context, req Request, from session.Handed) (Holding, error) {
	req.Kind, req.Name, req.Once = from.Kind, from.Name, true
	if req.TTL == 0 {
		req.TTL = from.TTL
	}
	a, err := c.begin(ctx, req)
	if err != nil {
		return nil, err
	}
	defer c.leave()
	defer a.bound()()
	a.prepareBid()
	a.bid.once = false // an attempt without an answer is repeated
	a.bid.draft.adopts, a.bid.draft.body.Token = true, from.Token
	m := &member{runs: &c.runs, a: a}
	a.member, a.want.Call, m.Want = m, m, &a.want
	r := m.by()
	res := a.adopt(from)
	if res.outcome == granted {
		l := a.hold(res.grant(a.bid.cur))
		r.granted(m, l)
		r.Drained = true // by the holder that has handed it over
		if res = m.enter(r); res.outcome == granted {
			m.a, m.Want = nil, nil
			return m, nil
		}
		l.Leave(record.StatusGone)
		if res.outcome == ended {
			return nil, a.gaveUp(res.err)
		}
		return nil, fmt.Errorf("adopt lock %q: %w: its lease has ended", req.Name, session.ErrLost)
	}
	a.withdraw()
	if errors.Is(res.err, ErrNotHandedOver) {
		return nil, fmt.Errorf("adopt lock %q: %w", req.Name, res.err)
	}
	return nil, a.failure(res)
}

// adopt claims the record of a lock that was handed over. It returns granted, failed or
// ended. Where a replica or a mirror lags, its answer may lack the hand-over, so a refusal
// needs a state that contains what the leader had stored during this call.
func (a *acquisition) adopt(from session.Handed) result {
	entry, err := a.c.b.Read(a.ctx, a.keys.Gate, 0)
	for confirmed := false; err == nil; {
		refusal := a.refusal(from, entry)
		if refusal == nil {
			r := a.bid.offer(entry.Revision)
			if r.outcome != free && r.outcome != busy {
				return r
			}
			entry = r.entry
			continue
		}
		if confirmed { //safety:adopt-confirmed
			return result{outcome: failed, err: refusal}
		}
		if err = a.ask(); err == nil {
			entry, err = a.c.b.Read(a.ctx, a.keys.Gate, a.asOf)
		}
		if bucket.IsAny(err, bucket.ErrPermission) { // the leader's word is withheld from this user
			return result{outcome: failed, err: refusal}
		}
		confirmed = true
	}
	return a.noAnswer(err)
}

// refusal says why the record is not to be adopted: it is not that of the lock that was
// handed over.
func (a *acquisition) refusal(from session.Handed, e record.Entry) error {
	own := e.From(from.ID)
	switch {
	case own && e.Status == record.StatusBroken:
		return fmt.Errorf("%w: %w %s", ErrNotHandedOver, session.ErrBroken, e.BrokenBecause())
	case !e.Live():
		return fmt.Errorf("%w: %w: its record is gone", ErrNotHandedOver, session.ErrLost)
	case own && e.Status == record.StatusHanded && e.TokenOrTicket() == from.Token: //safety:adopt-handed
		if a.c.b.Overdue(a.ctx, e) {
			return fmt.Errorf("%w: %w: its record has expired", ErrNotHandedOver, session.ErrLost)
		}
		return nil
	case own:
		return fmt.Errorf("%w: %w: its owner keeps it", ErrNotHandedOver, ErrLocked)
	}
	return fmt.Errorf("%w: %w: another claim has taken it", ErrNotHandedOver, ErrLocked)
}
