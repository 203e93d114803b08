package core

import "github.com/natslock/locks/internal/record"

// An orphaned write is an unanswered attempt of a claim that is over. The server may still apply it, and then its
// record keeps others out for a TTL. So the client still waits for the answer, watches the key for the record, and
// replaces what the attempt expects. All of that is a courtesy to waiters; safety does not depend on it.

// Taking writes a tombstone at the revision that an orphaned write expects, so that the server has to refuse that
// write. If the write was applied already, Taking removes its record. An attempt that expects a revision above 0 is
// then settled for good, since the key never has that revision again. One that expects no record (0) is settled only
// while the tombstone lasts: once that has expired, the server may apply the attempt, and the watch of the key then
// finds its record.
type Taking struct {
	Removal
	Attempt Attempt
	// OnlyOwn is set for a guarded attempt, whose expectation is about the gate. It means that only the record that
	// the attempt may have written is to be removed: read the claim's key, and call [Taking.OwnRecordRead].
	OnlyOwn bool
}

// Takings returns one Taking for each expectation of the open attempts of a claim. guarded is true if they are guarded.
func Takings(id string, open []Attempt, guarded bool) (all []Taking) {
	taken := make(map[uint64]bool)
	for _, a := range open {
		if !taken[a.Expect] {
			taken[a.Expect] = true
			all = append(all, Taking{Attempt: a, OnlyOwn: guarded, Removal: Removal{ID: id, Revision: a.Expect}})
		}
	}
	return all
}

// OwnRecordRead handles the record under the claim's key, and reports whether to remove it. Otherwise the client waits
// for the answer to the attempt: the server may have answered the read before it stored the claim.
func (t *Taking) OwnRecordRead(e record.Entry) bool {
	if !e.Live() || !e.From(t.ID) {
		return false
	}
	t.Revision, t.attempt = e.Revision, e.Attempt
	return true
}

// Settled returns the attempts that the removal settles: they can no longer be applied, or their record is gone.
func (t *Taking) Settled() (n []int) {
	if !t.final {
		return nil
	}
	if t.attempt > 0 {
		n = append(n, t.attempt)
	}
	if t.Attempt.Expect > 0 && !t.OnlyOwn { // a later revision rules it out for good
		n = append(n, t.Attempt.N)
	}
	return n
}
