package main

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/natslock/locks/adapters/prometheus/cmd/natslock-exporter/internal/page"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

// show has the state keep what the page shows. It precedes the first event.
func (s *state) show() { s.viewed = make(map[lockID]struct{}) }

// view notes that a lock has changed. Under mu.
func (s *state) view(l *lock) {
	if s.viewed != nil {
		s.viewed[l.id] = struct{}{}
	}
}

// shows keeps what the page shows of a waiter. Under mu.
func (s *state) shows(c *claim, w admin.Waiter) {
	if s.viewed != nil {
		c.waiter = &w
	}
}

// clock notes the time of the server.
func (s *state) clock(server time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ahead = server.Sub(s.now())
}

// changes returns the locks that have changed since the last call, or all of them, and by how
// much the clock of the server is ahead. A lock without claims has gone.
func (s *state) changes(all bool) ([]admin.Info, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
	var infos []admin.Info
	if all {
		infos = make([]admin.Info, 0, len(s.locks))
		for _, l := range s.locks {
			infos = append(infos, l.info())
		}
	}
	for id := range s.viewed {
		if !all || s.locks[id] == nil {
			infos = append(infos, s.infoOf(id))
		}
	}
	clear(s.viewed)
	return infos, s.ahead
}

// below returns the locks whose names begin with a prefix.
func (s *state) below(prefix string) (infos []admin.Info) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
	for id, l := range s.locks {
		if strings.HasPrefix(id.name, prefix) {
			infos = append(infos, l.info())
		}
	}
	return infos
}

// one returns a lock.
func (s *state) one(id lockID) (admin.Info, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.infoOf(id), s.ahead
}

// infoOf returns a lock, without claims if it has gone. Under mu.
func (s *state) infoOf(id lockID) admin.Info {
	if l := s.locks[id]; l != nil {
		return l.info()
	}
	return admin.Info{Kind: id.kind, Name: id.name}
}

// info is the lock as a list of the bucket has it. Under mu of the state.
func (l *lock) info() admin.Info {
	info := admin.Info{Kind: l.id.kind, Name: l.id.name}
	for _, c := range l.held {
		h := admin.Holder{Holder: natslock.Holder{ID: c.id}}
		if c.holder != nil {
			h = *c.holder
		}
		h.Since = c.since
		info = with(info, h, c.mode)
	}
	for _, c := range l.queue {
		if c.waiter != nil {
			info.Queue = append(info.Queue, *c.waiter)
		}
	}
	slices.SortStableFunc(info.Queue, func(a, b admin.Waiter) int { return cmp.Compare(a.Ticket, b.Ticket) })
	slices.SortStableFunc(info.Readers, func(a, b admin.Holder) int { return cmp.Compare(a.Token, b.Token) })
	slices.SortStableFunc(info.Permits, func(a, b admin.Holder) int { return cmp.Compare(a.Slot, b.Slot) })
	return info
}

// modeOf is the mode of a holder in a list.
func modeOf(info admin.Info, h admin.Holder) admin.Mode {
	if info.Kind == admin.KindRW && (info.Holder == nil || info.Holder.ID != h.ID) {
		return admin.Shared
	}
	return admin.Exclusive
}

// with is a lock with one holder more.
func with(info admin.Info, h admin.Holder, mode admin.Mode) admin.Info {
	switch {
	case info.Kind == admin.KindSemaphore:
		info.Permits = append(info.Permits, h)
	case mode == admin.Shared:
		info.Readers = append(info.Readers, h)
	default:
		info.Holder = &h
	}
	return info
}

// waiterOf is the waiter of an event.
func waiterOf(ev admin.Event) admin.Waiter {
	w := admin.Waiter{Ticket: ev.Token, ID: ev.ID, Mode: ev.Mode, Since: sinceOf(ev), Goroutines: 1}
	if h := ev.Holder; h != nil {
		w.Owner, w.Host, w.PID, w.TTL, w.Expires, w.Of, w.Goroutines = h.Owner, h.Host, h.PID, h.TTL, h.Expires, h.Of, h.Waiting+1
	}
	return w
}

// shown is what the page sees of the exporter: a [page.Source].
type shown struct{ f *follower }

func (s shown) Changes(all bool) ([]admin.Info, time.Duration) { return s.f.state.changes(all) }

func (s shown) Lock(id page.ID) (admin.Info, time.Duration) {
	return s.f.state.one(lockID{id.Kind, id.Name})
}

func (s shown) Below(prefix string) []admin.Info { return s.f.state.below(prefix) }

func (s shown) Healthy() error { return s.f.healthy() }

func (s shown) Admin() *admin.Admin {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	if s.f.locks == nil {
		return nil
	}
	return admin.New(s.f.locks)
}
