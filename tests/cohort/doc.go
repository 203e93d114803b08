// Package cohort tests what the goroutines of one client that want the same lock guarantee each
// other and other clients. They share a claim, a place and a lease, and enter one after another
// with rising tokens. While another client waits, a turn limits how long they may pass the lease on
// among themselves. Each handle ends only its own part of the lease. A lingering lease stays idle
// under the same rules.
package cohort
