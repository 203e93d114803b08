// Package tusdlock lets several tusd servers share uploads: it locks each upload with natslock.
// A client that has lost its connection can continue at any server.
//
//	tusdlock.New(locks).UseIn(composer)
//
// # What it guarantees
//
//   - One request at a time reads or writes an upload, across all servers that use the bucket.
//   - A waiting request causes the current one to be stopped: see [Locker.NewLock]. NATS
//     notifies the server that has the upload at once, without polling. If that notification is
//     lost, the server learns of the waiter with the next renewal of its lock, by default within
//     5 s.
//   - The uploads of a crashed server can be continued after the TTL of its locks, 15 s by
//     default. Keep the TTL below the handler's AcquireLockTimeout, 20 s by default, so that the
//     first request after the crash waits and does not fail.
//
// The names of the locks are the upload ids with [Prefix], as in
// "tusd.24e533e02ec3bc40c387f1a0e460e216", so lockctl shows them with the pattern "tusd.>".
//
// # When the lock is lost
//
// A server that cannot reach NATS for a TTL loses its locks, and an operator can break one. The
// request is then stopped as for a waiter: it ends with ERR_UPLOAD_INTERRUPTED, and stores the
// bytes that have arrived. Another server can have the lock a tenth of the TTL later, or 1 s
// later if the TTL is above 10 s. Tusd has that long to stop reading. A store that keeps writing
// for longer may write concurrently with the next request. Tusd passes no fencing token to its
// stores, so they cannot refuse that.
//
// Tusd stops uploads, but not downloads. It can ignore a requestUnlock that comes before it has
// begun to read the body.
package tusdlock
