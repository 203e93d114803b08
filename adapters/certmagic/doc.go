// Package certmagiclock lets the instances of a cluster that use certmagic lock with
// natslock. It wraps a [certmagic.Storage] and replaces its locking. Certificates, keys and
// accounts stay in the wrapped storage, which may be any.
//
//	certmagic.Default.Storage = certmagiclock.New(&certmagic.FileStorage{Path: "/shared"}, locks)
//
// # What it guarantees
//
//   - One instance at a time obtains or renews a certificate, registers an account, fetches
//     renewal information or cleans the storage. The others wait, or leave it to the first.
//   - The lock of an instance that has crashed is free after its TTL, 15 s by default.
//     Nobody deletes a lock because it seems to be old.
//   - Goroutines that share a [Storage] exclude each other until Unlock, even if the lock was
//     lost before.
//
// The locks of natslock have the names of certmagic behind [Prefix], as in
// "certmagic.issue_cert_example.com". So lockctl shows them with the pattern "certmagic.>".
// Clusters with separate storages need separate buckets, or they wait for each other.
//
// # When the lock is lost
//
// Certmagic cannot be stopped: its locking has no way to report a loss. It goes on with the
// attempt under way and stores the certificate. Meanwhile another instance can obtain a
// certificate too. The certificate that is stored last counts.
//
//   - [Storage.Unlock] returns an error that matches [natslock.ErrLost], and certmagic logs
//     it as "unable to unlock". Certmagic does nothing else with it.
//   - Before each attempt that certmagic can repeat, it renews the lease. A lock that was lost
//     is taken again then: see [Storage.RenewLockLease]. Certmagic reads the storage after
//     that, and does not ask the issuer if another instance has the certificate already.
//
// [admin.WithObserver] and [natslock.WithLogger] report a loss as it happens.
package certmagiclock
