package call

import (
	"errors"
	"fmt"

	"github.com/natslock/locks/internal/claim"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
)

// ErrNotHandedOver means that there is nothing to adopt. Package natslock documents it.
var ErrNotHandedOver = errors.New("lock not handed over")

// Adopt claims a lock that was handed over, at exactly the revision it read: see [core.Handle]. It returns granted,
// failed or ended.
func (a *Call) Adopt(from session.Handed) claim.Result {
	a.Prepare()
	a.bid.Once = false // unanswered attempts are repeated
	a.bid.Draft.Adopts, a.bid.Draft.Body.Token = true, from.Token
	h := core.Handle{ID: from.ID, Token: from.Token}
	for {
		e, st, asked, err := a.c.b.ReadNow(a.ctx, a.Keys.Gate, a.asOf)
		if err != nil {
			return a.noAnswer(err)
		}
		step, left := h.Judge(e, st.Time)
		if step != core.HandleWrite {
			return result{Outcome: failed, Err: notHandedOver(step, e)}
		}
		a.bid.Draft.By = asked.Add(left)
		r := a.bid.Offer(a.ctx, e.Revision)
		if r.Outcome != free && r.Outcome != busy {
			return r
		}
		a.asOf = max(a.asOf, r.Entry.Revision)
	}
}

// notHandedOver explains why there is nothing to adopt.
func notHandedOver(step core.HandleStep, e record.Entry) error {
	switch step {
	case core.HandleBroken:
		return fmt.Errorf("%w: %w %s", ErrNotHandedOver, session.ErrBroken, e.BrokenBecause())
	case core.HandleKept:
		return fmt.Errorf("%w: %w: its holder has kept it", ErrNotHandedOver, ErrLocked)
	case core.HandleTaken:
		return fmt.Errorf("%w: %w: another claim has taken it", ErrNotHandedOver, ErrLocked)
	case core.HandleLate:
		return fmt.Errorf("%w: %w: its record has expired", ErrNotHandedOver, session.ErrLost)
	}
	return fmt.Errorf("%w: %w: its record no longer exists", ErrNotHandedOver, session.ErrLost)
}
