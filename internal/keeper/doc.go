// Package keeper keeps a client's records alive, and removes them from the bucket.
//
// # Why at most one holder is inside its validity
//
// A client sends a write at time s, and the server applies it at time p. s comes before p, and the server removes the
// record no earlier than p + T by its clock. The holder trusts the record until s + T - margin by its own clock. While
// the record is there, the server accepts no other client's claim. A claim expects no record, or exactly the revision
// of a tombstone or of a lock that was handed over. Other clients may delete an overdue record, one for which p + T and
// a slack have passed on a server's clock (package bucket, read.go). So as long as clocks drift apart by less than the
// margin (those of two servers by less than margin and slack), there are never two holders at once. An answer that
// arrives after the validity that it would prolong has no effect: by then the server may have accepted another write.
//
// # Who does what
//
// The renewer is a goroutine that keeps the times of all records. It notes which renewals are due, ends the records
// that are over, and does no I/O. A second goroutine encodes the renewals in the order of the pace: by the ends of the
// records, and no more than the answers allow. The store's goroutine sends them: it alone waits for a stuck network.
// Answers and notifications arrive on other goroutines of the store, which only record them. Clean-up after a claim or
// a record runs in the group, at most for the TTL of the record or [orphanLife], and a Close waits for it.
//
// keeper.go has the mutex and the renewer. record.go carries out the events of one record, renewal.go sends its
// renewals. write.go sends the last write of a record, removal.go repeats that until the server has confirmed the end,
// and orphan.go waits for answers that no caller wants any more. These three know nothing of the renewer but its pace.
//
// The core decides what an event means: [core.Kept] has the states of a record, [core.Pace] chooses the next write to
// send, and [core.Removal] ends a record.
package keeper
