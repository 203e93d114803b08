package page

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/mirror"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

// source is a source whose locks are set by a test.
type source struct {
	mu    sync.Mutex
	hub   *Hub // nil if there is none yet
	locks map[mirror.ID]admin.Info
	state mirror.State
}

func newSource() *source {
	return &source{locks: map[mirror.ID]admin.Info{}, state: mirror.State{Condition: mirror.Live}}
}

func (s *source) set(name string, h *admin.Holder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := mirror.ID{Name: name}
	s.locks[id] = admin.Info{Name: name, Holder: h}
	if h == nil {
		delete(s.locks, id)
	}
	if s.hub != nil {
		s.hub.Changed(id)
	}
}

// fail makes the source lose its leader because of err, or makes it live again if err is nil.
func (s *source) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = mirror.State{Condition: mirror.Live}
	if err != nil {
		s.state = mirror.State{Condition: mirror.NoLeader, Since: time.UnixMilli(1), Why: err}
	}
}

func (s *source) Lock(id mirror.ID) admin.Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	if info, found := s.locks[id]; found {
		return info
	}
	return admin.Info{Kind: id.Kind, Name: id.Name}
}

func (s *source) Below(prefix string) (infos []admin.Info) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, info := range s.locks {
		if strings.HasPrefix(id.Name, prefix) {
			infos = append(infos, info)
		}
	}
	return infos
}

func (s *source) State() mirror.State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

func (s *source) Ahead() time.Duration { return 0 }

func (s *source) Client() *natslock.Client { return nil }

// running returns a hub that runs until the test ends.
func running(t *testing.T, s *source) *Hub {
	t.Helper()
	h := NewHub(s, About{Bucket: "natslock", Names: ">"})
	s.mu.Lock()
	s.hub = h
	s.mu.Unlock()
	ctx, end := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() { h.Run(ctx) })
	t.Cleanup(func() { end(); run.Wait() })
	return h
}

func follows(t *testing.T, h *Hub, lock *mirror.ID) *viewer {
	t.Helper()
	v, err := h.watch(lock)
	require.NoError(t, err)
	t.Cleanup(v.leave)
	return v
}

// next returns the next update.
func next(t *testing.T, v *viewer) (up update) {
	t.Helper()
	text, last := v.receive(t.Context())
	require.Equal(t, "data: ", string(text[:6]))
	require.Equal(t, "\n\n", string(text[len(text)-2:]))
	require.NoError(t, json.Unmarshal(text[6:], &up))
	require.Equal(t, last, up.Bye != "")
	return up
}

func names(rows []row) map[string]uint64 {
	all := map[string]uint64{}
	for _, r := range rows {
		all[r.Name] = r.ID
	}
	return all
}

// TestUpdates checks that a viewer first gets everything and then only changes, at most twice a
// second.
func TestUpdates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource()
		a, b := held("web"), held("worker")
		s.set("a", &a)
		s.set("b", &b)
		h := running(t, s)
		h.Event(event(admin.EventGranted, "before", 0))
		v := follows(t, h, nil)
		begun := time.Now()
		first := next(t, v)
		require.True(t, first.All)
		require.Equal(t, &About{Bucket: "natslock", Names: ">"}, first.About)
		require.Len(t, first.Rows, 2)
		require.Len(t, first.Lines, 1)
		ids := names(first.Rows)

		// A renewed lock appears with only its new expiry, an unchanged lock not at all, and a
		// released lock with only its ID.
		later := a
		later.Expires = later.Expires.Add(time.Minute)
		s.set("a", &later)
		s.set("b", nil)
		s.set("c", nil) // the viewer has never seen it
		second := next(t, v)
		require.Equal(t, pace, time.Since(begun))
		require.False(t, second.All)
		require.Empty(t, second.Rows)
		require.Equal(t, [][2]int64{{int64(ids["a"]), later.Expires.UnixMilli()}}, second.Due)
		require.Equal(t, []uint64{ids["b"]}, second.Gone)

		// A thousand events are merged into one update, which counts the events that it omits.
		for i := range 1000 {
			h.Event(event(admin.EventGranted, fmt.Sprint(i), 0))
			s.set("b", &b)
		}
		s.set("a", &later)
		third := next(t, v)
		require.Len(t, third.Rows, 1)
		require.NotEqual(t, ids["b"], third.Rows[0].ID, "an id is not used again")
		require.Empty(t, third.Due)
		require.Len(t, third.Lines, mostEvents)
		require.Equal(t, 1000-mostEvents, third.Left)

		// Without any changes, the viewer still gets an empty update.
		quiet := time.Now()
		fourth := next(t, v)
		require.Equal(t, beat, time.Since(quiet))
		require.Empty(t, fourth.Rows)
		require.Equal(t, time.Now().UnixMilli(), fourth.Now)

		// A viewer that joins now starts with everything and gets each earlier event once.
		h.Event(event(admin.EventExpired, "pending", 0))
		w := follows(t, h, nil)
		before := next(t, w).Lines
		require.Len(t, before, recent)
		require.NotEqual(t, "expired", before[recent-1].Event)
		require.Equal(t, "expired", next(t, w).Lines[0].Event)
	})
}

// TestOrder checks that each viewer gets the updates in order, no matter how many others read.
func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource()
		h := running(t, s)
		var reading sync.WaitGroup
		for range 3 {
			v := follows(t, h, nil)
			next(t, v)
			reading.Go(func() {
				for want := range 20 {
					up := next(t, v)
					if len(up.Rows) != 1 || up.Rows[0].Name != fmt.Sprint(want) {
						t.Errorf("update %d: %+v", want, up.Rows)
					}
				}
			})
		}
		time.Sleep(pace / 2) // avoid the moment at which the hub reads the source
		for i := range 20 {
			one := held("web")
			s.set(fmt.Sprint(i), &one)
			time.Sleep(pace)
		}
		reading.Wait()
	})
}

// TestSlowViewer checks that a viewer that does not read neither holds up others nor piles up
// updates, and starts over when it reads again.
func TestSlowViewer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource()
		h := running(t, s)
		slow, quick := follows(t, h, nil), follows(t, h, nil)
		next(t, slow)
		next(t, quick)
		for i := range 50 {
			one := held("web")
			s.set(fmt.Sprint(i), &one)
			require.Len(t, next(t, quick).Rows, 1)
			h.mu.Lock()
			require.LessOrEqual(t, len(slow.queue), mostQueued)
			h.mu.Unlock()
		}
		up := next(t, slow)
		require.True(t, up.All)
		require.Len(t, up.Rows, 50)
		s.set("0", nil)
		require.Len(t, next(t, slow).Gone, 1)
	})
}

// TestLockViewer checks the updates of a viewer that follows a single lock.
func TestLockViewer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource()
		h := running(t, s)
		v := follows(t, h, &mirror.ID{Name: "a"})
		require.Equal(t, "free", next(t, v).Lock.State)
		one, two := held("web"), held("worker")
		s.set("b", &two)
		s.set("a", &one)
		other := event(admin.EventGranted, "2", 0)
		other.Name = "b"
		h.Event(other)
		h.Event(event(admin.EventGranted, "1", 0))
		up := next(t, v)
		require.Equal(t, "held", up.Lock.State)
		require.Len(t, up.Lines, 1)
		begun := time.Now()
		s.set("b", nil)
		require.Nil(t, next(t, v).Lock)
		require.Equal(t, beat, time.Since(begun), "another lock is no news")
		require.Len(t, h.seen(mirror.ID{Name: "a"}, noon.Add(-time.Second)), 1)
	})
}

// TestLockViewerChangesWithoutEvents checks that the viewer of one lock sees a change that precedes
// its first update, and one that precedes the first table, even without an event.
func TestLockViewerChangesWithoutEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource()
		h := running(t, s)
		v := follows(t, h, &mirror.ID{Name: "a"})
		require.Equal(t, "free", next(t, v).Lock.State)
		web := held("web")
		s.set("a", &web)
		require.Equal(t, "held", next(t, v).Lock.State)
		s.set("a", nil)
		next(t, follows(t, h, nil)) // reads all rows
		require.Equal(t, "free", next(t, v).Lock.State)
	})
}

// TestHealth checks that an update says why and since when the other data is out of date.
func TestHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource()
		h := running(t, s)
		v := follows(t, h, nil)
		require.Empty(t, next(t, v).Health.Why)
		require.Empty(t, next(t, v).Health.Why)
		time.Sleep(time.Millisecond)
		current := time.Now().Add(-time.Millisecond).UnixMilli()
		s.fail(errors.New("lost the connection"))
		up := next(t, v)
		require.Equal(t, health{"no leader", 1, "lost the connection", current}, up.Health)
		require.Equal(t, current, next(t, v).Health.AsOf)
		s.fail(nil)
		up = next(t, v)
		require.Equal(t, health{State: "live", AsOf: up.Now}, up.Health)
	})
}

// TestNobodyLooks checks that a hub without viewers reads no locks and discards changes.
func TestNobodyLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource()
		h := running(t, s)
		v, err := h.watch(nil)
		require.NoError(t, err)
		next(t, v)
		v.leave()
		one := held("web")
		s.set("a", &one)
		h.Event(event(admin.EventGranted, "1", 0))
		time.Sleep(2 * pace)
		require.Empty(t, h.takeChanged())
		h.mu.Lock()
		require.Nil(t, h.rows)
		require.Empty(t, h.pending)
		h.mu.Unlock()
		require.Len(t, next(t, follows(t, h, nil)).Rows, 1)
	})
}

// TestEnd checks that the last update gives the reason why no more follow.
func TestEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := running(t, newSource())
		v := follows(t, h, nil)
		next(t, v)
		h.End("the exporter was stopped")
		h.End("again")
		require.Equal(t, "the exporter was stopped", next(t, v).Bye)
		_, err := h.watch(nil)
		require.EqualError(t, err, "the exporter was stopped")
	})
}
