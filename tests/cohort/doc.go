// Package cohort guards what the goroutines of one client that want one lock promise each other and
// other clients. They share a claim, a place and a lease, and enter one after another with rising
// tokens. A turn limits how long they pass the lease on while another client waits, and each handle
// ends only its own part. A lingering lease is idle under the same rules.
package cohort
