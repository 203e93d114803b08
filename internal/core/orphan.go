package core

import (
	"github.com/natslock/locks/internal/record"
)

// An orphaned write is an attempt without an answer whose claim is over. The server may
// still apply it, and then its record keeps others out for a TTL. So the client goes on
// waiting for the answer, watches the key for the record, and takes away what the
// attempt expects. All of that is a courtesy to waiters; safety does not rest on it.

// Taking puts a tombstone where an orphaned write expects none, or finds its record and deletes it. For
// an expectation above 0 that settles the attempt for ever; for 0 as long as the tombstone lasts.
type Taking struct {
	ID      string // of the claim
	Attempt Attempt
	Guarded bool // the expectation is about another key, the gate
	Adopts  bool // the expectation is a lock that another client may adopt

	Expect uint64 // what the tombstone expects
	found  int    // the attempt whose record is there; 0: none
}

// TakingStep says what is done next.
type TakingStep uint8

const (
	// Taken: the taking is over.
	Taken TakingStep = iota
	// Delete: put a tombstone at Expect, and call [Taking.Deleted].
	Delete
	// ReadOwn: read the claim's key, and call [Taking.Own].
	ReadOwn
	// ReadLast: read the key as of the revision that the refusal names, and call [Taking.Last].
	ReadLast
	// Await: wait for the answer to the attempt.
	Await
	// RetrySoon: delete again, when the write that is being replicated is stored.
	RetrySoon
	// Retry: delete again, after a pause as of an outage.
	Retry
)

// Takings are those of the attempts of a claim that are open: one for each expectation.
func Takings(id string, open []Attempt, guarded, adopts bool) (all []Taking) {
	taken := make(map[uint64]bool)
	for _, a := range open {
		if !taken[a.Expect] {
			taken[a.Expect] = true
			all = append(all, Taking{ID: id, Attempt: a, Guarded: guarded, Adopts: adopts, Expect: a.Expect})
		}
	}
	return all
}

// Begin says what is done first.
func (t *Taking) Begin() TakingStep {
	// There is nothing to take away, but the record that the attempt may have written is there.
	if t.Guarded || t.Adopts { //safety:adopt-leaves
		return ReadOwn
	}
	return Delete
}

// Own takes the record under the claim's key.
func (t *Taking) Own(e record.Entry) TakingStep {
	if !t.owns(e) { // the server may have answered the read before it stored the claim
		return Await
	}
	t.Expect, t.found = e.Revision, e.Attempt
	return Delete
}

// Deleted takes the answer to the tombstone. The attempts in settled cannot be applied any more, or have
// been and their record is deleted.
func (t *Taking) Deleted(a Answer) (next TakingStep, settled []int) {
	switch a.Refusal {
	case Acknowledged:
		return Taken, t.settled()
	case Conflict:
		if a.Last == 0 {
			return Taken, nil
		}
		return ReadLast, nil
	case InFlight:
		return RetrySoon, nil
	}
	return Retry, nil
}

// Last takes the record that has refused the tombstone.
func (t *Taking) Last(e record.Entry, refusal Answer) (next TakingStep, settled []int) {
	switch {
	case !t.owns(e): // another claim's record is not this claim's to delete //safety:only-own-taken
		if refusal.Final(t.Expect) {
			settled = t.settled()
		}
		return Taken, settled
	case e.Revision == t.Expect:
		return Retry, nil
	}
	t.Expect, t.found = e.Revision, e.Attempt
	return Delete, nil
}

func (t *Taking) owns(e record.Entry) bool { return e.Live() && e.From(t.ID) }

func (t *Taking) settled() (n []int) {
	if t.found > 0 { // it was applied, and its record is gone
		n = append(n, t.found)
	}
	if t.Attempt.Expect > 0 && !t.Guarded { // a later revision kills it for ever
		n = append(n, t.Attempt.N)
	}
	return n
}
