package core

import "github.com/natslock/locks/internal/record"

// An orphaned write is an attempt without an answer whose claim is over. The server may
// still apply it, and then its record keeps others out for a TTL. So the client goes on
// waiting for the answer, watches the key for the record, and takes away what the
// attempt expects. All of that is a courtesy to waiters; safety does not depend on it.

// Taking puts a tombstone where an orphaned write expects none, or where the record is that it expects. If the
// write was applied, its record is removed. For an expectation above 0 that settles the attempt for ever; for 0 as
// long as the tombstone lasts.
type Taking struct {
	Removal
	Attempt Attempt
	// OnlyOwn: what the attempt expects is not to be taken away, but the record that it may have written: read
	// the key of the claim, and call [Taking.Own].
	OnlyOwn bool
	guarded bool
}

// Takings are those of the attempts of a claim that are open: one for each expectation. That of guarded ones is
// about another key, the gate. One that adopts expects a lock that another client may adopt.
func Takings(id string, open []Attempt, guarded, adopts bool) (all []Taking) {
	taken := make(map[uint64]bool)
	for _, a := range open {
		if !taken[a.Expect] {
			taken[a.Expect] = true
			t := Taking{Attempt: a, guarded: guarded, Removal: Removal{ID: id, Revision: a.Expect}}
			t.OnlyOwn = guarded || adopts //safety:adopt-leaves
			all = append(all, t)
		}
	}
	return all
}

// Own takes the record under the claim's key. It says whether that is to be removed. Otherwise the client waits for
// the answer to the attempt: the server may have answered the read before it stored the claim.
func (t *Taking) Own(e record.Entry) bool {
	if !e.Live() || !e.From(t.ID) {
		return false
	}
	t.Revision, t.attempt = e.Revision, e.Attempt
	return true
}

// Settled are the attempts, when the removal is over, that cannot be applied any more, or have been and their
// record is gone.
func (t *Taking) Settled() (n []int) {
	if !t.final {
		return nil
	}
	if t.attempt > 0 {
		n = append(n, t.attempt)
	}
	if t.Attempt.Expect > 0 && !t.guarded { // a later revision kills it for ever
		n = append(n, t.Attempt.N)
	}
	return n
}
