package acquire

import (
	"context"
	"fmt"

	"github.com/natslock/locks/internal/call"
	"github.com/natslock/locks/internal/claim"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
)

// A lock that nobody else wants takes the way of this file: Acquire, member.acquire, drive, and in package
// call AtOnce, with one write to the server.

// Acquire takes the lock that req names. It returns what is held, or an error: a
// [call.BusyError] (only with Once), a [call.WaitError] when the context or the maximum wait ended
// the wait, or one that matches another sentinel.
func (c *Client) Acquire(ctx context.Context, req call.Request) (Holding, error) {
	a, err := c.begin(ctx, req)
	if err != nil {
		return nil, err
	}
	defer c.leave()
	defer a.Bound()()
	if req.Once && !c.runs.readyIdle(a) && a.Drains() {
		// Before the gate is taken: a one-shot writer stalls no reader.
		if reader, ok := a.CurrentReader(); ok {
			return nil, a.Locked(reader)
		}
	}
	m := c.runs.ask(a)
	if err := m.acquire(); err != nil {
		return nil, err
	}
	return m, nil
}

// begin checks a request, and registers the call. The caller leaves.
func (c *Client) begin(ctx context.Context, req call.Request) (*call.Call, error) {
	a, err := c.calls.New(ctx, req)
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, a.GaveUp(context.Cause(ctx))
	}
	if err := a.Unfit(); err != nil { // before anything is sent
		return nil, a.GaveUp(err)
	}
	if err := c.enter(); err != nil {
		return nil, fmt.Errorf("acquire lock %q: %w", req.Name, err)
	}
	c.b.Listen()
	a.Requested = true
	c.s.VerifyIfDue()
	if err := c.kinds.check(req.Kind, req.Name); err != nil {
		c.leave()
		return nil, err
	}
	return a, nil
}

// acquire waits for the lock.
func (m *member) acquire() error {
	for {
		m.runs.mu.Lock()
		r, inside, drives := m.run(), m.Inside, m.Run.Driver == &m.Member
		if m.wake == nil && !inside && !drives {
			m.wake = make(chan struct{}, 1)
		}
		m.runs.unlock()
		var res claim.Result
		switch {
		case inside:
			res = m.enter(r)
		case drives:
			merged := false
			if res = m.afterRecall(r); res.Outcome != core.Ended {
				res, merged = m.drive(r)
			}
			switch {
			case merged:
				continue
			case res.Outcome == core.Granted:
				if l := m.a.Hold(res); !r.granted(m, l) {
					l.Leave(record.StatusGone) //safety:claim-unwanted
				}
				continue
			}
		default:
			select {
			case <-m.wake:
				continue
			case <-m.a.Context().Done():
			case <-m.runs.b.Granting().Done():
			}
			res = claim.Result{Outcome: core.Ended, Err: m.a.Over()}
		}
		switch res.Outcome {
		case core.Granted:
			m.runs.mu.Lock()
			m.a, m.Want, m.wake = nil, nil, nil
			r.fold(m)
			m.runs.unlock()
			return nil
		case core.Lost:
			m.again()
		default:
			withdraw := m.giveUp()
			err := m.a.Failure(res)
			withdraw()
			return err
		}
	}
}

// afterRecall waits for the release of the idle lease before the run: its record would
// refuse the claim.
func (m *member) afterRecall(r *run) claim.Result {
	if r.Awaits == nil {
		return claim.Result{}
	}
	select {
	case <-ownerOf(r.Awaits).released:
		r.Awaits = nil // or each run would keep all before it
		return claim.Result{}
	case <-m.a.Context().Done():
	case <-m.runs.b.Granting().Done():
	}
	return claim.Result{Outcome: core.Ended, Err: m.a.Over()}
}

// drive gets the lock for a run. merged says that the members of the run are those of another one now.
func (m *member) drive(r *run) (res claim.Result, merged bool) {
	a := m.a
	a.Prepare()
	res.Outcome = core.Busy
	switch {
	case a.Driven(): // by the member before, which has come so far
	case r.Behind:
		res, merged = m.behind(r)
	default:
		r.lingersNext(a)
		res = a.AtOnce()
	}
	if merged || res.Outcome == core.Granted {
		return res, merged
	}
	defer a.WhileGranting()()
	switch {
	case a.Req.Once:
		res = a.Confirmed(res)
	case res.Outcome == core.Free || res.Outcome == core.Busy:
		res = a.Wait(res.Entry)
	}
	return res, false
}

// enter makes the member a holder of its run's lease. The first member of a run that
// writes drains the readers. Those after it enter behind the same gate, which has admitted
// no reader since. Admit refuses all of them once the lease of the gate has ended.
func (m *member) enter(r *run) claim.Result {
	a, l := m.a, r.lease
	if a.Drains() && !r.Drained {
		if res := a.Drain(l); res.Outcome != core.Granted {
			return res
		}
		m.runs.mu.Lock()
		r.Drained = true
		m.runs.unlock()
	}
	for {
		// Checked here, too, for a claim that was acknowledged just now, and a lease that was handed on.
		if err := a.Unfit(); err != nil { //safety:unfit-grants-none
			return claim.Result{Outcome: core.Ended, Err: err}
		}
		if cause := a.Over(); cause != nil && (r.line != nil || !a.Req.Once) {
			return claim.Result{Outcome: core.Ended, Err: cause}
		}
		admitted, err := l.Admit(&m.Holder, session.Admission{
			Parent: a.Parent, Detached: a.Req.Detached, Meta: a.Req.Meta, Begun: a.Begun, Queued: m.wake != nil,
			Lingers: m.Linger > 0, Least: a.Req.MinHold, Warn: a.Req.OnWarn, WarnBefore: a.Req.WarnBefore,
		})
		switch {
		case err != nil:
			return claim.Result{Outcome: core.Lost}
		case !admitted:
			_ = l.Renewed(a.Context()) // an error shows in the next try
			continue
		}
		return claim.Result{Outcome: core.Granted}
	}
}
