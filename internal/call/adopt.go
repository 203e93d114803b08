package call

import (
	"errors"
	"fmt"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/claim"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
)

// ErrNotHandedOver says that there is nothing to adopt. Package natslock documents it.
var ErrNotHandedOver = errors.New("lock not handed over")

// Adopt claims the record of a lock that was handed over: see [core.Adopting]. It returns granted, failed or ended.
func (a *Call) Adopt(from session.Handed) claim.Result {
	a.Prepare()
	a.bid.Once = false // an attempt without an answer is repeated
	a.bid.Draft.Adopts, a.bid.Draft.Body.Token = true, from.Token
	adopting := core.Adopting{ID: from.ID, Token: from.Token}
	entry, err := a.c.b.Read(a.ctx, a.Keys.Gate, 0)
	for err == nil {
		found, again := adopting.Found(entry)
		if found == core.Adoptable {
			if over, _ := a.c.b.Overdue(a.ctx, entry); over {
				found, again = adopting.Expired()
			}
		}
		refusal := refusals[found](entry)
		if found == core.Adoptable {
			r := a.bid.Offer(a.ctx, entry.Revision)
			if r.Outcome != free && r.Outcome != busy {
				return r
			}
			entry = r.Entry
			continue
		}
		if !again {
			return result{Outcome: failed, Err: refusal}
		}
		if err = a.ask(); err == nil {
			entry, err = a.c.b.Read(a.ctx, a.Keys.Gate, a.asOf)
		}
		if bucket.IsAny(err, bucket.ErrPermission) { // the leader's word is withheld from this user
			return result{Outcome: failed, Err: refusal}
		}
	}
	return a.noAnswer(err)
}

// refusals are the errors of an adoption.
var refusals = [...]func(record.Entry) error{
	core.Adoptable: func(record.Entry) error { return nil },
	core.AdoptBroken: func(e record.Entry) error {
		return fmt.Errorf("%w: %w %s", ErrNotHandedOver, session.ErrBroken, e.BrokenBecause())
	},
	core.AdoptGone: func(record.Entry) error {
		return fmt.Errorf("%w: %w: its record is gone", ErrNotHandedOver, session.ErrLost)
	},
	core.AdoptKept: func(record.Entry) error {
		return fmt.Errorf("%w: %w: its owner keeps it", ErrNotHandedOver, ErrLocked)
	},
	core.AdoptExpired: func(record.Entry) error {
		return fmt.Errorf("%w: %w: its record has expired", ErrNotHandedOver, session.ErrLost)
	},
	core.AdoptTaken: func(record.Entry) error {
		return fmt.Errorf("%w: %w: another claim has taken it", ErrNotHandedOver, ErrLocked)
	},
}
