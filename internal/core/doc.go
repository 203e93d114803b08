// Package core has the decisions of packages session, claim, call and admin as plain data: what an answer means for a
// claim, whom a waiter waits for, when no reader is left. It has no goroutine, mutex, channel, timer, clock
// or I/O. Each method is an event, which comes with its instant, changes the state, and returns what is to be done
// next.
//
// How the goroutines of a client share a lock is not decided here, but in package cohort.
//
// # Claims
//
// A client gets a record by a claim: conditional writes whose answers may be lost or late. claim.go judges each
// of them, and returns which records are to be deleted. bid.go repeats them. orphan.go takes away what a claim that is
// over may have left. denial.go judges whether a one-shot call may say that the lock is held.
//
// # Kept records
//
// kept.go has the states of a lease or a place, its renewals, and what ends it. validity.go bounds the time in which
// the client believes in it. finding.go judges what a read finds under its key. use.go lets holders into a lease,
// each with its token and its TTL. pace.go chooses the next renewal to send. removal.go ends the record.
//
// # Waiters
//
// survey.go chooses what a newcomer claims. queue.go finds whom a waiter waits for. successor.go is a
// waiter behind another one: when it reads, when it doubts that the head lives, and when it takes the lock out
// of turn. first.go is the first waiter: which keys it reads and claims, and when.
//
// # Drains
//
// drain.go is a writer behind its gate: what proves that no reader is left, and what the writer does until then.
//
// # Operators
//
// break.go finds the record that a break meets, or the proof that there is none, and says how long a broken record
// keeps others out.
//
// # Scripts
//
// A script has nothing but the handle of a lock that no process renews. handle.go judges whether the record is still the
// one that the handle names, so that it may be extended or adopted. extending.go is the extension. The release is that
// of removal.go.
package core
