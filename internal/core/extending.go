package core

import (
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
)

// Extending is the extension of a lock that no process renews, by one that has the lock's handle and remembers
// nothing else:
//
//	read --> the claim's record, inside its validity: write it again at exactly its revision
//	     |       --> acknowledged in time: extended
//	     |       --> anything else: read again, as of what the answer has named
//	     --> newer than the first one that was read, and long enough: an earlier write of this call was applied, or
//	     |   another process with the handle has extended it
//	     --> anything else: it is lost
//
// Each read is as of what the leader had stored during the call, so that what it shows is proof. Where the answer
// to a write did not come in time, the validity counts from the time that the server has given the record.
//
// The write expects the revision that was read, so nobody else can have written the key in between. That is not
// enough. The server may have removed the record and bring it back after a crash, and a writer may pass a reader whose
// validity is over: neither changes the record. So an extension counts only if the server stored it inside the validity of the record before.
// The record says by when ([record.Body.By]), because the next process to read it remembers nothing either.
type Extending struct {
	Handle
	TTL time.Duration // that is wanted, of whole seconds

	AsOf     uint64        // what the next read has to contain
	Terms    clock.Terms   // of the next write, and of what was extended
	By       time.Time     // of the next write: when the server has to have stored it
	Valid    clock.Instant // of what was extended: the end of its validity
	Last     uint64        // revision of what was extended
	deadline clock.Instant // of the answer to the next write
	first    uint64        // revision of the first record that was read
}

// RecordRead takes the record under the key, as of what the leader had stored when its clock showed a time. The leader
// was read at a time. margin is the part of a TTL that is left unused.
func (x *Extending) RecordRead(e record.Entry, server time.Time, asked clock.Instant, margin float64) HandleStep {
	step, left := x.Judge(e, server, margin)
	if step != HandleWrite {
		return step
	}
	t := clock.NewTerms(e.Record.TTL, margin)
	if x.first != 0 && e.Revision > x.first && e.Record.TTL >= x.TTL { //safety:extend-found
		x.Terms, x.Valid, x.Last = t, asked.Add(left), e.Revision
		return HandleDone
	}
	if x.first == 0 {
		x.first = e.Revision
	}
	// What was believed of the record so far stays true, also where less is wanted now.
	ttl := max(x.TTL, clock.CeilSecond(min(left+t.Margin, e.Record.TTL))) //safety:extend-never-shorter
	x.Terms = clock.NewTerms(ttl, margin)
	x.By, x.deadline = server.Add(left), asked.Add(left)
	return HandleWrite
}

// WriteAnswered takes the answer to the write, which was sent at a time and expected a revision.
func (x *Extending) WriteAnswered(a Answer, expected uint64, sent, now clock.Instant) HandleStep {
	v := ValidFrom(sent, x.Terms)
	if a.Refusal == Acknowledged && v.InTime(now) && now < x.deadline { //safety:extend-in-time
		x.Valid, x.Last = v.End, a.Revision
		return HandleDone
	}
	// Refused by a leader that was deposed it names less.
	x.AsOf = max(x.AsOf, expected, a.Last, a.Revision)
	return HandleRead
}
