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
//	     --> gone or already broken: read again, as of what the leader has stored --> done, or no claim to break
//
// A lagging replica or mirror may answer a read. If the answer shows the claim, the conditional write settles whether
// the claim is still there. Only a state that contains everything the leader had stored at some point during the break
// proves that the claim is gone or already broken.
type Break struct {
	ID          string // the claim that the operator saw
	Immediately bool   // let the next client in immediately
	AsOf        uint64 // revision that the next read has to contain
	SeenBroken  bool   // a read has returned the broken record

	sent, confirmed bool
}

// BreakStep is the next step of a break.
type BreakStep uint8

const (
	// BreakRead reads the record again, as of AsOf.
	BreakRead BreakStep = iota
	// BreakWrite replaces the record.
	BreakWrite
	// BreakDone means that the record is broken.
	BreakDone
	// BreakGone means that the claim is gone.
	BreakGone
	// BreakTaken means that the claim is gone and another claim has the lock.
	BreakTaken
)

// RecordRead handles the record under the claim's key. stored is the last revision that the leader has stored. none
// means that a complete read found nothing under the key.
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
	// The record is already broken, perhaps by an earlier write whose answer was lost.
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

// WriteAnswered handles the answer to a write. expected is the revision that the write expected, and stored is the last
// revision that the leader had stored before the write.
func (b *Break) WriteAnswered(a Answer, expected, stored uint64) BreakStep {
	if a.Refusal == Acknowledged {
		return BreakDone
	}
	if a.Refusal == Conflict {
		named := a.Last
		if named <= expected { // the key is empty by now, or the answer came from a deposed leader
			named = stored
		}
		b.AsOf, b.confirmed = max(b.AsOf, named), true
	}
	return BreakRead
}

// BrokenFor returns the TTL of the broken record that replaces e, or 0 if a tombstone replaces e and frees the lock.
// server is the server's time before the break. usual stands in for the TTL if e has none, in which case some other
// program must have written e.
func (b *Break) BrokenFor(e record.Entry, server time.Time, usual time.Duration) time.Duration {
	// An overdue record has no holder to wait for.
	if b.Immediately || e.OverdueAt(server) { //safety:break-waits
		return 0
	}
	// The holder may not have noticed the break yet, so the broken record lasts at least as long as the record it
	// replaces would have.
	ttl := e.Record.TTL //safety:broken-outlasts
	if ttl == 0 {
		ttl = usual
	}
	if e.Fixed && !e.Unreadable {
		// The server that stamped the record may have had a different clock, so all that is certain is that the record
		// is at least as old as the difference less the slack.
		age := max(server.Sub(e.Time)-record.OverdueSlack, 0) //safety:broken-age
		ttl = max(clock.CeilSecond(ttl-age), time.Second)     //safety:broken-remainder
	}
	return ttl
}
