package top

import (
	"maps"
	"slices"
	"time"

	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/natslock/admin"
)

// shot is the picture at one moment.
type shot struct {
	version int
	locks   []admin.Info // by name; free ones that were held a moment ago too
	both    map[string]bool
	grants  map[show.LockID]meter
	rates   rates
	outage  outage
	failure string
	listed  bool
	ahead   time.Duration
}

// changed returns a shot if the picture is not the one of that version.
func (p *picture) changed(version int) (shot, bool) {
	p.mu.Lock()
	maps.DeleteFunc(p.freed, func(_ show.LockID, at time.Time) bool {
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
	s := shot{
		version: p.version, locks: slices.Collect(maps.Values(p.locks)), grants: maps.Clone(p.grants), rates: p.rates,
		outage: p.outage, failure: p.failure, listed: p.listed, ahead: p.ahead,
	}
	free := slices.Collect(maps.Keys(p.freed))
	p.mu.Unlock()
	s.both = show.BothKinds(s.locks)
	for _, id := range free {
		s.locks = append(s.locks, admin.Info{Name: id.Name, Kind: id.Kind})
	}
	slices.SortFunc(s.locks, byName)
	return s, true
}

// history returns the events of a lock, latest first.
func (p *picture) history(id show.LockID) []past {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.past.of(id)
}

// over says whether a lease has ended by the server's clock. Its holder has lost the lock,
// or has renewed it and top does not know.
func (s shot) over(h admin.Holder) bool {
	return h.Overdue || !h.Expires.IsZero() && !time.Now().Add(s.ahead).Before(h.Expires)
}

// held says whether a lease of the lock goes on.
func (s shot) held(info admin.Info) bool {
	goesOn := func(h admin.Holder) bool { return !s.over(h) }
	return info.Holder != nil && goesOn(*info.Holder) || slices.ContainsFunc(show.Together(info), goesOn)
}

// totals are what there is of all locks.
type totals struct {
	locks, held, waiting int
	waits                time.Time // since when the first of the waiters waits; zero: nobody waits
}

func (s shot) totals() (t totals) {
	for _, info := range s.locks {
		if !show.IsFree(info) {
			t.locks++
		}
		if s.held(info) {
			t.held++
		}
		t.waiting += info.Waiting()
		if w := show.WaitsSince(info); !w.IsZero() && (t.waits.IsZero() || w.Before(t.waits)) {
			t.waits = w
		}
	}
	return t
}

func byName(a, b admin.Info) int { return show.IDOf(a).Compare(show.IDOf(b)) }
