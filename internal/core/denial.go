package core

import "github.com/natslock/locks/internal/record"

// Denial judges what a one-shot call has found: a denial has to have been true at a moment during the call. A
// server that lags may show a holder, a reader or a waiter that has left. A grant needs no such judgement,
// since the server checks the write.
//
//	found --> by a server that cannot lag, or of a revision that the leader has named: the denial is true
//	      --> the holder's time may be over: ask the server's clock --> found
//	      --> else: ask the leader, read again as of its word --> found, by the leader
type Denial struct {
	Leader bool   // what was found is of a server that cannot lag, or as of the leader's word
	Named  uint64 // the revision of the key that the leader has named during the call; 0: nothing
}

// Doubt says what to do with a finding.
type Doubt uint8

const (
	// NoDoubt: the denial is true.
	NoDoubt Doubt = iota
	// AskClock: whether the server's clock shows the holder to be overdue.
	AskClock
	// AskLeader: read again, as of the leader's word.
	AskLeader
)

// LockRead takes that a read has found the lock free, or busy: by a live record of a holder, or behind queued
// waiters.
func (d *Denial) LockRead(busy bool, holder record.Entry, queued bool) Doubt {
	switch {
	case busy && d.Leader && (holder.Live() || queued): //safety:denied-by-leader
		return NoDoubt
	case busy && holder.Live() && d.Named > 0 && holder.Revision >= d.Named:
		return AskClock
	}
	return AskLeader
}

// ClockRead takes what the server's clock says of a holder.
func (d *Denial) ClockRead(overdue bool) Doubt {
	if overdue {
		return AskLeader
	}
	return NoDoubt
}
