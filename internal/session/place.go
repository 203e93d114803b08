package session

import (
	"time"

	"github.com/natslock/locks/internal/clock"
)

// Place is a place of this client in the queue of a lock: the record that is kept
// alive, and a waiter to wake when it has gone.
type Place struct {
	kept
	wake func()
}

// Queue makes a granted claim a place. wake is called when the place has gone; it must
// not block.
func (s *Session) Queue(g Granted, wake func()) *Place {
	p := &Place{wake: wake}
	p.init(s, g, p)
	s.renewer.add(&p.kept)
	return p
}

// ID is the id of the place's claim.
func (p *Place) ID() string { return p.Body.ID }

// Ticket is the revision at which the place was first written: lower ones are served
// first.
func (p *Place) Ticket() uint64 { return p.Revision }

// Gone says whether the place has ended.
func (p *Place) Gone() bool {
	_, _, cause := p.Status()
	return cause != nil
}

func (p *Place) nextDuty(due clock.Instant) clock.Instant { return due }
func (p *Place) perform(clock.Instant)                    {}
func (p *Place) confirmed(uint64)                         {}
func (p *Place) tooLarge(error)                           {}
func (p *Place) cooldown(clock.Instant) time.Duration     { return 0 }
func (p *Place) leave() leavings                          { return leavings{} }

// over is part of [duties]. A place that had ended before wakes its waiter no more.
func (p *Place) over(_ leavings, event EventType, _ *EndError) {
	if event != 0 {
		p.wake()
	}
}
