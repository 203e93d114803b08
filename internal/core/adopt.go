package core

import "github.com/natslock/locks/internal/record"

// Adopting is the adoption of a lock that its holder has handed over: of the record with that status, claim and
// token, at exactly the revision read. A replica or a mirror that lags may lack the hand-over, so a refusal needs a
// state that contains what the leader had stored during the call.
type Adopting struct {
	ID    string // of the claim that was handed over
	Token uint64

	confirmed bool // the reads are as of what the leader had stored during the call
}

// Adoption says what a record means for an [Adopting].
type Adoption uint8

const (
	// Adoptable: claim it at its revision, unless it is overdue: see [Adopting.Expired].
	Adoptable Adoption = iota
	// AdoptBroken: an operator has broken it.
	AdoptBroken
	// AdoptGone: there is nothing.
	AdoptGone
	// AdoptKept: its holder keeps it.
	AdoptKept
	// AdoptTaken: another claim has it.
	AdoptTaken
	// AdoptExpired: its time is over.
	AdoptExpired
)

// Found takes the record under the key. again says that it has to be read once more, as of what the leader has
// stored.
func (a *Adopting) Found(e record.Entry) (found Adoption, again bool) {
	own := e.From(a.ID)
	switch {
	case own && e.Status == record.StatusBroken:
		found = AdoptBroken
	case !e.Live():
		found = AdoptGone
	case own && e.Status == record.StatusHanded && e.TokenOrTicket() == a.Token: //safety:adopt-handed
		return Adoptable, false
	case own:
		found = AdoptKept
	default:
		found = AdoptTaken
	}
	return a.refused(found)
}

// Expired takes that the record which was found is overdue.
func (a *Adopting) Expired() (found Adoption, again bool) { return a.refused(AdoptExpired) }

func (a *Adopting) refused(found Adoption) (Adoption, bool) {
	again := !a.confirmed //safety:adopt-confirmed
	a.confirmed = true
	return found, again
}
