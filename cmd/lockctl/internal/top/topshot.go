package top

import (
	"slices"
	"time"

	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/internal/mirror"
	"github.com/natslock/locks/natslock/admin"
)

// over reports whether a lease has ended by the server's clock. In that case, the holder has
// lost the lock or has renewed the lease without top knowing.
func (s shot) over(h admin.Holder) bool {
	return h.Overdue || !h.Expires.IsZero() && !time.Now().Add(s.ahead).Before(h.Expires)
}

// held reports whether any of the lock's leases is still running.
func (s shot) held(info admin.Info) bool {
	goesOn := func(h admin.Holder) bool { return !s.over(h) }
	return info.Holder != nil && goesOn(*info.Holder) || slices.ContainsFunc(show.Together(info), goesOn)
}

// totals summarizes all locks.
type totals struct {
	locks, held, waiting int
	waits                time.Time // when the first waiter began to wait; zero without waiters
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

func byName(a, b admin.Info) int { return mirror.IDOf(a).Compare(mirror.IDOf(b)) }
