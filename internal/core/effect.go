package core

import (
	"time"

	"github.com/natslock/locks/internal/clock"
)

// Client is what the locks of one client have in common. The caller guards it, and all of its
// lines, by one mutex.
type Client struct {
	ID   string        // as records name it
	Turn time.Duration // for how long after its grant a run serves goroutines that pass others
	Most int           // the number of idle leases that it keeps
	// Effects are what the events since require, in order. The caller performs them
	// before it lets go of its mutex, and empties them.
	Effects []Effect

	closed bool
	idle   struct { // the runs whose leases are idle
		oldest, newest *Run // the least and the most recently used one
		n              int
	}
	rings clock.Instant // when the alarm is due; 0: it is not set
}

// Effect is something that the caller has to do.
type Effect struct {
	Do     Action
	Line   *Line
	Run    *Run
	Member *Member
	At     clock.Instant
	N      uint64
	How    any // of a Hint: what the caller has given
}

// Action says what an [Effect] is.
type Action uint8

const (
	// Open: give Run what the caller keeps of a run. It comes before all others of the run.
	Open Action = iota + 1
	// Wake: the part of Member in its run has changed.
	Wake
	// Announce: publish that Member waits.
	Announce
	// Size: note N as the number of members in the record of Run.
	Size
	// Settle: Run has a record, or is over. The runs behind it may queue.
	Settle
	// OnEnd: call [Run.LeaseEnded] when the lease of Run has ended.
	OnEnd
	// EndTurn: call [Run.TurnOver] At.
	EndTurn
	// KeepTurn: cancel the timer of EndTurn.
	KeepTurn
	// Idle: nobody uses the lease of Run.
	Idle
	// Release: release the lease of Run, which nobody uses.
	Release
	// List: list the queue of Line; call [Line.Listed], and [Line.Refreshed] in any case.
	List
	// Relist: subscribe to the queue of Run's line and list it; call [Line.Listed], and
	// [Run.Relisted] in any case.
	Relist
	// Alarm: call [Client.Sweep] At, and not before.
	Alarm
	// Hint: notify Member, which holds the lock, that a goroutine or another client waits.
	Hint
	// Close: Line has had no run. If it has none now, end its subscriptions and forget it. An event
	// may empty a line and fill it again: then it keeps what it knows of other clients.
	Close
)

func (c *Client) do(e Effect) { c.Effects = append(c.Effects, e) }

// Decision says what a waiter, the first or another one, does next.
type Decision uint8

const (
	// Stay: the lock is held, or left to the head for now.
	Stay Decision = iota
	// ListAgain: the predecessor's place has gone, or the waiter's own.
	ListAgain
	// Take: claim key K at the revision.
	Take
	// Reclaim: claim key K at 0. It has a record of an earlier attempt of the own claim. That comes before
	// the claims of other keys, which would end the own one.
	Reclaim
	// Verify: read key K as of the revision.
	Verify
	// Prove: have the leader refuse a write, and name a revision that it has reached since.
	Prove
	// ReadAll: read all keys, in one state that contains the revision.
	ReadAll
)
