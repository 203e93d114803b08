// Package cohort shares a client's locks among its goroutines. The goroutines that want one lock in
// one mode, with a record that can serve all of them, are a cohort. A cohort has one FIFO, and at most
// one record at the server: a claim under way, a place in the queue, or a lease. The cohort of a semaphore
// has up to as many leases as there are permits, and one place.
//
// # States of a cohort
//
// A cohort is the sum of four things, all under Client.mu:
//
//   - the founder: a goroutine that has found the FIFO empty, and has sent the first write on its own. Nobody has to be
//     woken where nobody else wants the lock. A founder that is refused joins the FIFO, before those that came
//     meanwhile. A one-shot acquire ([natslock.Client.TryLock]) does the same at any time, and never joins.
//   - the FIFO: goroutines that wait. It is empty while the cohort is uncontended.
//   - the seeker: the one goroutine that gets a lease for the FIFO. It exists while the FIFO is not empty, no founder
//     is under way, and the cohort may have another lease. It ends with a lease, with an error for those who
//     wait, or when the FIFO has become empty.
//   - tenures: the leases, each with the holders that are inside. A tenure without a holder is being decided (the client
//     lists the queue before it hands the lease on), or idle ([natslock.Linger]).
//
// A cohort without any of them is forgotten. A one-shot acquire that is granted beside a founder or a seeker adds a
// lease: for a while the cohort of a mutex then has that lease and a place, which waits behind it.
//
// # Who is next
//
// When the last holder leaves a lease, the first goroutine of the FIFO gets it without a message while one of these
// is true: it is owed the lease, nobody else is known to wait, or the turn lasts. Otherwise the client releases
// the lock, and the FIFO queues behind the others. The goroutines up to the mark are owed the lease. The mark is
// the last goroutine that had asked when the cohort's ticket was sent. A lease that was claimed without a ticket gets its
// mark when the client learns of the first waiter outside of the cohort: those are owed it that had asked when the
// client last knew that nobody waited. Readers have no turn. No clock is compared for the mark: a
// place that is renewed has a new server time, and clocks differ.
//
// That order is about fairness alone. Exclusion does not depend on it: the lease is valid, its holders
// enter one after the other, and the context of each has ended before the next one enters
// ([session.Holder.Leave]).
package cohort
