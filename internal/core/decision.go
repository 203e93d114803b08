package core

// Decision is the next step of a waiter, whether first or not.
type Decision uint8

const (
	// Stay: the lock is held, or left to the head for now.
	Stay Decision = iota
	// ListAgain: the predecessor's place or the waiter's own is gone.
	ListAgain
	// Take: claim key K at the revision.
	Take
	// Reclaim: claim key K at 0, because it has the record of an earlier attempt of the waiter's claim. This comes
	// before claims of other keys, which would end that claim.
	Reclaim
	// Verify: read key K as of the revision.
	Verify
	// Prove: make the leader refuse a write, and then name a revision that it has reached.
	Prove
	// ReadAll: read all keys, in one state that contains the revision.
	ReadAll
)
