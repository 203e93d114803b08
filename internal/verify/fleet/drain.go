package fleet

import (
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
)

// drain is a writer's wait behind its gate.
type drain struct {
	D       core.Drain
	Step    core.DrainStep
	At      clock.Instant // when it goes on by itself
	Watches bool
	Woken   bool
	Asked   uint64 // the renewal that is to be confirmed is after this one
	Tries   int
}

// drains goes on with the drain of a writer that has its gate, or says that it waits.
func (g *call) drains(w *World, r *run) bool {
	c, l := g.C, r.Lease
	if g.Drain == nil {
		g.Drain = &drain{At: never}
	}
	d := g.Drain
	switch d.Step.Do {
	case core.AskReaders:
		s := &w.Server
		if c.Lags && w.Deposed {
			s = w.Old
		}
		list := core.ReaderList{
			Last: s.Seq, Complete: true, Replicas: pick(w.Scope.Several, 3, 1), Created: wall(1), Time: wall(w.Now), At: w.Now,
			Gate: l.Last, Sent: l.LastSent, Alone: !w.Scope.Several,
		}
		for _, r := range s.list(readPrefix) {
			list.Keys = append(list.Keys, r.Key)
		}
		d.At, d.Step = never, d.D.Answered(list, core.NoFailure)
	case core.ReadReader:
		d.Step = d.D.Read(c.read(w, d.Step.Key, d.Step.Revision), core.NoFailure)
	case core.DeleteReader:
		e := d.Step.Entry
		d.Step = d.D.Deleted(w.tombstone(e.Key, e.Revision, e.ID, 4).Refusal == core.Acknowledged)
	case core.ConfirmGate:
		switch {
		case d.At == never:
			d.At, d.Asked = w.Now.Add(answerWithin), l.Renewal()
			l.RenewNow(w.Now)
		case l.Confirmed > d.Asked:
			d.At, d.Step = never, d.D.Confirmed(true)
		case w.Now >= d.At:
			d.At, d.Step = never, d.D.Confirmed(false)
		default:
			return false
		}
	case core.WatchReaders:
		d.Watches = true
		d.Step = d.D.Watched(true)
	case core.AwaitReaders:
		switch {
		case d.At == never:
			pause := [...]time.Duration{20 * time.Millisecond, 100 * time.Millisecond, 500 * time.Millisecond, w.Scope.Place / 3}
			d.At = w.Now.Add(d.D.Pause(pause[min(d.Tries, 3)], wall(w.Now)))
			d.Tries = min(d.Tries+1, 3)
		case d.Woken || w.Now >= d.At:
			d.At, d.Woken, d.Step = never, false, core.DrainStep{}
		default:
			return false
		}
	case core.Drained:
		r.R.Drained = true
	default:
		w.fail("a drain ends with %d", d.Step.Do)
	}
	return true
}
