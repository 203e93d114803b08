// Package cohort shares a client's locks among its goroutines. A cohort is the set of goroutines that want the same
// lock in the same mode and can share one record. It has one FIFO and at most one record on the server: a claim under
// way, a place in the queue, or a lease. A semaphore's cohort may have as many leases as there are permits, plus one
// place.
//
// # States of a cohort
//
// A cohort consists of four things, all guarded by Client.mu:
//
//   - The founder is a goroutine that found the FIFO empty and sent the first write itself, so that an uncontended lock
//     needs no other goroutine. A founder that is refused joins the FIFO ahead of the goroutines that arrived in the
//     meantime. A one-shot acquire ([natslock.Client.TryLock]) sends a first write of its own no matter who else is
//     waiting, and never joins the FIFO.
//   - The FIFO holds the waiting goroutines. It is empty while the cohort is uncontended.
//   - The seeker is the only goroutine that obtains leases for the FIFO. It exists while the FIFO is not empty, no
//     founder is under way, and the cohort can have another lease. It ends when it obtains a lease, when it fails and
//     passes its error to the waiters, or when the FIFO becomes empty.
//   - The tenures are the leases, each with its holders. A tenure without a holder is either undecided, while the
//     client lists the queue before handing on the lease, or idle ([natslock.Linger]).
//
// A cohort that has none of these is forgotten. A one-shot acquire that is granted alongside a founder or a seeker adds
// a lease, so for a while the cohort of a mutex may have both that lease and a place waiting behind it.
//
// # Who is next
//
// When the last holder leaves a lease, the first goroutine in the FIFO gets the lease without a message to the server
// if that goroutine is owed the lease, if the client knows that no one else is waiting, or if the lease's turn has not
// ended. Otherwise the client releases the lock, and the FIFO queues behind the others.
//
// The lease is owed to the goroutines up to the mark, which is the last goroutine that had asked for the lock when the
// cohort's ticket was sent. A lease that was claimed without a ticket gets its mark when the client learns of the first
// waiter outside the cohort. In that case, the mark is the last goroutine that had asked when the client last knew that
// no one else was waiting. Readers have no turn. The mark does not depend on comparing times, because renewing a place
// changes its server time and because clocks differ.
//
// This order affects only fairness. Exclusion does not depend on it, because the lease is valid, its holders enter one
// after another, and the context of each has ended before the next one enters ([session.Holder.Leave]).
package cohort
