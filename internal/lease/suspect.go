package lease

import (
	"context"
	"fmt"
	"time"

	"github.com/natslock/locks/kvstore"
)

// suspect acts on a hint that the record is not what it should be. A hint may
// be forged: what ends the lease is a refused renewal, or for a lease that is
// not renewed a read at least as new as the revision of the hint. Under mu.
func (l *Lease) suspect(revision uint64) {
	if l.renews() {
		// A flood of forged hints is answered slowly.
		l.renewNow(max(l.e.now(), l.asked.Add(minRetry/2)))
		return
	}
	l.suspected = max(l.suspected, revision)
	if l.state == Held && !l.resolving {
		l.resolving = true
		l.e.background(func(ctx context.Context) { l.resolve(ctx, revision, false) })
	}
}

// resolve reads the record after a refusal or a hint that named revision and
// judges the lease by it.
func (l *Lease) resolve(ctx context.Context, revision uint64, proven bool) {
	for try := 0; ; try++ {
		_, left, cause := l.Status()
		if cause != nil {
			return
		}
		rctx, cancel := context.WithTimeout(ctx, min(left, time.Second<<min(try, 3)))
		at := revision
		if !proven && !l.e.kv.Alone() {
			// The subscription of a lease that is not renewed has no other proof, where
			// any replica may answer a read. Without an answer the read has to do.
			last, _ := l.e.probe(rctx, l.spec.key)
			at = max(at, last)
		}
		entry, err := l.e.read(rctx, l.spec.key, at)
		cancel()
		if err == nil {
			l.found(entry, revision)
			return
		}
		if !proven && try >= 3 || ctx.Err() != nil {
			l.settle()
			return
		}
		if sleep(ctx, shortPause(try)) != nil {
			return
		}
	}
}

// settle ends a look at the record that showed nothing.
func (l *Lease) settle() {
	k := l.e.keeper
	k.mu.Lock()
	l.resolving, l.suspected = false, 0
	k.moved(l)
	k.mu.Unlock()
}

// found judges the lease by the record under its key, read as of a state that
// contains revision.
func (l *Lease) found(entry Entry, revision uint64) {
	k := l.e.keeper
	k.mu.Lock()
	l.resolving = false
	act := func() {}
	own := entry.of(l.id)
	switch {
	case l.state != Held:
	case own && entry.Live() && entry.Status == StatusHeld && entry.Revision <= l.last:
		k.moved(l) // as it should be
		hint := l.suspected
		l.suspected = 0
		if hint > revision {
			l.suspect(hint) // it came while this was read
		}
	case own && entry.Live() && entry.Status == StatusHeld && entry.Renewal > 0 && entry.Renewal <= l.renewals:
		// A renewal whose answer was lost. Its own sending counts.
		act = l.confirmed(entry.Renewal, entry.Revision, l.e.now())
		if act == nil {
			act = func() {}
			if entry.Renewal < l.need { // the refused one was asked for
				l.again(l.e.now())
			}
			k.moved(l)
		}
	case own && entry.Status == StatusBroken:
		l.last = entry.Revision // its release deletes the broken record
		act = l.lose(ErrBroken, entry.brokenBy())
	case own && entry.Live():
		// An acquisition record: an attempt from before the grant that landed
		// after the granted record had gone.
		act = l.lose(ErrLost, "its record is gone")
		lose := act
		act = func() { lose(); l.e.discard(l.spec.key, l.id, entry.Revision) }
	case entry.Live():
		act = l.lose(ErrLost, fmt.Sprintf("its record was replaced at revision %d", entry.Revision))
	default:
		act = l.lose(ErrLost, "its record was deleted")
	}
	k.mu.Unlock()
	act()
}

// startWatch subscribes to the own record. The renewal that follows proves
// that the subscription is in place and that nothing was missed before. It
// runs on the engine's sender.
func (l *Lease) startWatch() {
	w, err := l.e.kv.Watch(l.spec.key, l.notified)
	if err != nil {
		return // told of a break by the next renewal
	}
	k := l.e.keeper
	k.mu.Lock()
	if l.state == Held {
		l.watch = w
		l.suspect(l.last)
		w = nil
	}
	k.mu.Unlock()
	if w != nil {
		w.Stop()
	}
}

// notified takes a change of the own record.
func (l *Lease) notified(ev kvstore.Event) {
	switch ev.Kind {
	case kvstore.Put, kvstore.Deleted:
	default:
		return
	}
	k := l.e.keeper
	k.mu.Lock()
	old := l.state != Held || ev.Record.Revision <= l.last
	k.mu.Unlock()
	if old { // most are: of an own renewal whose answer was quicker
		return
	}
	entry := entryOf(ev.Record)
	k.mu.Lock()
	defer k.mu.Unlock()
	if l.state != Held || ev.Record.Revision <= l.last {
		return
	}
	if entry.of(l.id) && entry.Status == StatusBroken {
		l.breaker = entry.brokenBy()
	}
	if entry.of(l.id) && entry.Live() && entry.Status == StatusHeld && entry.Renewal > 0 && entry.Renewal <= l.renewals {
		return // the own renewal; its answer is on the way
	}
	l.suspect(ev.Record.Revision)
}
