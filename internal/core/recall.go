package core

import "github.com/natslock/locks/internal/record"

// A one-shot acquire that meets a lease which lingers does not know whether that is idle, and asks its client: see
// [Line.RecallRequested] for the other side.

// RequestsRecall says whether a one-shot acquire asks for the lease of a blocker. apart is how many places are queued of clients
// other than the holder's. own says that the record is of the same client, and holds that its lease goes on.
func RequestsRecall(blocker record.Entry, apart int, own, holds bool) bool {
	switch {
	// The client of an idle lease may have a place that it is about to delete. Where it has a goroutine that
	// waits, it answers, or gives the lease up.
	case apart > 0: //safety:recall-request-unqueued
		return false
	case !blocker.Lingers || blocker.Unreadable || blocker.Status != record.StatusHeld:
		return false
	case own && holds: //safety:recall-request-own
		return false
	}
	return true
}

// RecallStep says what a one-shot acquire does after its recall request.
type RecallStep uint8

const (
	// RecallWait: wait for a notification, or for the end of that time.
	RecallWait RecallStep = iota
	// RecallGranted: the blocker has given way.
	RecallGranted
	// RecallRefused: its lease is in use, or its client is silent, which is a no too.
	RecallRefused
)

// RecallFound takes the record under the blocker's key. asked is the revision of the recall request. late says that the time
// to wait for an answer is over.
func RecallFound(e record.Entry, blocker string, asked uint64, late bool) RecallStep {
	switch {
	case !e.Live() || e.ID != blocker:
		return RecallGranted
	case e.InUse >= asked: //safety:recall-request-answered
		return RecallRefused
	case late:
		return RecallRefused
	}
	return RecallWait
}
