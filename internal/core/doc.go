// Package core makes the decisions for packages session, claim, call and admin, such as what an answer means for a
// claim, whom a waiter waits for, and when no reader is left. It works on plain data and has no goroutines, mutexes,
// channels, timers, clocks or I/O. Each method handles one event at a given time, updates the state, and returns what
// to do next.
//
// Package cohort decides how a client's goroutines share a lock.
//
// # Claims
//
// A client obtains a record through a claim, which is a series of conditional writes whose answers may be lost or late.
// claim.go judges each answer and returns the records to delete. bid.go repeats the writes. orphan.go removes what a
// finished claim may have left behind. denial.go decides whether a one-shot call may report that the lock is held.
//
// # Kept records
//
// kept.go covers the states of a lease or place, its renewals, and the ways it can end. validity.go limits how long the
// client relies on the record. finding.go classifies the record found under the key. use.go admits holders to a lease,
// each with its own token and TTL. pace.go chooses the next renewal to send. removal.go ends the record.
//
// # Waiters
//
// survey.go chooses what a newcomer claims. queue.go determines whom a waiter waits for. For a waiter behind another,
// successor.go decides when to read, when to doubt that the head is alive, and when to take the lock out of turn.
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
// A script has only the handle of a lock that no process renews. handle.go checks whether the record is still the one
// that the handle identifies and can therefore be extended or adopted. extending.go extends the lock, and removal.go
// releases it.
package core
