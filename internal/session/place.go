package session

import (
	"strings"
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/keeper"
	"github.com/natslock/locks/internal/record"
)

// Place is this client's place in a lock's queue: a record to keep alive, and a waiter to wake when the record ends.
type Place struct {
	keeper.Record
	wake func()
}

// Queue turns a granted claim into a place. wake is called when the place has ended, and must not block.
func (s *Session) Queue(g keeper.Granted, wake func()) *Place {
	p := &Place{wake: wake}
	s.Make(&p.Record, g, p)
	s.Take(&p.Record)
	return p
}

// ID returns the id of the place's claim.
func (p *Place) ID() string { return p.Body.ID }

// Ticket returns the revision at which the place was first written. Lower tickets are served first.
func (p *Place) Ticket() uint64 { return p.Body.Token }

// Gone reports whether the place has ended.
func (p *Place) Gone() bool {
	state, _ := p.Status()
	return state != Held
}

// A place has no duties of its own as a [keeper.Owner], and only its waiter cares about its end.

func (p *Place) NextDuty(due clock.Instant) clock.Instant { return due }
func (p *Place) Perform(clock.Instant)                    {}
func (p *Place) Confirmed(uint64)                         {}
func (p *Place) Refused(error)                            {}
func (p *Place) NoRoom(uint64, error) bool                { return false }
func (p *Place) AtRisk(error)                             {}
func (p *Place) Cooldown(clock.Instant) time.Duration     { return 0 }
func (p *Place) NoteEnd(core.End, string)                 {}

// Over implements [keeper.Owner].
func (p *Place) Over() { p.wake() }

// Places returns the number of places that the client has in a lock's queue.
func (s *Session) Places(keys record.Keys) (n int) {
	s.Each(func(k *keeper.Record) {
		if strings.HasPrefix(k.Key, keys.Place("")) {
			n++
		}
	})
	return n
}
