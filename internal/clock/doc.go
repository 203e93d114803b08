// Package clock measures the times of leases: it has a clock that counts suspend, the arithmetic of TTL, margin and
// validity, and the pauses between tries.
package clock
