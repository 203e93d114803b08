package call

import (
	"errors"
	"fmt"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/claim"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
)

// ErrNotHandedOver says that there is nothing to adopt. Package natslock documents it.
var ErrNotHandedOver = errors.New("lock not handed over")

// Adopt claims the record of a lock that was handed over. It returns granted, failed or
// ended. Where a replica or a mirror lags, its answer may lack the hand-over, so a refusal
// needs a state that contains what the leader had stored during this call.
func (a *Call) Adopt(from session.Handed) claim.Result {
	a.Prepare()
	a.bid.Once = false // an attempt without an answer is repeated
	a.bid.Draft.Adopts, a.bid.Draft.Body.Token = true, from.Token
	entry, err := a.c.b.Read(a.ctx, a.Keys.Gate, 0)
	for confirmed := false; err == nil; {
		refusal := a.refusal(from, entry)
		if refusal == nil {
			r := a.bid.Offer(a.ctx, entry.Revision)
			if r.Outcome != free && r.Outcome != busy {
				return r
			}
			entry = r.Entry
			continue
		}
		if confirmed { //safety:adopt-confirmed
			return result{Outcome: failed, Err: refusal}
		}
		if err = a.ask(); err == nil {
			entry, err = a.c.b.Read(a.ctx, a.Keys.Gate, a.asOf)
		}
		if bucket.IsAny(err, bucket.ErrPermission) { // the leader's word is withheld from this user
			return result{Outcome: failed, Err: refusal}
		}
		confirmed = true
	}
	return a.noAnswer(err)
}

// refusal says why the record is not to be adopted: it is not that of the lock that was
// handed over.
func (a *Call) refusal(from session.Handed, e record.Entry) error {
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
