package core

import "github.com/natslock/locks/internal/record"

// An orphaned write is an unanswered attempt of a finished claim. If the server does apply the write, its record keeps
// others out for a full TTL. So the client keeps waiting for the answer, watches the key for the record, and replaces
// the record that the attempt expects. All of this is a courtesy to waiters; safety does not depend on it.

// Taking writes a tombstone at the revision that an orphaned write expects, so that the server has to refuse that
// write. If the write has already been applied, Taking removes its record. An attempt that expects a revision above 0
// is then settled for good, because the key will never have that revision again. An attempt that expects no record (0)
// is settled only while the tombstone lasts. Once the tombstone has expired, the server may still apply the attempt, in
// which case the watch on the key finds its record.
type Taking struct {
	Removal
	Attempt Attempt
	// OnlyOwn is set for a guarded attempt, which expects a revision of the gate. In that case, only a record that the
	// attempt itself may have written is to be removed: read the claim's key and call [Taking.OwnRecordRead].
	OnlyOwn bool
}

// Takings returns one Taking for each revision that the open attempts of a claim expect. guarded means that these
// attempts are guarded.
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

// OwnRecordRead handles the record under the claim's key and reports whether to remove it. If not, the client waits for
// the answer to the attempt, because the server may have answered the read before it stored the claim.
func (t *Taking) OwnRecordRead(e record.Entry) bool {
	if !e.Live() || !e.From(t.ID) {
		return false
	}
	t.Revision, t.attempt = e.Revision, e.Attempt
	return true
}

// Settled returns the numbers of the attempts that the removal has settled, either because they can no longer be
// applied or because their record is gone.
func (t *Taking) Settled() (n []int) {
	if !t.final {
		return nil
	}
	if t.attempt > 0 {
		n = append(n, t.attempt)
	}
	if t.Attempt.Expect > 0 && !t.OnlyOwn { // ruled out for good by a later revision
		n = append(n, t.Attempt.N)
	}
	return n
}
