// Package cohort guards what the goroutines of one client that want one lock promise each other and
// other clients: they share a claim, a place and a lease, they are inside one after the other with
// rising tokens, a turn bounds how long they pass the lease on while another client waits, and each
// handle ends its own part only. A lease that lingers is idle within the same rules.
package cohort
