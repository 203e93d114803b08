// Package kvstore stores expiring records in a NATS JetStream key-value bucket. Every
// record has a revision and a time to live, every write is conditional, and watches report
// changes. The package handles NATS and the settings that make a bucket safe for such
// records, and leaves the meaning of keys and values to its callers.
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
// A write succeeds, fails with [ErrConflict], or has an unknown outcome if no reply
// arrives. If the error matches [ErrInvalidKey] or [ErrInvalidTTL], nothing was sent.
// Programs that need locks should import package natslock instead.
//
// # Why not the key-value API of nats.go
//
// With that API, an update drops a record's TTL, every watch needs a consumer, and a
// watch's initial snapshot can miss keys. Nor can that API's configuration express the
// settings that these records need. This package publishes plain messages instead, with
// headers that the server checks:
//
//   - Nats-Expected-Last-Subject-Sequence makes the write a compare-and-set. The stream
//     leader compares it with the last sequence of the literal subject before storing or
//     proposing the message, so one of two conflicting writes is rejected.
//   - Nats-TTL makes the server delete the record after that many seconds. The server would
//     truncate fractions of a second, so this package rounds up.
//   - KV-Operation: DEL marks a tombstone. A tombstone has a TTL too, so the server deletes
//     it as well.
//
// # What a reply proves
//
// An acknowledgment proves that the server applied the write, and a conflict proves that it
// did not. The absence of a reply proves nothing: the server may apply the write
// immediately, half a minute later, or never. [Store.Send] therefore has no timeout. It
// reports a reply whenever one arrives and leaves it to the caller to decide when a reply
// is too late.
//
// # Watching
//
// The bucket republishes every change on plain subjects. A watch is a core NATS
// subscription to them and needs neither a consumer nor a goroutine. The server sends no
// message when it deletes an expired record, so a watch keeps track of when the records it
// has seen expire, and reports each expiry as an event. Events are only hints, because they
// can be lost, delayed or forged.
//
// # Concurrency
//
// A Store is safe for concurrent use. It starts its goroutines and subscriptions on the
// first write or watch and ends them in [Store.Close].
package kvstore
