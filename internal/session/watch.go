package session

import (
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/kvstore"
)

// startWatch subscribes to the own record. The renewal that follows proves
// that the subscription is in place and that nothing was missed before. It
// runs on the goroutine that sends.
func (l *Lease) startWatch() {
	w, err := l.s.b.Watch(l.Key, l.notified)
	if err != nil {
		return // the next renewal shows a break
	}
	l.mu.Lock()
	if l.state == Held {
		l.watch = w
		l.suspect(l.last)
		w = nil
	}
	l.mu.Unlock()
	if w != nil {
		w.Stop()
	}
}

// notified takes a change of the own record.
func (l *Lease) notified(ev kvstore.Event) {
	if ev.Kind != kvstore.Put && ev.Kind != kvstore.Deleted {
		return
	}
	l.mu.Lock()
	old := l.state != Held || ev.Record.Revision <= l.last
	l.mu.Unlock()
	if old { // most are: of an own renewal whose answer was quicker
		return
	}
	entry := record.Of(ev.Record)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state != Held || ev.Record.Revision <= l.last {
		return
	}
	own := entry.From(l.kept.ID)
	if own && entry.Status == record.StatusBroken {
		l.doubt.breaker = entry.BrokenBecause()
	}
	if own && entry.Live() && entry.Status == record.StatusHeld && entry.Renewal > 0 && entry.Renewal <= l.renewals.n {
		return // the own renewal; its answer is on the way
	}
	l.suspect(ev.Record.Revision)
}
