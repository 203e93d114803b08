// Package clock provides the timing of leases: a clock that includes time spent suspended, the arithmetic of TTL,
// margin and validity, and the backoff between attempts.
package clock
