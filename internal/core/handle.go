package core

import (
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
)

// Handle identifies the claim on a lock whose process has left a fixed record in the bucket. A process that has the
// handle can extend the record under the same id ([Extending]) or adopt the lock with a claim of its own. Both are
// conditional writes at exactly the revision that was read, so the server refuses one of two concurrent writes.
//
// The condition alone is not enough. A server that forgets TTLs may have removed the record and may bring it back after
// a crash, even though others have been inside in the meantime. So the write is valid only if the process learns of its
// success before the validity of the record ends.
type Handle struct {
	ID    string // the claim's id
	Token uint64
}

// HandleStep is the next step with a handle, or the outcome.
type HandleStep uint8

const (
	// HandleRead reads the record again.
	HandleRead HandleStep = iota
	// HandleWrite writes at the revision that was read.
	HandleWrite
	// HandleDone means that the lock is extended.
	HandleDone
	// HandleGone means that the record is gone.
	HandleGone
	// HandleTaken means that another claim has the lock.
	HandleTaken
	// HandleKept means that the holder renews the record.
	HandleKept
	// HandleBroken means that an operator has broken the lock.
	HandleBroken
	// HandleLate means that the record still exists but its validity has ended.
	HandleLate
)

// Judge judges the record under the key, read from a state that contains everything the leader had stored when its
// clock showed server. If the record can be replaced, Judge returns HandleWrite and how much of the record's validity
// was left at that time.
func (h Handle) Judge(e record.Entry, server time.Time) (step HandleStep, left time.Duration) {
	left = e.Time.Add(clock.NewTerms(e.Record.TTL).Validity()).Sub(server)
	switch own := e.From(h.ID); {
	case own && e.Status == record.StatusBroken:
		return HandleBroken, 0
	case !e.Live():
		return HandleGone, 0
	case !own || e.Status != record.StatusHeld || e.TokenOrTicket() != h.Token: //safety:handle-own
		return HandleTaken, 0
	case !e.Fixed: //safety:handle-fixed
		return HandleKept, 0
	case e.StoredLate() || left <= 0: //safety:handle-late
		return HandleLate, 0
	}
	return HandleWrite, left
}
