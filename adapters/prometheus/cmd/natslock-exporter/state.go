package main

import (
	"maps"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	natslockprom "github.com/natslock/locks/adapters/prometheus"
	"github.com/natslock/locks/internal/mirror"
	"github.com/natslock/locks/internal/plain"
	"github.com/natslock/locks/natslock/admin"
)

// copied is the part of a [mirror.Mirror] that the metrics use.
type copied interface {
	State() mirror.State
	Below(prefix string) []admin.Info
	Counts(mirror.ID) (held, queued int)
	Ahead() time.Duration
}

// state produces the metrics: counters of events, and gauges for the locks in the mirror.
type state struct {
	label  func(name string) string
	now    func() time.Time
	mirror copied

	mu     sync.Mutex
	groups map[string]*group       // by label
	freed  map[mirror.ID]time.Time // when each lock that has waiters became free; deleted at its next grant
	broken map[string]struct{}     // claims whose break has been counted
	live   bool                    // whether the mirror was live at its last state change

	counters
}

// group holds the counters for all locks with one label.
type group struct {
	grants, waited, expiries, breaks, gaveUp prometheus.Counter
	handover                                 prometheus.Observer
}

func newState(label func(string) string, m copied) *state {
	return &state{
		label: label, now: time.Now, mirror: m, counters: newCounters(),
		groups: make(map[string]*group), freed: make(map[mirror.ID]time.Time), broken: make(map[string]struct{}),
	}
}

// labelOf returns the label for a name, creating its series if necessary. Labels beyond the limit are merged into
// one, because a label's series are never removed. s.mu must be held.
func (s *state) labelOf(name string) string {
	label := plain.Text(s.label(name)) // a name may contain any bytes
	if len(s.groups) >= natslockprom.MaxLabels && s.groups[label] == nil {
		label = other
	}
	s.groupOf(label)
	return label
}

// groupOf returns the group for a label, creating its series if necessary. s.mu must be held.
func (s *state) groupOf(label string) *group {
	g := s.groups[label]
	if g == nil {
		g = s.counters.group(label)
		s.groups[label] = g
	}
	return g
}

// register creates the series for a label, at zero.
func (s *state) register(label string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.groupOf(label)
}

// turned records a state change of the mirror, and counts a gap if the mirror was live and is now missing events.
func (s *state) turned(to mirror.State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.live && (to.Condition == mirror.Stale || to.Condition == mirror.NoLeader) {
		s.gaps.Inc()
		clear(s.freed)
	}
	s.live = to.Condition == mirror.Live
}

// event counts an event that the mirror has applied.
func (s *state) event(ev admin.Event) {
	if ev.Type == admin.EventWatching {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	id := mirror.ID{Kind: ev.Kind, Name: ev.Name}
	g := s.groups[s.labelOf(ev.Name)]
	if ev.Grants > 0 {
		g.grants.Add(float64(ev.Grants))
		g.waited.Add(max(ev.Waited, 0).Seconds())
	}
	_, broken := s.broken[ev.ID]
	switch ev.Type {
	case admin.EventGranted:
		if freed, ok := s.freed[id]; ok {
			g.handover.Observe(max(ev.Time.Sub(freed), 0).Seconds())
			delete(s.freed, id)
		}
	case admin.EventGaveUp:
		g.gaveUp.Inc()
		if _, queued := s.mirror.Counts(id); queued == 0 {
			delete(s.freed, id) // no waiter is left to hand the lock to
		}
	case admin.EventReleased:
		s.ended(id, ev)
	case admin.EventExpired:
		if !broken { // otherwise the break has already ended the hold
			g.expiries.Inc()
		}
		s.ended(id, ev)
	case admin.EventBroken:
		if !broken {
			g.breaks.Inc()
		}
		// A broken record keeps others out until its holder has stopped. A break that lets the next client in
		// immediately leaves a tombstone without a TTL, so the hold ends now.
		if s.broken[ev.ID] = struct{}{}; ev.Holder == nil || ev.Holder.TTL == 0 {
			s.ended(id, ev)
		}
	}
}

// ended records the end of a hold. s.mu must be held.
func (s *state) ended(id mirror.ID, ev admin.Event) {
	delete(s.broken, ev.ID)
	if held, queued := s.mirror.Counts(id); queued > 0 && (held == 0 || id.Kind == admin.KindSemaphore) {
		s.freed[id] = ev.Time
	}
}

// totals holds the gauges of one group.
type totals struct {
	held, idle, queued, longest int
	oldest, lag, wait           time.Duration
}

// totals sums up the locks by label. It returns false while the mirror is not live.
func (s *state) totals() (map[string]*totals, bool) {
	if s.mirror.State().Condition != mirror.Live {
		return nil, false
	}
	infos, now := s.mirror.Below(""), s.now()
	server := now.Add(s.mirror.Ahead())
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(map[string]*totals, len(s.groups))
	for _, info := range infos {
		label := s.labelOf(info.Name)
		if all[label] == nil {
			all[label] = &totals{}
		}
		all[label].add(info, now, server)
	}
	for label := range maps.Keys(s.groups) {
		if all[label] == nil {
			all[label] = &totals{}
		}
	}
	return all, true
}

// add adds a lock to the totals. Holders and waiters whose records say that they hold or wait for a long time by
// design are counted, but their ages are ignored.
func (t *totals) add(info admin.Info, now, server time.Time) {
	hold := func(h admin.Holder) {
		t.lag = max(t.lag, mirror.Late(h, server))
		switch {
		case h.Overdue:
		case h.Idle:
			t.idle++
		default:
			t.held++
			if h.Purpose == "" {
				t.oldest = max(t.oldest, now.Sub(h.Since))
			}
		}
	}
	if info.Holder != nil {
		hold(*info.Holder)
	}
	for _, h := range info.Readers {
		hold(h)
	}
	for _, h := range info.Permits {
		hold(h)
	}
	queue := 0
	for _, w := range info.Queue {
		if w.Overdue {
			continue
		}
		t.queued++
		if w.Purpose == "" {
			queue++
			t.wait = max(t.wait, now.Sub(w.Since))
		}
	}
	t.longest = max(t.longest, queue)
}
