// Package lease is the machinery that the locks share: it claims keys, keeps
// their leases, queues for them and releases them. It knows the store's
// contract and nothing of NATS.
//
// # From an attempt to a lease
//
//	         send                 acknowledged, or found, in time
//	claim ----------> attempt -----------------------------------> Held
//	  ^                  |                                          |
//	  |   refused, or    |                    validity over,        |
//	  |   no answer      |                    refused, broken       |  Release
//	  +------------------+                         +----------------+
//	                                               v                v
//	                                             Lost ----------> Released
//
// A claim is one acquisition under one id. It makes attempts, each a conditional
// write with its own number, expectation and sending time, until one is granted
// or the claim is given up. Any answer may be lost or late, so every attempt is
// judged by itself: acknowledged before its own validity would have ended, it
// is a grant; found in the bucket under its own number, it is one as of its own
// sending; acknowledged when the claim is over, it leads to the deletion of
// exactly what it wrote.
//
// # Why at most one holder is inside its validity
//
// Let a write be sent at s and applied by the server at p. s comes before p, and
// the server removes the record no earlier than p + T by its clock. The holder
// trusts it until s + T - margin by its own. While the record is there nobody
// else's write is accepted, because each expects no record, a tombstone at a known
// revision, or exactly the revision of a record that is overdue: whose p + T and a
// slack have passed on a server's clock (overdue.go). Clocks that run apart by less
// than the margin, those of two servers by less than margin and slack, therefore
// never show two holders at once. An answer that comes after the validity it would
// prolong counts for nothing: by then another write may have been accepted.
//
// # Who does what
//
// One goroutine, the keeper's, has the times of all leases and never does I/O.
// What it decides to send goes to the sender, a goroutine that may be blocked by
// the network without harm; releases go to one like it, the leaver. Answers and
// notifications come on the store's goroutines, which only note them. Whoever
// acquires does so on its own goroutine. Clean-up after a claim or a lease runs in
// the background, bounded by the TTL, and Close waits for it.
package lease
