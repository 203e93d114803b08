// Package model is the lock protocol as an explicit-state model: every order in
// which writes, answers, removals and clocks can meet, within small scopes, is
// visited, and in every state the invariants are checked. It imports nothing of the
// module and nothing imports it. A change of the protocol starts here.
//
// # The engine
//
// explore.go visits states breadth first, so the first violation found has the
// shortest story; it is told one line per step, with who does what, the time, and
// what the server has. States are kept whole and compared whole. A state has
// ages and rests instead of instants, and its revisions are renumbered: only their
// order matters. Liveness is the question whether from every state a goal can be
// reached without another fault.
//
// # The models
//
//   - mutex.go, client.go: one record, two clients, an operator. Attempts and their
//     ghosts, renewals, adoption, break, close, crash, proposals of a replicated
//     stream, a deposed leader that refuses and is read from.
//   - rw.go: the gate, readers' records, joins, the drain and its proof, with deposed
//     leaders that remove readers by their own clocks, and TTLs that differ.
//   - queue.go: tickets, the predecessor, the shortcut, timers, places that end, looks
//     at the queue that are stale. Who holds is one step.
//   - sharing.go: goroutines that share one reader lease, and a writer.
//
// # What is abstracted, and why that is sound
//
// Messages under way are an unordered bag: a write may be applied at any later time
// or never, an answer may come at any later time or be lost. That is more than any
// connection does, and nothing in the protocol rests on order. Their number at a
// time is a bound of the scope.
//
// Time is a whole number, and so is a margin; at one instant everything may happen
// in any order. A tick of the model is a tenth to a quarter of a TTL. What is true
// for all orders within an instant is true for all times between two.
//
// Clients' clocks may fall behind, servers may remove early or late, each within a
// budget of its scope. A clock that runs fast only ends leases sooner.
//
// Reading a record and judging it are one step: judged later, by the same content,
// it could only be refused more. What is read may be of any state that contains the
// revision asked for, also a deposed leader's.
//
// Clean-up (deleting ghosts) may happen or not: safety may not rest on it.
//
// An actor that is told nothing any more, a record nobody refers to, an answer
// nobody will look at are forgotten, so that a story replays from the real states
// and not from the forgotten ones; the engine fails if that makes a difference.
//
// Which rule is kept by which function of internal/lease is in the README beside
// this file, and so are the results.
package model
