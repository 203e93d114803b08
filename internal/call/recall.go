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

// recallWithin is how long a one-shot acquire waits for the answer.
const recallWithin = 250 * time.Millisecond

// RequestRecall asks the client of the blocker for its lease. It says whether the blocker has gone,
// or else what the record says now.
func (a *Call) RequestRecall(blocker record.Entry) (now record.Entry, gone bool) {
	own := blocker.Client == a.c.b.Client
	if !core.RequestsRecall(blocker, a.apart, own, own && a.run.Holds(blocker.ID)) {
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
	answer, until := uint64(math.MaxUint64), a.c.b.Instant().Add(recallWithin)
	var least uint64
	if own { // its release is on the way
		least, err = a.c.b.Probe(a.ctx, a.Keys.Gate)
	} else if least, err = a.writeRecallRequest(); err == nil {
		answer, until = a.recallRequest.revision, a.recallRequest.until
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
		switch core.RecallFound(entry, blocker.ID, answer, late) {
		case core.RecallGranted:
			a.asOf = max(a.asOf, entry.Revision)
			return entry, true
		case core.RecallRefused:
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

// writeRecallRequest writes the record, once, and returns a revision that the bucket has reached.
func (a *Call) writeRecallRequest() (revision uint64, err error) {
	if a.recallRequest != nil {
		return a.c.b.Probe(a.ctx, a.Keys.Gate)
	}
	k := &recallRequest{}
	if k.key, k.id, k.revision, err = a.c.b.Try(a.ctx, a.Keys, a.Req.Mode); err != nil {
		return 0, err
	}
	k.until = a.c.b.Instant().Add(recallWithin)
	a.recallRequest = k
	return k.revision, nil
}

// EndRecallRequest deletes the record.
func (a *Call) EndRecallRequest() {
	if k := a.recallRequest; k != nil {
		a.c.s.Discard(k.key, k.id, k.revision)
	}
}
