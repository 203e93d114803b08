package call

import (
	"math"
	"time"

	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/record"
)

// A one-shot acquire that meets a lease which lingers does not know whether that is idle.
// It writes a record to the queue that is no place: it keeps nobody waiting. The client of
// an idle lease gives the lease up. One whose goroutine is inside answers with a renewal
// that says so. Silence is a no.

// knockFor is how long a one-shot acquire waits for the answer.
const knockFor = 250 * time.Millisecond

// Knock asks the client of the blocker for its lease. It says whether the blocker has gone,
// or else what the record says now.
func (a *Call) Knock(blocker record.Entry) (now record.Entry, gone bool) {
	own := blocker.Client == a.c.b.Client
	if !core.Knocks(blocker, a.apart, own, own && a.run.Holds(blocker.ID)) {
		return blocker, false
	}
	defer a.WhileGranting()()
	m := newMailbox()
	m.turn(blocker.Key)
	w, err := a.c.b.Watch(blocker.Key, m.deliver)
	if err != nil {
		return blocker, false
	}
	defer w.Stop()
	answer, until := uint64(math.MaxUint64), a.c.b.Instant().Add(knockFor)
	var least uint64
	if own { // its release is on the way
		least, err = a.c.b.Probe(a.ctx, a.Keys.Gate)
	} else if least, err = a.knocks(); err == nil {
		answer, until = a.knocked.revision, a.knocked.until
	}
	if err != nil { // else the answer proves the subscription
		a.c.s.Logger.Debug("ask for an idle lease", "lock", a.Req.Name, "error", err)
		return blocker, false
	}
	timer := time.NewTimer(until.Sub(a.c.b.Instant()))
	defer timer.Stop()
	for late := false; ; {
		entry, err := a.c.b.Read(a.ctx, blocker.Key, least)
		if err != nil {
			return blocker, false
		}
		switch core.KnockFound(entry, blocker.ID, answer, late) {
		case core.KnockGone:
			a.asOf = max(a.asOf, entry.Revision)
			return entry, true
		case core.KnockRefused:
			return entry, false
		}
		blocker = entry
		select {
		case <-m.wake:
			ev, _ := m.one()
			least = max(least, ev.Record.Revision) // a notification can be forged: a read decides
		case <-timer.C:
			late = true // the notification may have been lost
		case <-a.ctx.Done():
			return blocker, false
		}
	}
}

// knocks writes the record, once, and returns a revision that the bucket has reached.
func (a *Call) knocks() (revision uint64, err error) {
	if a.knocked != nil {
		return a.c.b.Probe(a.ctx, a.Keys.Gate)
	}
	k := &knock{}
	if k.key, k.id, k.revision, err = a.c.b.Try(a.ctx, a.Keys, a.Req.Mode); err != nil {
		return 0, err
	}
	k.until = a.c.b.Instant().Add(knockFor)
	a.knocked = k
	return k.revision, nil
}

// Unknock deletes the record.
func (a *Call) Unknock() {
	if k := a.knocked; k != nil {
		a.c.s.Discard(k.key, k.id, k.revision)
	}
}
