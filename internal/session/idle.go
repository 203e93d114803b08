package session

import "github.com/natslock/locks/internal/clock"

// Validity returns until when the lease holds, which is before any instant if it has ended, and
// whether it may be idle now: the record says so to other clients.
func (l *Lease) Validity(now clock.Instant) (until clock.Instant, mayIdle bool) {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	return l.use.Standing(&l.Kept, now)
}

// Idle notes that no holder is inside, or about to be.
func (l *Lease) Idle() {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	if l.use.Unused(&l.Kept, l.s.b.Instant(), l.s.WatchAfter) {
		if l.watch != nil {
			l.s.Send(l.watch.Stop)
		}
		l.watch = nil
	}
	l.moved()
}
