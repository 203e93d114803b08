package acquire

import "github.com/natslock/locks/internal/record"

// outcome says what came of a step towards a lock.
type outcome uint8

const (
	// granted: acknowledged, or found, in time. Of a drain: no reader is left.
	granted outcome = iota + 1
	// free: refused, but nobody holds the key: a tombstone, or nothing.
	free
	// unread: refused, by a record that was not read; the entry has its revision.
	unread
	// busy: refused, and somebody holds the key; or others are queued.
	busy
	// retry: not sent, refused for a passing reason, or without an answer.
	retry
	// lost: the claim is over without a grant; a new one may be made.
	lost
	// relist: the predecessor has gone; the queue is to be read again.
	relist
	// compete: the place is the first of the queue.
	compete
	// requeue: the place in the queue has gone.
	requeue
	// failed: another try will not help.
	failed
	// ended: the wait is over.
	ended
)

// result is an outcome with what belongs to it.
type result struct {
	outcome  outcome
	n        int          // granted: the attempt
	revision uint64       // granted: the record's
	entry    record.Entry // free and busy: the record; unread: its revision
	err      error        // retry and failed: why; ended: the cause
}
