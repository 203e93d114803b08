package core

import (
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
)

// Break is an operator's break of one claim:
//
//	read --> its record: write the broken one --> acknowledged: done
//	     |                                    --> refused: read again, as of the revision that the leader named
//	     |                                    --> no answer: read again
//	     --> gone, or broken already: read as of what the leader has stored, and then: done, or no claim to break
//
// A lagging replica or mirror may answer a read. If it shows the claim, the conditional write is the proof. Only a
// state that contains what the leader had stored during the break proves that the claim is gone or already broken.
type Break struct {
	ID          string // the claim that the operator saw
	Immediately bool   // let the next client in at once
	AsOf        uint64 // the revision that the next read has to contain
	SeenBroken  bool   // a read has returned the broken record

	sent, confirmed bool
}

// BreakStep is the next step of a break.
type BreakStep uint8

const (
	// BreakRead: read again, as of AsOf.
	BreakRead BreakStep = iota
	// BreakWrite: replace the record.
	BreakWrite
	// BreakDone: the record is broken.
	BreakDone
	// BreakGone: the claim is gone.
	BreakGone
	// BreakTaken: the claim is gone, and another claim has the lock.
	BreakTaken
)

// RecordRead handles the record under the claim's key. stored is the last revision that the leader has stored. none
// means that the key is empty in a complete state.
func (b *Break) RecordRead(e record.Entry, none bool, stored uint64) BreakStep {
	if none && stored >= max(b.AsOf, e.Revision) { //safety:break-complete
		e = record.Entry{} // a replica has not removed it yet
	}
	gone := !e.Live() || e.ClaimID() != b.ID                                              //safety:break-shown
	broken := !gone && e.Status == record.StatusBroken && !e.Unreadable && !b.Immediately //safety:break-once
	switch {
	case (gone || broken) && !b.confirmed: //safety:break-confirmed
		b.AsOf, b.confirmed, b.SeenBroken = max(b.AsOf, stored), true, broken
		return BreakRead
	// An earlier write whose answer was lost counts too.
	case broken, gone && b.sent && e.Deleted && e.Status == record.StatusBroken && e.From(b.ID):
		return BreakDone
	case gone && e.Live():
		return BreakTaken
	case gone:
		return BreakGone
	}
	b.sent = true
	return BreakWrite
}

// WriteAnswered handles the answer to the write that was conditional on revision expected. stored is the last revision
// that the leader had stored before that write.
func (b *Break) WriteAnswered(a Answer, expected, stored uint64) BreakStep {
	if a.Refusal == Acknowledged {
		return BreakDone
	}
	if a.Refusal == Conflict {
		named := a.Last
		if named <= expected { // the key is empty by now, or a deposed leader has answered
			named = stored
		}
		b.AsOf, b.confirmed = max(b.AsOf, named), true
	}
	return BreakRead
}

// BrokenFor returns the TTL of the broken record that replaces e, or 0 if a tombstone replaces it and frees the lock.
// server is the server's time before the break. usual stands in for the TTL of a record that has none, because another
// program wrote it.
func (b *Break) BrokenFor(e record.Entry, server time.Time, usual time.Duration) time.Duration {
	// An overdue record has no holder to wait for.
	if b.Immediately || e.OverdueAt(server) { //safety:break-waits
		return 0
	}
	// The broken record lasts at least as long as the one it replaces would have: the holder may not have noticed yet.
	ttl := e.Record.TTL //safety:broken-outlasts
	if ttl == 0 {
		ttl = usual
	}
	if e.Fixed && !e.Unreadable {
		// The clock of the server that stamped the record may be ahead. The record is at least as old as the
		// difference, less the slack.
		age := max(server.Sub(e.Time)-record.OverdueSlack, 0) //safety:broken-age
		ttl = max(clock.CeilSecond(ttl-age), time.Second)     //safety:broken-remainder
	}
	return ttl
}
