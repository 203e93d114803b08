package top

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/internal/mirror"
	"github.com/natslock/locks/natslock/admin"
)

// freeFor is how long a lock stays visible after it has become free. Otherwise users would
// never see locks that are held only briefly.
const freeFor = 2 * time.Second

// picture is a mirror of the locks, to which top adds rates and events.
type picture struct {
	mirror *mirror.Mirror
	news   chan struct{} // signals that there is something to draw

	mu      sync.Mutex
	version int                     // number of changes so far
	freed   map[mirror.ID]time.Time // when each lock that is still shown became free
	rates   rates
	grants  map[mirror.ID]meter
	past    *history
	was     mirror.State // latest state, or the first state of an outage
	begun   bool         // the mirror has been live
}

// rates measures how often something happens, over all locks.
type rates struct{ grants, handovers meter }

func newPicture() *picture {
	return &picture{
		news: make(chan struct{}, 1), freed: make(map[mirror.ID]time.Time), grants: make(map[mirror.ID]meter), past: newHistory(),
	}
}

// changed makes top redraw the picture.
func (p *picture) changed(mirror.ID) {
	p.mu.Lock()
	p.changedLocked()
	p.mu.Unlock()
}

func (p *picture) changedLocked() {
	p.version++
	select {
	case p.news <- struct{}{}:
	default:
	}
}

// turned records a new state of the mirror. If the mirror is live again after an outage, turned
// also records that events may have been missed.
func (p *picture) turned(to mirror.State) {
	ahead := p.mirror.Ahead()
	p.mu.Lock()
	defer p.mu.Unlock()
	if to.Condition == mirror.Live && p.was.Condition != mirror.Live && p.begun {
		p.past.missed(p.was.Since.Add(ahead), time.Now().Add(ahead))
	}
	p.begun = p.begun || to.Condition == mirror.Live
	if p.was.Condition == mirror.Live || p.was.Since.IsZero() || to.Condition == mirror.Live { // otherwise the same outage continues
		p.was = to
	}
	p.changedLocked()
}

// event records an event that the mirror has applied.
func (p *picture) event(ev admin.Event) {
	if ev.Type == admin.EventWatching {
		return
	}
	id := mirror.ID{Name: ev.Name, Kind: ev.Kind}
	held, queued := p.mirror.Counts(id)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.countLocked(id, ev)
	if ev.Type != admin.EventRenewed {
		p.past.add(id, ev)
	}
	if delete(p.freed, id); held+queued == 0 {
		p.freed[id] = time.Now()
	}
	p.changedLocked()
}

// countLocked adds an event's grants to the rates.
func (p *picture) countLocked(id mirror.ID, ev admin.Event) {
	if ev.Grants == 0 {
		return
	}
	now := time.Now()
	p.grants[id] = p.grants[id].add(ev.Grants, now)
	p.rates.grants = p.rates.grants.add(ev.Grants, now)
	queued := ev.Waited > 0
	if ev.Type != admin.EventGranted { // grants inside a client; if the lock lingers, nearly all were on an idle lock
		queued = ev.Holder == nil || !ev.Holder.Lingers
	}
	if queued {
		p.rates.handovers = p.rates.handovers.add(ev.Grants, now)
	}
}

// shot is a snapshot of the picture.
type shot struct {
	version int
	state   mirror.State
	locks   []admin.Info // sorted by name, including locks that were held a moment ago
	both    map[string]bool
	grants  map[mirror.ID]meter
	rates   rates
	ahead   time.Duration // lead of the server's clock over this machine's
}

// shot returns a snapshot of the picture, unless the picture still has the given version.
func (p *picture) shot(version int) (shot, bool) {
	p.mu.Lock()
	maps.DeleteFunc(p.freed, func(_ mirror.ID, at time.Time) bool {
		old := time.Since(at) >= freeFor
		if old {
			p.version++
		}
		return old
	})
	if version == p.version {
		p.mu.Unlock()
		return shot{}, false
	}
	now := time.Now()
	maps.DeleteFunc(p.grants, func(_ mirror.ID, m meter) bool { return m.rate(now) < minRate })
	s := shot{version: p.version, grants: maps.Clone(p.grants), rates: p.rates}
	free := maps.Clone(p.freed)
	p.mu.Unlock()
	s.state, s.ahead, s.locks = p.mirror.State(), p.mirror.Ahead(), p.mirror.Below("")
	s.both = show.BothKinds(s.locks)
	for _, info := range s.locks {
		delete(free, mirror.IDOf(info))
	}
	for id := range free {
		s.locks = append(s.locks, admin.Info{Name: id.Name, Kind: id.Kind})
	}
	slices.SortFunc(s.locks, byName)
	return s, true
}

// history returns the events of a lock, latest first.
func (p *picture) history(id mirror.ID) []past {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.past.of(id)
}
