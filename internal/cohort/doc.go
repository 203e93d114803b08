// Package cohort shares a client's locks among its goroutines. A cohort is the set of goroutines that want one lock in
// one mode, with a record that can serve all of them. It has one FIFO, and at most one record at the server: a claim
// under way, a place in the queue, or a lease. A semaphore's cohort has up to as many leases as there are permits, and
// one place.
//
// # States of a cohort
//
// A cohort consists of four things, all under Client.mu:
//
//   - the founder: a goroutine that has found the FIFO empty, and has sent the first write itself. So an uncontended
//     lock needs no other goroutine. A refused founder joins the FIFO, ahead of the goroutines that arrived meanwhile.
//     A one-shot acquire ([natslock.Client.TryLock]) sends such a write at any time, and never joins the FIFO.
//   - the FIFO: the waiting goroutines. It is empty while the cohort is uncontended.
//   - the seeker: the one goroutine that gets a lease for the FIFO. It exists while the FIFO is not empty, no founder
//     is under way, and the cohort may have another lease. It ends with a lease, with an error for the waiters, or when
//     the FIFO becomes empty.
//   - tenures: the leases, each with its holders. A tenure without a holder is either being decided (the client lists
//     the queue before it hands the lease on), or idle ([natslock.Linger]).
//
// A cohort without any of them is forgotten. A one-shot acquire that is granted alongside a founder or a seeker adds a
// lease: for a while the cohort of a mutex then has that lease and a place, which waits behind it.
//
// # Who is next
//
// When the last holder leaves a lease, the first goroutine of the FIFO gets it without a message if that goroutine is
// owed the lease, if the client knows that no one else is waiting, or while the turn lasts. Otherwise the client
// releases the lock, and the FIFO queues behind the others. The lease is owed to the goroutines up to the mark. The
// mark is the last goroutine that had asked when the cohort's ticket was sent. A lease that was claimed without a
// ticket gets its mark when the client learns of the first waiter outside the cohort. The mark is then the last
// goroutine that had asked when the client last knew that no one else was waiting. Readers have no turn. The mark does
// not depend on comparing clocks: a renewed place has a new server time, and clocks differ.
//
// This order is only about fairness. Exclusion does not depend on it: the lease is valid, its holders enter one after
// another, and the context of each has ended before the next one enters ([session.Holder.Leave]).
package cohort
