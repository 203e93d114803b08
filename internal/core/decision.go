package core

// Decision is the next step of a waiter, whether or not it is the first.
type Decision uint8

const (
	// Stay does nothing, because the lock is held or is left to the head for now.
	Stay Decision = iota
	// ListAgain lists the queue again, because the predecessor's place or the waiter's own is gone, or because the head
	// has changed.
	ListAgain
	// Take claims a key at the given revision.
	Take
	// Reclaim claims a key at 0, because an earlier attempt of the waiter's claim wrote the key's record. Reclaim comes
	// before claims of other keys, which would end the waiter's claim.
	Reclaim
	// Verify reads a key as of the given revision.
	Verify
	// Prove makes the leader refuse a write and then name a revision that it has reached.
	Prove
	// ReadAll reads all keys from a single state that contains the given revision.
	ReadAll
)
