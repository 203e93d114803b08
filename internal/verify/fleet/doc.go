// Package fleet plays clients of one lock against a server, with the decisions of package core that ships. The
// world is plain data: a server, messages on their way, and clients, each with the core's own types and a
// driver that does what packages claim, call, session and acquire do around them. The driver decides
// nothing that the core decides.
//
// Two schedulers choose what happens in one world:
//
//   - the simulator ([Play]) draws from a seed: messages are delayed, lost, repeated and overtaken, clients stand
//     still, crash and read from replicas that lag, operators break, servers forget TTLs, leaders are deposed,
//     goroutines ask once, hold for a minimum, extend, hand over and adopt. A seed is the run, bit for bit. A run that goes wrong is shrunk to its fewest choices ([Shrink]), and
//     its story and its moves are printed ([Script], [Replay]).
//   - the explorer (package explore, [Model]) takes every move in every order, within a [Scope].
//
// Both check in every state: whoever is inside is alone there, but for readers beside readers, and at most as
// many as a semaphore has permits; a lease that has ended never becomes valid again; nothing is granted
// after the end of its validity, nor by a record that an operator has broken; the revisions of grants
// rise; no lease is released while a goroutine is inside; nobody gets in before a minimum hold is over; who
// adopts a lock has the token of who has handed it over, and nobody was inside in between. The explorer also checks that from every state all who
// wait can still get in without another fault. In the scopes named "in order" nothing goes wrong, and nobody
// passes a waiter whose place was stored before it asked, nor a goroutine of its client that asked before. Where
// notifications are slow, that is about the places that its client knew. Where answers are slow, so it is for a
// goroutine that joins its client's first claim before the answer: nobody knows then who has queued since. In
// those "by notifications" waiters have no timers: each release wakes one. As long as nothing has gone wrong an
// idle lease keeps out no goroutine that asks once.
//
// # What is abstracted
//
// A read and its judgement are one step. A client does at once all that it can do, unless it stands still:
// then answers and notifications reach it, and it judges them when it goes on. A call that gives up does not
// wait for its records to end. The deletion of a record that nobody believes in is sent once.
//
// A prompt [Scope] is for the explorer. There a write is answered and notified as soon as it is stored,
// unless a fault of the scope's budget says otherwise, and time passes only when nothing else is on its
// way. Places are renewed, and records that nobody believes in are deleted, in one step. Time has ticks of
// a third of a TTL, a margin is one of them, and the server removes records a margin too early. A tick is
// longer than the windows in which a waiter takes a lock out of turn: that is left to the simulator, and to
// the queue of package model.
//
// A lock that a goroutine has got by asking once is its client's only until it leaves: the next goroutine queues at
// the server. Goroutines ask a reader-writer lock and a semaphore only to wait. A minimum hold counts by a clock
// that is exact.
//
// An id is used again when nothing refers to it any more, so that states repeat. The form ignores the floor of
// revisions, since this server never goes back.
package fleet
