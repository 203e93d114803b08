package kvstore

import (
	"sync"
	"sync/atomic"
	"time"
)

// tracking delivers a watch's events. The server sends nothing when a record expires, so
// tracking generates the expiry events itself.
type tracking struct {
	deliver func(Event)
	now     func() time.Time // estimates the servers' clock

	// order makes delivering an event and updating the map a single step, so that a
	// record's end is delivered before its successor. It is locked before mu.
	order sync.Mutex

	mu       sync.Mutex // held only while accessing the map
	stopped  bool
	tracks   atomic.Bool
	expiries map[string]*expiry
}

// expiry times the end of a record's TTL.
type expiry struct {
	record Record
	ends   time.Time
	timer  *time.Timer
}

// end stops the timers. It returns false if it has already been called.
func (w *tracking) end() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		return false
	}
	w.stopped = true
	for _, l := range w.expiries {
		l.timer.Stop()
	}
	clear(w.expiries)
	return true
}

// Track makes the watch deliver an event when r's TTL ends, and when a later record's does.
func (w *tracking) Track(r Record) {
	w.tracks.Store(true)
	if r.TTL > 0 && !r.Deleted {
		w.track(r, r.Remaining(w.now()))
	}
}

// track starts timing r and returns the older record of the same key, if there is one.
func (w *tracking) track(r Record, left time.Duration) (before Record) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.expiries[r.Key]
	ends := time.Now().Add(left)
	switch {
	case w.stopped || (l != nil && l.record.Revision > r.Revision):
	case l == nil:
		if w.expiries == nil {
			w.expiries = make(map[string]*expiry)
		}
		l = &expiry{record: r, ends: ends}
		l.timer = time.AfterFunc(left, func() { w.expired(r.Key) })
		w.expiries[r.Key] = l
	default:
		if l.record.Revision < r.Revision {
			before = l.record
		}
		l.record, l.ends = r, ends
		l.timer.Reset(left)
	}
	return before
}

func (w *tracking) expired(key string) {
	w.order.Lock()
	defer w.order.Unlock()
	w.mu.Lock()
	l := w.expiries[key]
	if l == nil || time.Until(l.ends) > 0 { // deleted or renewed while the timer was firing
		w.mu.Unlock()
		return
	}
	delete(w.expiries, key)
	w.mu.Unlock()
	w.deliver(Event{Kind: Expired, Record: l.record})
}

// forget stops timing a key that was deleted, or written without a TTL, and returns the
// key's previous record.
func (w *tracking) forget(r Record) (before Record) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l := w.expiries[r.Key]; l != nil && l.record.Revision < r.Revision {
		before = l.record
		l.timer.Stop()
		delete(w.expiries, r.Key)
	}
	return before
}

func (w *tracking) event(e Event) {
	w.order.Lock()
	defer w.order.Unlock()
	switch {
	case e.Kind == Put && e.Record.TTL > 0 && w.tracks.Load():
		// The server has only just stored the record, so there is no need to compare
		// clocks.
		e.Before = w.track(e.Record, e.Record.TTL)
	case e.Kind == Put && e.Record.TTL > 0:
	default:
		e.Before = w.forget(e.Record)
	}
	w.deliver(e)
}
