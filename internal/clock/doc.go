// Package clock has the times of leases: a clock that counts suspend, the arithmetic of TTL, margin and validity, and
// the pauses between tries. Only the pauses do more than compute.
package clock
