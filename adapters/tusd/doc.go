// Package tusdlock lets several servers of tusd share uploads: it locks each upload with
// natslock. A client that has lost its connection can go on at any server.
//
//	tusdlock.New(locks).UseIn(composer)
//
// # What it guarantees
//
//   - One request at a time reads or writes an upload, over all servers that use the bucket.
//   - A request that waits has the request before it stopped: see [Locker.NewLock]. The server
//     that has the upload learns of the wait from NATS at once, without polling. If that
//     notification is lost, it learns with the next renewal of its lock, 5 s later by default.
//   - The uploads of a server that has crashed can be continued after the TTL of its locks, 15 s
//     by default. Keep it below AcquireLockTimeout of the handler, 20 s by default. The first
//     request after the crash then waits, and does not fail.
//
// The locks of natslock have the ids of the uploads behind [Prefix], as in
// "tusd.24e533e02ec3bc40c387f1a0e460e216". So lockctl shows them with the pattern "tusd.>".
//
// # When the lock is lost
//
// A server that cannot reach NATS for a TTL loses its locks, and an operator can break one.
// The request is then stopped as for a waiter: it ends with ERR_UPLOAD_INTERRUPTED, and
// stores the bytes that have arrived. Another server can have the lock a tenth of the TTL
// later, or 1 s later if the TTL is above 10 s. Tusd has that time to stop reading. A store
// that goes on writing for longer may write together with the next request. Tusd passes no
// fencing token to its stores, so they cannot refuse that.
//
// Tusd stops uploads, and no downloads. It can ignore a requestUnlock that comes before it has
// begun to read the body.
package tusdlock
