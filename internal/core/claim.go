package core

import (
	"slices"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
)

// Claim is one acquisition under one id. At most one of the attempts made under that id becomes a lease or a place.
//
// An attempt is a conditional write whose answer may be lost, late, or overtaken by the answer to another attempt. So
// each attempt is judged separately, by its own expected revision and the time at which it was sent:
//
//	           acknowledged in time, or its record is found in time
//	open ---------------------------------------------------------> granted
//	  |
//	  |   acknowledged after the end of its own validity: its record
//	  +-- is deleted ----------------------------------------------> lost
//	  |
//	  |   acknowledged at a revision that is not above all known ones:
//	  +-- its record is deleted -----------------------------------> backwards
//	  |
//	  +-- refused: it is never applied ----------------------------> answered
//
// With several replicas, a refusal is in doubt, because a deposed leader may refuse a write that its successor applies.
// So a refused attempt is still granted if its record is found.
//
// A claim is over once it is granted, given up, lost to a late answer, or found broken. After that, if another of its
// attempts is acknowledged, the only effect is that the attempt's own record is deleted. The acknowledgment is never a
// grant, so an answer that arrives after the lock was given up cannot bring the lock back.
type Claim struct {
	ID   string
	over bool

	attempts []Attempt // attempt n is attempts[n-1]
	replies  []Reply   // not yet judged
	granted  int       // number of the attempt that was granted; 0 if none was

	// Inline storage, because most claims need only one of each.
	firstAttempt [1]Attempt
	firstReply   [1]Reply
}

// Attempt is one write of a claim.
type Attempt struct {
	N      int
	Expect uint64
	Terms  clock.Terms
	Sent   clock.Instant
	Floor  uint64            // highest revision known when it was sent
	Since  int64             // when it was sent, as stated in the record, in Unix milliseconds
	Waited int64             // how long the call had waited, as stated in the record, in milliseconds
	Meta   map[string]string // metadata of the record
	By     clock.Instant     // deadline for learning that an adoption succeeded; 0 if there is none

	answered bool
	acked    bool // acknowledged, so its reply decides once judged
	doubtful bool // refused, but perhaps by a deposed leader whose successor may have applied it
}

// Answer is the server's answer to a write.
type Answer struct {
	Refusal  Refusal
	Revision uint64 // of the record, if Acknowledged
	Last     uint64 // revision of the key, if Conflict; 0 if the key has none
}

// Refusal classifies an answer as an acknowledgment or as a particular kind of refusal.
type Refusal uint8

const (
	// Acknowledged means that the write was not refused.
	Acknowledged Refusal = iota
	// Conflict means that the key does not have the expected revision.
	Conflict
	// InFlight means that another write to the key is being replicated.
	InFlight
	// Full means that there is no room for the record.
	Full
	// Never means that the write was not sent or that no server accepts it.
	Never
	// Unsure means that the write may still be applied.
	Unsure
)

// Final reports whether the answer settles an attempt that expects revision expect, no matter which server gave it.
// Several servers may believe they are the leader, but all of them refuse an attempt whose expected revision has been
// replaced.
func (a Answer) Final(expect uint64) bool {
	switch a.Refusal {
	case Conflict:
		return expect > 0 && a.Last > expect
	case InFlight, Full, Unsure:
		return false
	}
	return true
}

// Reply is the answer to attempt N, which arrived at time At.
type Reply struct {
	N      int
	Answer Answer
	At     clock.Instant
}

// Verdict is what a reply, or a record that was read, means for a claim.
type Verdict struct {
	Outcome  Outcome
	N        int    // number of the attempt, if Granted
	Revision uint64 // of the record, if Granted; a lower bound on the key's, if Refused
	Delete   uint64 // revision at which to delete the claim's record; 0 if there is none to delete
}

// Outcome is the result of a step toward a lock.
type Outcome uint8

const (
	// Undecided means that the step decided nothing.
	Undecided Outcome = iota
	// Granted means that the attempt was acknowledged, or its record found, in time.
	Granted
	// Again means that the attempt was not sent, was refused for a transient reason, or got no answer.
	Again
	// Free means that the attempt was refused but no claim has the key, which is empty or has a tombstone.
	Free
	// Refused means that the attempt was refused because of a record that was not read.
	Refused
	// Busy means that the attempt was refused because another claim has the key or others are queued.
	Busy
	// Lost means that the claim is over without a grant. The caller can make a new claim.
	Lost
	// Backwards means that the bucket has assigned a revision that is not above all known ones.
	Backwards
	// NoRoom means that the bucket has no room for the record.
	NoRoom
	// Failed means that another attempt would not help.
	Failed
	// Ended means that the wait is over.
	Ended
	// Further is the first value that callers may use for outcomes of their own.
	Further
)

// Begin gives the claim its id.
func (c *Claim) Begin(id string) {
	c.ID, c.attempts, c.replies = id, c.firstAttempt[:0], c.firstReply[:0]
}

// Attempts returns the number of attempts made.
func (c *Claim) Attempts() int { return len(c.attempts) }

// Attempt returns attempt n.
func (c *Claim) Attempt(n int) Attempt { return c.attempts[n-1] }

// AttemptSent records an attempt that is being sent, and returns its number.
func (c *Claim) AttemptSent(a Attempt) int {
	a.N = len(c.attempts) + 1
	c.attempts = append(c.attempts, a)
	return a.N
}

// AttemptNotSent forgets the last attempt, which was not sent after all.
func (c *Claim) AttemptNotSent() { c.attempts = c.attempts[:len(c.attempts)-1] }

// AnswerArrived records an answer, however late. alone means that only one server can answer. If unwanted is true, the
// caller has to delete the record, because the claim is over and no holder or waiter would release it.
func (c *Claim) AnswerArrived(r Reply, alone bool) (unwanted bool) {
	a := &c.attempts[r.N-1]
	if r.Answer.Refusal != Unsure {
		a.answered, a.acked = true, r.Answer.Refusal == Acknowledged
		// A deposed leader may refuse what its successor applies.
		a.doubtful = !alone && !r.Answer.Final(a.Expect) //safety:refusal-doubted
	}
	if !c.over {
		c.replies = append(c.replies, r)
		return false
	}
	return r.Answer.Refusal == Acknowledged && r.N != c.granted //safety:over-answered
}

// Next returns the next reply to judge, if there is one.
func (c *Claim) Next() (r Reply, ok bool) {
	if len(c.replies) == 0 {
		return r, false
	}
	r = c.replies[0]
	c.replies = slices.Delete(c.replies, 0, 1)
	return r, true
}

// JudgeReply judges the claim by one reply. A refusal of any attempt but the newest decides nothing.
func (c *Claim) JudgeReply(r Reply, newest int, now clock.Instant) Verdict {
	switch {
	case r.Answer.Refusal == Acknowledged:
		// A reply that is judged too late counts as late even if it arrived in time, because otherwise the lease would
		// begin after its own end.
		return c.take(r.N, r.Answer.Revision, max(r.At, now))
	case r.N != newest:
		return Verdict{}
	case r.Answer.Refusal != Conflict:
		return Verdict{Outcome: Again}
	case r.Answer.Last == 0:
		return Verdict{Outcome: Free}
	}
	return Verdict{Outcome: Refused, Revision: r.Answer.Last}
}

// RecordRead judges the claim by the record that caused the refusal of the newest attempt, read from a state that
// contains the revision named in the refusal. It never adopts a record that belongs to another claim or that an
// operator has broken. If an earlier attempt whose answer was lost wrote the record, the validity counts from when that
// attempt was sent.
func (c *Claim) RecordRead(e record.Entry, now clock.Instant) Verdict {
	switch {
	case !e.Live():
		return Verdict{Outcome: Free}
	case !e.From(c.ID): //safety:stranger
		return Verdict{Outcome: Busy}
	case e.Status == record.StatusBroken: //safety:broken-not-adopted
		return Verdict{Outcome: Lost, Delete: e.Revision}
	case c.acknowledged(e.Attempt): //safety:acknowledged-first
		return Verdict{} // its acknowledgment decides, but has not been judged yet
	case !c.open(e.Attempt):
		return Verdict{Outcome: Busy} // not written by this client
	}
	return c.take(e.Attempt, e.Revision, now) //safety:own-sending
}

// take grants attempt n, which was stored at revision, if the client learned of the grant in time.
func (c *Claim) take(n int, revision uint64, at clock.Instant) Verdict {
	a := c.attempts[n-1]
	// The record may have ended in the meantime, and another client may hold the lock.
	if at >= a.Terms.End(a.Sent) || a.By != 0 && at >= a.By { //safety:late-answer
		return Verdict{Outcome: Lost, Delete: revision}
	}
	// A resource that checks tokens must see them increase.
	if revision <= a.Floor { //safety:tokens-forward
		return Verdict{Outcome: Backwards, N: n, Revision: revision, Delete: revision}
	}
	return Verdict{Outcome: Granted, N: n, Revision: revision}
}

// open reports whether attempt n was made and may have been applied without a final answer.
func (c *Claim) open(n int) bool {
	return n >= 1 && n <= len(c.attempts) && (!c.attempts[n-1].answered || c.attempts[n-1].doubtful) //safety:attempt-open
}

// acknowledged reports whether attempt n was acknowledged. Its reply has not been judged yet.
func (c *Claim) acknowledged(n int) bool {
	return n >= 1 && n <= len(c.attempts) && c.attempts[n-1].acked
}

// Unwritten reports whether none of the attempts can have left a record.
func (c *Claim) Unwritten() bool {
	return !slices.ContainsFunc(c.attempts, func(a Attempt) bool { return !a.answered || a.acked || a.doubtful }) //safety:room-refused
}

// Close ends the claim. n is the attempt that was granted, or 0 if none was. The caller deletes the records at the
// unwanted revisions. The open attempts have no answer yet and may still be applied. found means that attempt n was
// granted because its record was found, so its answer is no longer needed. If the claim is already over, Close returns
// zero values.
func (c *Claim) Close(n int) (unwanted []uint64, open []Attempt, found bool) {
	if c.over {
		return nil, nil, false
	}
	c.over, c.granted = true, n
	for _, r := range c.replies {
		if r.Answer.Refusal == Acknowledged && r.N != n {
			unwanted = append(unwanted, r.Answer.Revision)
		}
	}
	c.replies = nil
	for i := range c.attempts {
		switch a := &c.attempts[i]; {
		case a.answered:
		case a.N == n:
			a.answered, found = true, true // by the record
		default:
			open = append(open, *a)
		}
	}
	return unwanted, open, found
}

// Settle records that attempt n can no longer be applied, or that it was applied and its record deleted.
func (c *Claim) Settle(n int) {
	if n >= 1 && n <= len(c.attempts) {
		c.attempts[n-1].answered = true
	}
}

// Settled reports whether every attempt is answered or settled.
func (c *Claim) Settled() bool {
	return !slices.ContainsFunc(c.attempts, func(a Attempt) bool { return !a.answered })
}

// IsSettled reports whether attempt n is answered or settled.
func (c *Claim) IsSettled(n int) bool { return c.attempts[n-1].answered }

// Unwanted reports whether the claim is over and e was written by an attempt that was not granted.
func (c *Claim) Unwanted(e record.Entry) bool {
	return c.over && e.From(c.ID) && e.Renewal == 0 && e.Attempt != c.granted && //safety:over-notified
		(e.Status == record.StatusHeld || e.Status == record.StatusWaiting)
}

// Strays reports whether e, which was read from the bucket, is the record of an attempt that was not granted.
func (c *Claim) Strays(e record.Entry) bool {
	return e.From(c.ID) && e.Live() && e.Renewal == 0 && e.Attempt != c.granted
}
