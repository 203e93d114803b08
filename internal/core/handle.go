package core

import (
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
)

// Handle names the claim of a lock whose process has left its fixed record in the bucket. A process with the handle
// extends the record under the same id ([Extending]), or adopts the lock by a claim of its own. Either is a conditional
// write at exactly the revision that was read, so if two are concurrent, the server refuses one.
//
// The condition is not enough: a server that forgets TTLs may have removed the record, and may bring it back after a
// crash although others have been inside meanwhile. So the write counts only if it is known before the validity of the
// record ends.
type Handle struct {
	ID    string // of the claim
	Token uint64
}

// HandleStep is the next step with a handle, or the outcome.
type HandleStep uint8

const (
	// HandleRead: read again.
	HandleRead HandleStep = iota
	// HandleWrite: write at the revision that was read.
	HandleWrite
	// HandleDone: the lock is extended.
	HandleDone
	// HandleGone: the record is gone.
	HandleGone
	// HandleTaken: another claim has the lock.
	HandleTaken
	// HandleKept: the holder renews the record.
	HandleKept
	// HandleBroken: an operator has broken the lock.
	HandleBroken
	// HandleLate: the record is there, but its validity is over.
	HandleLate
)

// Judge judges the record under the key, as of what the leader had stored when its clock showed server. If the record
// may be replaced, Judge returns HandleWrite and what was left of its validity at that time.
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
