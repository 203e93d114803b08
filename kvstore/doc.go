// Package kvstore keeps records under keys in a NATS JetStream key-value
// bucket: every record has a revision and a time to live, every write is
// conditional, changes can be watched. It knows NATS, and how a bucket for such
// records must be set up. What keys and values mean is its callers' affair.
//
// # Why not the key-value API of nats.go
//
// Its updates drop the TTL of a record, its watches need a consumer each and
// can miss keys in their first snapshot, and its configuration cannot express
// the bucket that such records need. This package publishes plain messages with
// the headers that the server checks:
//
//   - Nats-Expected-Last-Subject-Sequence makes the write a compare-and-set.
//     The stream's leader evaluates it on the literal subject before it stores
//     or proposes the message, so of two conflicting writes one is refused.
//   - Nats-TTL, in whole seconds, makes the server remove the record. A
//     fraction would be truncated by the server; here it is rounded up.
//   - KV-Operation: DEL marks a tombstone, which has a TTL too and so cleans up
//     after itself.
//
// # What an answer proves
//
// An acknowledgement proves that the write was applied, a conflict that this
// write was not. Silence proves nothing: the write may be applied at once, half
// a minute later or never. [Store.Send] therefore has no time-out of its own;
// it reports an answer whenever it comes, and its caller judges how late is too
// late.
//
// # Watching
//
// The bucket re-publishes what it stores to plain subjects. A watch is a core
// subscription on them: no consumer, no goroutine per watch. The server removes
// expired records without a notification, so a watch times the records it sees
// and reports their ends as events of its own. Events are hints: they can be
// lost, late or forged.
//
// # Concurrency
//
// A Store is safe for concurrent use. It starts its goroutines and its
// subscriptions with the first write or watch and ends them in [Store.Close].
package kvstore
