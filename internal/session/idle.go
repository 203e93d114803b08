package session

import (
	"math"

	"github.com/natslock/locks/internal/clock"
)

// Standing returns until when the lease holds, which is before any instant if it has ended, and
// whether it may be idle now: the record says so to other clients.
func (l *Lease) Standing(now clock.Instant) (until clock.Instant, mayIdle bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state != Held || l.abandoned {
		return math.MinInt64, false
	}
	return l.valid.End, !l.valid.Over(now) && l.Body.Lingers && (l.marked == 0 || l.lastSent > l.marked) //safety:linger-shown
}

// used notes that an idle lease has a holder again. It is watched if the holder stays for
// as long as that of another lease that is watched. Most leave sooner, and take no time of
// the renewer. Under mu.
func (l *Lease) used(now clock.Instant) {
	l.idle, l.usedSince = false, now
	if !l.watching && l.watchAt == math.MaxInt64 {
		l.watchAt = now.Add(l.s.WatchAfter) //safety:use-watched
		l.moved()
	}
}

// Idle notes that no holder is inside, or about to be: the TTL of an Extend has ended, and
// so has the watch. The next goroutine to ask, or the next renewal, shows a break.
func (l *Lease) Idle() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.idle = true
	if l.watching && l.s.WatchAfter >= 0 {
		if l.watch != nil {
			l.s.Send(l.watch.Stop)
		}
		l.watch, l.watching, l.watchAt = nil, false, math.MaxInt64
	}
	if r := &l.renewals; l.state == Held && r.want != l.kept.Terms { //safety:extend-ends-idle
		r.want = l.kept.Terms
		l.renewNow(l.s.b.Instant())
	}
}

// Answer has a renewal say soon, to the record at a revision, that the lease is in use.
func (l *Lease) Answer(revision uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.Body.Lingers {
		l.Body.InUse = max(l.Body.InUse, revision)
		l.renewSoon()
	}
}
