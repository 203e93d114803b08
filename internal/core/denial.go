package core

import "github.com/natslock/locks/internal/record"

// Denial verifies a one-shot call's finding that the lock is taken. A denial must have been true at some moment during
// the call, but a lagging server may show a holder, reader or waiter that has already left. A grant needs no such
// verification, because the server checks the write.
//
//	found --> by a server that cannot lag, or at a revision that the leader has named: the denial is true
//	      --> but the holder's time may be up: ask the server's clock --> found
//	      --> otherwise: ask the leader, and read again as of its answer --> found, by the leader
type Denial struct {
	Leader bool   // the finding is from a server that cannot lag, or as of the leader's answer
	Named  uint64 // revision of the key that the leader named during the call; 0 if it named none
}

// Doubt says how to verify a finding.
type Doubt uint8

const (
	// NoDoubt means that the denial is true.
	NoDoubt Doubt = iota
	// AskClock asks whether the holder is overdue by the server's clock.
	AskClock
	// AskLeader asks the leader and reads again, as of the leader's answer.
	AskLeader
)

// LockRead handles a read that found the lock free or busy. A lock is busy if a holder has a live record or waiters are
// queued.
func (d *Denial) LockRead(busy bool, holder record.Entry, queued bool) Doubt {
	switch {
	case busy && d.Leader && (holder.Live() || queued): //safety:denied-by-leader
		return NoDoubt
	case busy && holder.Live() && d.Named > 0 && holder.Revision >= d.Named:
		return AskClock
	}
	return AskLeader
}

// ClockRead handles the answer to [AskClock]. overdue means that the holder is overdue by the server's clock.
func (d *Denial) ClockRead(overdue bool) Doubt {
	if overdue {
		return AskLeader
	}
	return NoDoubt
}
