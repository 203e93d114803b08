// Package certmagiclock lets the instances of a cluster that use certmagic lock with
// natslock. It wraps a [certmagic.Storage] and replaces its locking. Certificates, keys and
// accounts stay in the wrapped storage, which may be any.
//
//	certmagic.Default.Storage = certmagiclock.New(&certmagic.FileStorage{Path: "/shared"}, locks)
//
// # What it guarantees
//
//   - One instance at a time obtains or renews a certificate, registers an account, fetches
//     renewal information or cleans the storage. The others wait, or leave it to that one.
//   - The lock of a crashed instance is free after its TTL, 15 s by default. No instance
//     deletes a lock because it looks old.
//   - Goroutines that share a [Storage] exclude each other until Unlock, even if the lock was
//     lost earlier.
//
// The names of the locks are certmagic's with [Prefix], as in
// "certmagic.issue_cert_example.com", so lockctl shows them with the pattern "certmagic.>".
// Clusters with separate storages need separate buckets, or they wait for each other.
//
// # When the lock is lost
//
// Certmagic cannot be stopped, because its locking has no way to report a loss. It continues
// the current attempt and stores the certificate. Meanwhile another instance can obtain a
// certificate too. The certificate stored last wins.
//
//   - [Storage.Unlock] returns an error that matches [natslock.ErrLost], and certmagic logs
//     it as "unable to unlock". Certmagic does nothing else with it.
//   - Before each attempt that it can repeat, certmagic renews the lease, which takes a lost
//     lock again: see [Storage.RenewLockLease]. After that it reads the storage, and does not
//     ask the issuer if another instance has already obtained the certificate.
//
// [admin.WithObserver] and [natslock.WithLogger] report a loss as it happens.
package certmagiclock
