// Package keeper keeps a client's records alive and removes them from the bucket.
//
// # Why at most one holder is inside its validity
//
// A client sends a write at time s, and the server applies it at a later time p. The server removes the record no
// earlier than p + T by the server's clock, but the holder trusts the record only until s + T - margin by the holder's
// clock. While the record is there, the server accepts no other client's claim, because a claim expects either no
// record or exactly the revision of a tombstone or of a lock that was handed over. Other clients may delete a record
// once it is overdue, which means that p + T and a slack have passed on a server's clock (package bucket, read.go). So
// there are never two holders at once, provided that clocks drift apart by less than the margin (two servers' clocks,
// by less than the margin plus the slack). An answer that arrives after the end of the validity that it would extend
// has no effect, because by then the server may have accepted another write.
//
// # Who does what
//
// The renewer is a goroutine that tracks when each record needs attention. It notes which renewals are due and ends the
// records whose validity is over, but does no I/O. A second goroutine, the sender, encodes the renewals in the order
// that the pace chooses: records that end first go first, and no more are sent than the answers allow. The store's
// goroutine sends them, so it is the only one that a stuck network blocks. Answers and notifications arrive on other
// goroutines of the store, which merely record them. Cleanup after a claim or a record runs in the worker group for at
// most the record's TTL or [orphanLife], and Close waits for it.
//
// keeper.go has the mutex and the renewer. record.go handles a single record's events, and renewal.go sends its
// renewals. write.go sends a record's last write, removal.go repeats it until the server has confirmed the end, and
// orphan.go waits for answers that no caller wants anymore. Those three know nothing about the renewer except its pace.
//
// The core decides what an event means: [core.Kept] defines the states of a record, [core.Pace] chooses the next write
// to send, and [core.Removal] ends a record.
package keeper
