// Package kvstore keeps records under keys in a NATS JetStream key-value bucket. Every
// record has a revision and a time to live, and every write is conditional. Watches
// report changes. The package knows NATS and the settings that make a bucket safe for
// such records. It does not know what keys and values mean to its callers.
//
// # Usage
//
// [Open] finds or creates a bucket, verifies its settings, and returns a [Store]:
//
//	store, err := kvstore.Open(ctx, js, kvstore.Config{Replicas: 3})
//	...
//	revision, err := store.Create(ctx, "job.42", value, 15*time.Second)
//	...
//	revision, err = store.Update(ctx, "job.42", value, 15*time.Second, revision)
//
// A write succeeds, fails with [ErrConflict], or has an unknown outcome when no answer
// arrives. If the error matches [ErrInvalidKey] or [ErrInvalidTTL], nothing was sent.
// Users of locks import package natslock instead.
//
// # Why not the key-value API of nats.go
//
// Its updates drop the TTL of a record. Each of its watches needs a consumer, and the
// first snapshot of a watch can miss keys. Its configuration cannot express the bucket
// that such records need. This package publishes plain messages with headers that the
// server checks:
//
//   - Nats-Expected-Last-Subject-Sequence makes the write a compare-and-set. The
//     stream's leader evaluates it on the literal subject before it stores or proposes
//     the message, so it refuses one of two conflicting writes.
//   - Nats-TTL, in whole seconds, makes the server remove the record. The server would
//     truncate a fraction of a second, so this package rounds it up.
//   - KV-Operation: DEL marks a tombstone. A tombstone has a TTL too, so the server
//     removes it as well.
//
// # What an answer proves
//
// An acknowledgement proves that the server applied the write. A conflict proves that
// it did not. Silence proves nothing: the server may apply the write at once, half a
// minute later, or never. [Store.Send] therefore has no time limit. It reports an
// answer whenever it arrives, and the caller decides when it is too late.
//
// # Watching
//
// The bucket republishes every change on plain subjects. A watch is a core
// subscription to them, without a consumer or a goroutine. The server sends no message
// when it removes an expired record, so a watch works out when the records it has seen
// expire, and reports that as an event. Events are hints: they can be lost, late or
// forged.
//
// # Concurrency
//
// A Store is safe for concurrent use. It starts its goroutines and subscriptions with
// the first write or watch, and ends them in [Store.Close].
package kvstore
