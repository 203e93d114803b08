package kvstore

import (
	"sync"
	"sync/atomic"
	"time"
)

// tracking delivers events, and turns the silent ends of records into events too.
type tracking struct {
	deliver func(Event)
	now     func() time.Time // estimates the servers' clock

	// order makes an event and its change to the map one step, so that the end of a
	// record is delivered before its successor. It is taken before mu.
	order sync.Mutex

	mu       sync.Mutex // held only around the map
	stopped  bool
	tracks   atomic.Bool
	expiries map[string]*expiry
}

// expiry turns the silent end of a record into an event.
type expiry struct {
	record Record
	ends   time.Time
	timer  *time.Timer
}

// end stops the timers. It returns false if it was called before.
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

// Track has the end of r's TTL delivered as an event, and the ends of all later records.
func (w *tracking) Track(r Record) {
	w.tracks.Store(true)
	if r.TTL > 0 && !r.Deleted {
		w.track(r, r.Remaining(w.now()))
	}
}

// track starts timing r and returns the older record under its key.
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
	if l == nil || time.Until(l.ends) > 0 { // deleted or renewed while the timer fired
		w.mu.Unlock()
		return
	}
	delete(w.expiries, key)
	w.mu.Unlock()
	w.deliver(Event{Kind: Expired, Record: l.record})
}

// forget stops timing a key that was deleted, or written without a TTL, and returns
// its old record.
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
		// The server stored it a moment ago, so there are no clocks to compare.
		e.Before = w.track(e.Record, e.Record.TTL)
	case e.Kind == Put && e.Record.TTL > 0:
	default:
		e.Before = w.forget(e.Record)
	}
	w.deliver(e)
}
