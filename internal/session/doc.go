// Package session is what a client holds: leases, places in queues, and the clean-up
// after both.
//
// # Why at most one holder is inside its validity
//
// Let a write be sent at s and applied by the server at p. s comes before p, and
// the server removes the record no earlier than p + T by its clock. The holder
// trusts it until s + T - margin by its own. While the record is there the server
// accepts no other client's claim. A claim expects no record, or exactly the revision of a
// tombstone, or of a lock that was handed over. Others may delete a record that is overdue: once
// p + T and a slack have passed on a server's clock (package bucket, read.go). Clocks that run
// apart by less than the margin, those of two servers by less than margin and slack,
// therefore never show two holders at once. An answer that comes after the validity it
// would prolong counts for nothing: by then the server may have accepted another write.
//
// # Who does what
//
// One goroutine, the renewer's, has the times of all records. It notes which renewals are
// due, and does no I/O. The session's sender encodes them in the order of the pace:
// by the ends of the records, and not more than the answers allow. The store's sender
// sends them: it alone waits for a network that is stuck. Answers and notifications come
// on the store's goroutines, which only note them. Clean-up after a claim or a lease runs
// in the background, bounded by the TTL, and Close waits for it.
//
// What a record's events mean is decided by the core: [core.Kept] has the states, [core.Use] who
// is inside, [core.Pace] what is sent next, [core.Removal] how a record ends. This package performs that.
//
// One mutex guards all records of a client. That of the cohorts (package cohort) comes before it.
// Neither is held across I/O or a call of user code.
package session
