package core

import (
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
)

// Extending extends a lock that no process renews, on behalf of a process that has the lock's handle and remembers
// nothing else:
//
//	read --> the claim's record, inside its validity: write it again at exactly its revision
//	     |       --> acknowledged in time: extended
//	     |       --> anything else: read again, as of what the answer has named
//	     --> newer than the first record read, and long enough: an earlier write of this call was applied, or
//	     |   another process with the handle has extended it
//	     --> anything else: it is lost
//
// Each read contains everything the leader had stored at some point during the call, so what it shows is proof. If the
// answer to a write does not arrive in time, the validity counts from the server's timestamp of the record.
//
// Because the write expects the revision that was read, no other client can have written the key in between. But that
// is not enough. The server may have removed the record and may bring it back after a crash, and a writer may pass a
// reader whose validity has ended, in both cases without changing the record. So an extension is valid only if the
// server stored it within the validity of the record that it extends. The extended record states that deadline
// ([record.Body.By]), because the next process to read it remembers nothing either.
type Extending struct {
	Handle
	TTL time.Duration // requested TTL, in whole seconds

	AsOf     uint64        // revision that the next read has to contain
	Terms    clock.Terms   // of the next write, or of the extended record
	By       time.Time     // deadline for storing the next write, by the server's clock
	Valid    clock.Instant // end of the extended record's validity
	Last     uint64        // revision of the extended record
	deadline clock.Instant // for the answer to the next write
	first    uint64        // revision of the first record read
}

// RecordRead handles the record under the key, read from a state that contains everything the leader had stored when
// its clock showed server. asked is when the leader was asked.
func (x *Extending) RecordRead(e record.Entry, server time.Time, asked clock.Instant) HandleStep {
	step, left := x.Judge(e, server)
	if step != HandleWrite {
		return step
	}
	t := clock.NewTerms(e.Record.TTL)
	if x.first != 0 && e.Revision > x.first && e.Record.TTL >= x.TTL { //safety:extend-found
		x.Terms, x.Valid, x.Last = t, asked.Add(left), e.Revision
		return HandleDone
	}
	if x.first == 0 {
		x.first = e.Revision
	}
	// A validity that was relied on must not get shorter, even if less is requested now.
	ttl := max(x.TTL, clock.CeilSecond(min(left+t.Margin, e.Record.TTL))) //safety:extend-never-shorter
	x.Terms = clock.NewTerms(ttl)
	x.By, x.deadline = server.Add(left), asked.Add(left)
	return HandleWrite
}

// WriteAnswered handles the answer to a write that was sent at time sent. expected is the revision that the write
// expected.
func (x *Extending) WriteAnswered(a Answer, expected uint64, sent, now clock.Instant) HandleStep {
	v := ValidFrom(sent, x.Terms)
	if a.Refusal == Acknowledged && v.InTime(now) && now < x.deadline { //safety:extend-in-time
		x.Valid, x.Last = v.End, a.Revision
		return HandleDone
	}
	// A deposed leader that refuses the write names a lower revision.
	x.AsOf = max(x.AsOf, expected, a.Last, a.Revision)
	return HandleRead
}
