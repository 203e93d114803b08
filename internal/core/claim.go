package core

import (
	"slices"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
)

// Claim is one acquisition under one id: the attempts made under it, of which at most one becomes
// a lease, or a place.
//
// An attempt is a conditional write. Its answer may be lost, late, or overtaken by that of another
// one, so each attempt is judged alone, by its own expectation and its own sending:
//
//	           acknowledged in time, or its record is found in time
//	open ---------------------------------------------------------> granted
//	  |
//	  |   acknowledged after the end of its own validity, or at a revision below
//	  +-- one that is known: its record is deleted ----------------> lost
//	  |
//	  +-- refused: it is never applied ----------------------------> answered
//
// Where there are replicas, a refusal is doubtful: a leader that was deposed refuses a write
// that its successor applies. Such an attempt is granted all the same when its record is found.
//
// When the claim is over (granted, given up, lost by a late answer, or found broken), an acknowledgement of another of its
// attempts only causes the deletion of exactly that record, never a grant. So an answer that comes
// when the lock has been given up cannot bring it back.
type Claim struct {
	ID   string
	over bool

	attempts []Attempt // number n is attempts[n-1]
	replies  []Reply   // that are still to be judged
	granted  int       // the attempt that became the lease

	// Most claims need no more than one of each.
	firstAttempt [1]Attempt
	firstReply   [1]Reply
}

// Attempt is one write of a claim.
type Attempt struct {
	N      int
	Expect uint64
	Terms  clock.Terms
	Sent   clock.Instant
	Floor  uint64            // the highest revision known when it was sent
	Since  int64             // the sending as the record has it, in unix milliseconds
	Waited int64             // and of the wait before it
	Meta   map[string]string // of the record
	By     clock.Instant     // an adoption has to be known before, when the record that it replaces ends; 0: at any time

	answered bool
	acked    bool // the reply decides, as soon as it is judged
	doubtful bool // refused, maybe by a leader that was deposed: another may have applied it
}

// Answer is what the server has said to a write.
type Answer struct {
	Refusal  Refusal
	Revision uint64 // Acknowledged: of the record
	Last     uint64 // Conflict: the revision that the key has; 0: none
}

// Refusal says how an answer is no acknowledgement.
type Refusal uint8

const (
	// Acknowledged: it is one.
	Acknowledged Refusal = iota
	// Conflict: the key has another revision than the one that was expected.
	Conflict
	// InFlight: another write of the key is being replicated.
	InFlight
	// Full: there is no room for the record.
	Full
	// Never: the write was not sent, or no server takes it.
	Never
	// Unsure: the write may still be applied.
	Unsure
)

// Final reports whether the answer settles an attempt, whichever server gave it. Several
// servers may believe that they lead. All of them refuse an attempt that expects a revision
// which has been replaced.
func (a Answer) Final(expect uint64) bool {
	switch a.Refusal {
	case Conflict:
		return expect > 0 && a.Last > expect
	case InFlight, Full, Unsure:
		return false
	}
	return true
}

// Reply is an answer to attempt N, and when it came.
type Reply struct {
	N      int
	Answer Answer
	At     clock.Instant
}

// Verdict is what a reply, or a record that was read, means for a claim.
type Verdict struct {
	Outcome  Outcome
	N        int    // Granted: the attempt
	Revision uint64 // Granted: of its record. Refused: what the key has at least
	Delete   uint64 // the record of the claim at this revision is to be deleted; 0: none
}

// Outcome says what came of a step towards a lock.
type Outcome uint8

const (
	// Undecided: it decides nothing.
	Undecided Outcome = iota
	// Granted: acknowledged, or found, in time.
	Granted
	// Again: not sent, refused for a passing reason, or without an answer.
	Again
	// Free: refused, but nobody holds the key: a tombstone, or nothing.
	Free
	// Refused: by a record that was not read.
	Refused
	// Busy: refused, and another claim has the key; or others are queued.
	Busy
	// Lost: the claim is over without a grant; a new one may be made.
	Lost
	// Backwards: the bucket has given a lower revision than one that is known.
	Backwards
	// NoRoom: the bucket has no room for the record.
	NoRoom
	// Failed: another try will not help.
	Failed
	// Ended: the wait is over.
	Ended
	// Further is the first outcome that a caller may add.
	Further
)

// Begin gives a claim its id.
func (c *Claim) Begin(id string) {
	c.ID, c.attempts, c.replies = id, c.firstAttempt[:0], c.firstReply[:0]
}

// Attempts is how many attempts were made.
func (c *Claim) Attempts() int { return len(c.attempts) }

// Attempt returns attempt n.
func (c *Claim) Attempt(n int) Attempt { return c.attempts[n-1] }

// AttemptSent notes an attempt that is sent now, and returns its number.
func (c *Claim) AttemptSent(a Attempt) int {
	a.N = len(c.attempts) + 1
	c.attempts = append(c.attempts, a)
	return a.N
}

// AttemptNotSent forgets the last attempt, which was not sent.
func (c *Claim) AttemptNotSent() { c.attempts = c.attempts[:len(c.attempts)-1] }

// AnswerArrived takes an answer, however late. alone says that one server only may answer. unwanted
// says that its record is to be deleted: nobody else would release the record of a claim that is
// over.
func (c *Claim) AnswerArrived(r Reply, alone bool) (unwanted bool) {
	a := &c.attempts[r.N-1]
	if r.Answer.Refusal != Unsure {
		a.answered, a.acked = true, r.Answer.Refusal == Acknowledged
		// A leader that was deposed refuses what its successor may apply.
		a.doubtful = !alone && !r.Answer.Final(a.Expect) //safety:refusal-doubted
	}
	if !c.over {
		c.replies = append(c.replies, r)
		return false
	}
	return r.Answer.Refusal == Acknowledged && r.N != c.granted //safety:over-answered
}

// Next returns the next reply to be judged, if there is one.
func (c *Claim) Next() (r Reply, ok bool) {
	if len(c.replies) == 0 {
		return r, false
	}
	r = c.replies[0]
	c.replies = slices.Delete(c.replies, 0, 1)
	return r, true
}

// JudgeReply decides by one reply. The refusal of an attempt that is not the newest is no news.
func (c *Claim) JudgeReply(r Reply, newest int, now clock.Instant) Verdict {
	switch {
	case r.Answer.Refusal == Acknowledged:
		// Judged late is late, too: the lease would begin when it is over already.
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

// RecordRead decides by the record that has refused the newest attempt, from a state that contains the
// refusal. The record of another claim is never adopted, nor one that an operator has broken. That
// of an earlier attempt whose answer was lost counts from its own sending.
func (c *Claim) RecordRead(e record.Entry, now clock.Instant) Verdict {
	switch {
	case !e.Live():
		return Verdict{Outcome: Free}
	case !e.From(c.ID): //safety:stranger
		return Verdict{Outcome: Busy}
	case e.Status == record.StatusBroken: //safety:broken-not-adopted
		return Verdict{Outcome: Lost, Delete: e.Revision}
	case c.acknowledged(e.Attempt): //safety:acknowledged-first
		return Verdict{} // its acknowledgement, which is still to be judged, decides
	case !c.open(e.Attempt):
		return Verdict{Outcome: Busy} // not written by this client
	}
	return c.take(e.Attempt, e.Revision, now) //safety:own-sending
}

// take grants attempt n, stored at revision, when it became known in time.
func (c *Claim) take(n int, revision uint64, at clock.Instant) Verdict {
	a := c.attempts[n-1]
	// The record may have ended since, and another client may hold the lock.
	if at >= a.Terms.End(a.Sent) || a.By != 0 && at >= a.By { //safety:late-answer
		return Verdict{Outcome: Lost, Delete: revision}
	}
	// A resource that checks tokens has to see them rise.
	if revision <= a.Floor { //safety:tokens-forward
		return Verdict{Outcome: Backwards, N: n, Revision: revision, Delete: revision}
	}
	return Verdict{Outcome: Granted, N: n, Revision: revision}
}

// open reports whether attempt n was made and may have been applied without an answer.
func (c *Claim) open(n int) bool {
	return n >= 1 && n <= len(c.attempts) && (!c.attempts[n-1].answered || c.attempts[n-1].doubtful) //safety:attempt-open
}

// acknowledged reports whether the server has acknowledged attempt n. Its reply is among those
// that are still to be judged.
func (c *Claim) acknowledged(n int) bool {
	return n >= 1 && n <= len(c.attempts) && c.attempts[n-1].acked
}

// Unwritten reports whether no attempt can have left a record.
func (c *Claim) Unwritten() bool {
	return !slices.ContainsFunc(c.attempts, func(a Attempt) bool { return !a.answered || a.acked || a.doubtful }) //safety:room-refused
}

// Close ends the claim: attempt n was granted, or none if it is 0. The records at unwanted are to be
// deleted. The attempts that are open have no answer, and may still be applied; where n is one of
// them, its record was found, and no answer to it is needed any more. A claim that is over already
// has neither.
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

// Settle notes that attempt n cannot be applied any more, or has been and its record is
// deleted.
func (c *Claim) Settle(n int) {
	if n >= 1 && n <= len(c.attempts) {
		c.attempts[n-1].answered = true
	}
}

// Settled reports whether each attempt has an answer.
func (c *Claim) Settled() bool {
	return !slices.ContainsFunc(c.attempts, func(a Attempt) bool { return !a.answered })
}

// IsSettled reports whether attempt n has an answer.
func (c *Claim) IsSettled(n int) bool { return c.attempts[n-1].answered }

// Unwanted reports whether a record was stored by this claim after it was over.
func (c *Claim) Unwanted(e record.Entry) bool {
	return c.over && e.From(c.ID) && e.Renewal == 0 && e.Attempt != c.granted && //safety:over-notified
		(e.Status == record.StatusHeld || e.Status == record.StatusWaiting)
}

// Strays reports whether a record, as read, is that of an attempt that was not granted.
func (c *Claim) Strays(e record.Entry) bool {
	return e.From(c.ID) && e.Live() && e.Renewal == 0 && e.Attempt != c.granted
}
