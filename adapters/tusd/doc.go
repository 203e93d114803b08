// Package tusdlock lets several tusd servers share uploads by locking each upload with natslock.
// A client that has lost its connection can resume its upload at any server.
//
//	tusdlock.New(locks).UseIn(composer)
//
// # What it guarantees
//
//   - Only one request at a time reads or writes an upload, across all servers that use the
//     bucket.
//   - A waiting request makes the current one stop: see [Locker.NewLock]. NATS notifies the
//     server that has the upload immediately, without polling. If that notification is lost, the
//     server learns of the waiter when it next renews its lock, by default within 5 s.
//   - A crashed server's uploads can be resumed when the TTL of its locks has passed, 15 s by
//     default. Keep the TTL below the handler's AcquireLockTimeout, 20 s by default, so that the
//     first request after a crash waits instead of failing.
//
// A lock's name is the upload id with [Prefix] prepended, as in
// "tusd.24e533e02ec3bc40c387f1a0e460e216", so the lockctl pattern "tusd.>" matches all these
// locks.
//
// # When the lock is lost
//
// A server that cannot reach NATS for a whole TTL loses its locks, and an operator can break one.
// The upload's current request is then stopped as if another one were waiting: it ends with
// ERR_UPLOAD_INTERRUPTED, and tusd stores the bytes that have arrived. Another server can get the
// lock a tenth of the TTL later, or 1 s later if the TTL is above 10 s, so tusd has that long to
// stop reading. A store that keeps writing for longer may write concurrently with the next
// request. It cannot refuse such writes, because tusd passes no fencing token to its stores.
//
// Tusd stops uploads but not downloads, and it may ignore a requestUnlock that arrives before it
// has begun to read the body.
package tusdlock
