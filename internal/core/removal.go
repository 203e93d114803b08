package core

import (
	"time"

	"github.com/natslock/locks/internal/record"
)

// Removal ends a claim's record with a conditional write, which is either a tombstone at the record's revision or the
// last renewal of a record that the client has kept. An attempt or a renewal may still be under way, and any answer may
// be lost, so each refused write is followed by a read:
//
//	write --> acknowledged: over
//	      --> refused --> read --> the claim's, and newer: write at that revision
//	                          --> the claim's, and ended: over, because an earlier write was applied
//	                          --> another claim's: over, and lost unless an earlier write may have been applied
//	      --> no answer: the write may have been applied; write again
type Removal struct {
	ID       string // the claim's id
	Final    uint64 // number of the last renewal; 0 if there is none
	HandsOff bool   // the last renewal is for an adopter, so write nothing else if it fails
	Exact    bool   // remove only the record at Revision
	Revision uint64 // what the next write expects

	Broken     *record.Entry // the record, if an operator is known to have broken it; nil otherwise
	unanswered bool          // an unanswered write may have been applied
	attempt    int           // the attempt whose record was found and is being removed; 0 if there is none
	final      bool          // a write that expects Revision or an earlier one can no longer be applied
}

// RemovalStep is the next step of a removal.
type RemovalStep uint8

const (
	// Removed means that the record has ended, broken or not.
	Removed RemovalStep = iota
	// LostBefore means that the record had already ended, because of its TTL or an operator's break, and that another
	// client may have the lock.
	LostBefore
	// WriteAgain writes at Revision.
	WriteAgain
	// ReadRecord reads the record from a state that contains Revision and the revision that the refusal named.
	ReadRecord
	// WriteSoon writes again once the write that is being replicated has been stored.
	WriteSoon
	// WriteLater writes again after the pause for an outage.
	WriteLater
)

// WriteAnswered handles the answer to a write. alone means that only one server can answer.
func (r *Removal) WriteAnswered(a Answer, alone bool) RemovalStep {
	switch {
	case a.Refusal == Acknowledged:
		r.final = true
		return Removed
	case a.Refusal == Conflict && r.Exact:
		return Removed // the record is gone, or is not the one to be removed
	case a.Refusal == Conflict:
		return ReadRecord
	// A deposed leader may refuse in this way while its successor applies the write.
	case a.Refusal != InFlight || !alone:
		r.unanswered = true
	}
	if a.Refusal == InFlight {
		return WriteSoon
	}
	return WriteLater
}

// found is what a read has revealed about the record.
type found uint8

const (
	unseen  found = iota // no answer, or the answer of a lagging server
	foreign              // nothing, or another claim's record
	over                 // the claim's tombstone or last renewal, whose answer was lost
	refused              // the claim's record that the write expected, so a deposed leader that does not know it refused the write
	newer                // the claim's attempt or renewal that was still under way
)

// removalSteps maps what was found to the next step. Another claim's record is left in place.
var removalSteps = [...]RemovalStep{unseen: WriteLater, foreign: LostBefore, over: Removed, refused: WriteSoon, newer: WriteAgain}

// RecordRead handles the record that was read after a refusal. named is the revision that the refusal named, and since
// is the time since the first write. unread means that the read got no answer.
func (r *Removal) RecordRead(e record.Entry, unread bool, named uint64, alone bool, since time.Duration) RemovalStep {
	found := r.find(e, unread, alone)
	r.judge(e, found, named, alone, since)
	own := found > foreign
	if own && e.Status == record.StatusBroken {
		r.Broken = &e
	}
	switch {
	// If an earlier write was applied and its record is gone, nothing is left to adopt. A broken record stays as it is.
	case r.HandsOff && found != unseen && (!own || e.Deleted || e.Status == record.StatusBroken): //safety:handed-gone
		return LostBefore
	case found == foreign && (r.unanswered || r.Broken != nil): //safety:release-unanswered
		return Removed // by an earlier write, after which another client claimed the key
	case found == newer:
		r.Revision, r.attempt = e.Revision, e.Attempt
	}
	return removalSteps[found]
}

func (r *Removal) find(e record.Entry, unread, alone bool) found {
	switch {
	// A server that returns a record older than the acknowledged one is lagging.
	case unread || !e.Zero() && e.Revision < r.Revision && !alone:
		return unseen
	case !e.From(r.ID): //safety:release-own
		return foreign
	case e.Deleted || r.Final > 0 && e.Renewal >= r.Final && e.Status == record.StatusHeld: //safety:last-found
		return over
	case e.Revision == r.Revision:
		return refused
	}
	return newer
}

// judge records what the refusal and the finding together say about the earlier writes.
func (r *Removal) judge(e record.Entry, found found, named uint64, alone bool, since time.Duration) {
	// A refusal by a server that does not know what was acknowledged may come from a deposed leader, whose successor
	// may have applied the refused write or may still do so. If that write had emptied the key, a tombstone would show
	// that for a second.
	own, none := e.From(r.ID), found == foreign && e.Zero() && since < record.TombstoneLife
	if named < r.Revision && (own || !none && !alone) { //safety:release-deposed
		r.unanswered = true
	}
	r.final = r.final || r.Revision > 0 && named > r.Revision && found != unseen && (!own || !e.Live())
}
