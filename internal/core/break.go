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
//	     --> gone, or broken already: read as of what the leader has stored, and then: done, or nobody to break
//
// A replica or a mirror that lags may answer a read. Where it shows the claim, the conditional write is the proof.
// That the claim is gone, or broken already, only a state proves that contains what the leader had stored during
// the break.
type Break struct {
	ID          string // of the claim that the operator saw
	Immediately bool   // let the next one in at once
	AsOf        uint64 // what the next read has to contain
	SeenBroken  bool   // a read has returned the broken record

	sent, confirmed bool
}

// BreakStep says what is done next.
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
	// BreakTaken: it is gone, and another one has its record.
	BreakTaken
)

// RecordRead takes the record under the key of the claim. The leader has stored up to a revision; none says that it has
// nothing under the key in a state that is complete.
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
	// Also where the answer to an earlier try was lost.
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

// WriteAnswered takes the answer to the write, which expected a revision. The leader had stored up to another one before.
func (b *Break) WriteAnswered(a Answer, expected, stored uint64) BreakStep {
	if a.Refusal == Acknowledged {
		return BreakDone
	}
	if a.Refusal == Conflict {
		named := a.Last
		if named <= expected { // nothing is there any more, or a deposed leader has answered
			named = stored
		}
		b.AsOf, b.confirmed = max(b.AsOf, named), true
	}
	return BreakRead
}

// BrokenFor is the TTL of the broken record that replaces e. 0: a tombstone replaces it, which frees the lock. server is
// the server's time before the break. usual stands in for the TTL of a record that has none, which another program wrote.
func (b *Break) BrokenFor(e record.Entry, server time.Time, usual time.Duration) time.Duration {
	// An overdue record has no holder to wait for.
	if b.Immediately || e.OverdueAt(server) { //safety:break-waits
		return 0
	}
	// Not shorter than what it replaces: its holder may not have noticed yet.
	ttl := e.Record.TTL //safety:broken-outlasts
	if ttl == 0 {
		ttl = usual
	}
	if e.Fixed && !e.Unreadable {
		// The clock of the server that has stamped the record may be ahead. From that server's time on, minus the
		// record's own, is an age that the record certainly has.
		age := max(server.Sub(e.Time)-record.OverdueSlack, 0) //safety:broken-age
		ttl = max(clock.CeilSecond(ttl-age), time.Second)     //safety:broken-remainder
	}
	return ttl
}
