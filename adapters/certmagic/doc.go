// Package certmagiclock coordinates a cluster's certmagic instances with natslock locks. It
// wraps any [certmagic.Storage] and replaces only its locking: certificates, keys and
// accounts stay in the wrapped storage.
//
//	certmagic.Default.Storage = certmagiclock.New(&certmagic.FileStorage{Path: "/shared"}, locks)
//
// # What it guarantees
//
//   - Only one instance at a time obtains or renews a certificate, registers an account,
//     fetches renewal information or cleans the storage. The others wait, or leave the work
//     to that instance.
//   - A crashed instance's lock becomes free when its TTL runs out, after 15 s by default.
//     No instance deletes a lock because it looks old.
//   - Goroutines that share a [Storage] exclude each other until Unlock, even if the lock
//     has been lost in the meantime.
//
// A lock's name is certmagic's own name for it with [Prefix] prepended, as in
// "certmagic.issue_cert_example.com", so the lockctl pattern "certmagic.>" matches all
// these locks. Clusters with separate storages need separate buckets; otherwise they would
// wait for each other's locks.
//
// # When the lock is lost
//
// Certmagic's locking interface has no way to report a loss, so certmagic cannot be
// stopped: it finishes the current attempt and stores the certificate. Meanwhile another
// instance may obtain a certificate too, and whichever is stored last wins.
//
//   - [Storage.Unlock] returns an error that matches [natslock.ErrLost]. Certmagic does
//     nothing with it except log it as "unable to unlock".
//   - Before each attempt that it may repeat, certmagic renews the lease, and
//     [Storage.RenewLockLease] then reacquires the lock if it has been lost. After that,
//     certmagic reads the storage again and does not contact the issuer if another instance
//     has already obtained the certificate.
//
// [admin.WithObserver] and [natslock.WithLogger] report a loss as soon as it happens.
package certmagiclock
