// Package core is what session, claim, call, acquire and admin decide, as plain data: how the goroutines of a client
// share a lock, what an answer means for a claim, whom a waiter waits for, when no reader is left. It has no
// goroutine, mutex, channel, timer, clock or I/O. Each method is an event, which comes with its
// instant and changes the state. Runs append effects to their [Client], which package acquire performs.
// The others return what is to be done next: a [Claim], a [Bid] and a [Taking] to package claim, a [Kept], a [Use], a [Pace] and a [Removal] to package session, an
// [Arrival], a [Waiter], a [Successor], a [First] and a [Drain] to package call.
//
// # Runs
//
// The goroutines of a client that want one lock wait together at their client. A run is one or more
// of them that called Lock one after the other, with no other client's place between them as far as the
// client knows. A run has one record at the server: a place while it waits, and then the lease.
// Its members are served in order, by the client, without a message.
//
//	      Ask              PlaceAt             Granted           last Leave, or Ended
//	none -----> claims ------------> waits ------------> leased ----------------------> over
//	              |                    |                  |  ^
//	              +---- Granted -------|----------------->+  | Ask
//	                                   | PlaceLost        v  |
//	                                   +-> claims        spare ---> over (Recall)
//
// Ticket and Lease of a run say which of these it is in; a lease is spare while nobody uses it.
//
// One member drives a run that has no lease yet: it waits for answers and notifications on its own
// goroutine. When it gives up, the first of the others drives on. The lease goes from member to
// member. It ends when no member is left, or when the rest of them has to let another client in
// first: see the turn, in run.go. Members of a run that reads are inside together: all have the
// token of its join, and the last one that leaves releases the lease. A goroutine that reads joins
// them while the client knows that no writer has come since the join: from subscriptions to the
// queue and to the gate, and from a list of both of the last second. A single reader pays for none
// of that. The second one subscribes and lists.
//
// # Claims
//
// A run gets its record by a claim: conditional writes whose answers may be lost or late. claim.go
// judges each of them, and says which records are to be deleted. How they are repeated: bid.go. What is taken away after a claim: orphan.go.
//
// # Records that are kept alive
//
// The states of a lease or a place, its renewals, and what ends it: kept.go. Until when it counts: validity.go. What
// is found under its key: finding.go. Who is inside a lease, with which token and which TTL: use.go. Which renewal
// is sent next, and which has to wait: pace.go. How its record is ended: removal.go.
//
// # Operators
//
// Which record a break meets, what proves that there is none, and how long a broken record keeps others out: break.go. What a client
// may adopt: adopt.go.
//
// # Waiters
//
// What a newcomer claims: survey.go. Whom a waiter waits for: queue.go. A waiter behind a predecessor: when it reads, when it doubts that
// the head lives, and when it takes the lock out of turn: successor.go. The first waiter: which keys it reads
// and claims, and when: first.go.
//
// # Locks of scripts
//
// How a process that has nothing but a handle extends a lock which nobody renews: extending.go. Its release is
// that of removal.go.
//
// # Writers behind their gate
//
// What proves to a writer that no reader is left, and what it does until then: drain.go.
//
// # Other clients
//
// Whether a goroutine may join a run depends on what the client knows of the places of others:
// others.go. It knows nothing unless it has subscribed to the queue, and what it knows counts for a
// second after a list, because a notification may be lost. Safety does not depend on any of that: a
// lock is granted by a conditional write. Order among clients does.
//
// # Idle leases
//
// A run lingers when its last member has left and wants that: linger.go.
package core
