// Package core makes the decisions of packages session, claim, call and admin on plain data, such as what an answer
// means for a claim, whom a waiter waits for, and when no reader is left. It has no goroutines, mutexes, channels,
// timers, clocks or I/O. Each method handles one event at a given time, updates the state, and returns what to do next.
//
// How the goroutines of a client share a lock is decided in package cohort.
//
// # Claims
//
// A client obtains a record through a claim, which is a series of conditional writes whose answers may be lost or late.
// claim.go judges each answer and returns the records to delete. bid.go repeats the writes. orphan.go removes what a
// finished claim may have left behind. denial.go judges whether a one-shot call may report that the lock is held.
//
// # Kept records
//
// kept.go has the states of a lease or a place, its renewals, and the ways it can end. validity.go limits how long the
// client relies on it. finding.go judges the record found under its key. use.go admits holders to a lease, each with
// its token and its TTL. pace.go chooses the next renewal to send. removal.go ends the record.
//
// # Waiters
//
// survey.go chooses what a newcomer claims. queue.go determines whom a waiter waits for. For a waiter behind another
// one, successor.go decides when to read, when to doubt that the head is alive, and when to take the lock out of turn.
// first.go decides which keys the first waiter reads and claims, and when.
//
// # Drains
//
// For a writer behind its gate, drain.go decides what proves that no reader is left, and what the writer does until
// then.
//
// # Operators
//
// break.go finds the record to break, or proof that there is none, and computes how long a broken record keeps others
// out.
//
// # Scripts
//
// A script has only the handle of a lock that no process renews. handle.go judges whether the record is still the one
// that the handle names, so that the script may extend or adopt it. extending.go extends the lock, and removal.go
// releases it.
package core
