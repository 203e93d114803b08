package topologies_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/verify/history"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

// handedOver limits a hand-over with a notification. Without one it takes up to 6 s.
const handedOver = 2 * time.Second

// byTimers limits a hand-over without a notification. A waiter reads the lock about every 5 s.
const byTimers = 8 * time.Second

// deadFor limits how long a dead holder with a TTL of 3 s keeps others out. It is well below the
// 15 s of a waiter's place or of the default TTL. Tests in fake time check the exact limit, half a
// second more than the TTL.
const deadFor = 7 * time.Second

func uncontended(t *testing.T, n network) {
	ref := history.NewRecorder()
	for _, p := range n.places {
		u := at(t, p, n.opts...)
		for range 3 {
			l := kit.Must(t, u.Lock, "free")
			ref.Granted(admin.KindMutex, admin.Exclusive, l)
			require.NoError(t, l.Err())
			kit.Unlock(t, l)
			require.ErrorIs(t, l.Err(), natslock.ErrReleased)
		}
	}
	history.Verify(t, ref.History(), history.Options{Least: map[string]int{"grants": 3 * len(n.places)}})
}

func oneShot(t *testing.T, n network) {
	near, far := at(t, n.places[0], n.opts...), at(t, n.last(), n.opts...)
	ref := history.NewRecorder()
	l := kit.Must(t, near.TryLock, "once")
	ref.Granted(admin.KindMutex, admin.Exclusive, l)
	_, err := far.TryLock(t.Context(), "once")
	var locked *natslock.LockedError
	require.ErrorAs(t, err, &locked)
	require.Equal(t, n.places[0].name, locked.Holder.Owner)
	require.Equal(t, l.Token(), locked.Holder.Token)
	kit.Unlock(t, l)
	l = kit.Must(t, far.TryLock, "once")
	ref.Granted(admin.KindMutex, admin.Exclusive, l)
	kit.Unlock(t, l)
	history.Verify(t, ref.History(), history.Options{Least: map[string]int{"grants": 2}})
}

// handOver has a holder at one place and waiters at others. They get the lock in order of arrival,
// each by a notification and not by its timers. Without notifications a waiter that sees the lock
// idle may pass another, so there is only one waiter then.
func handOver(t *testing.T, n network) {
	ref := history.NewRecorder()
	waiters := 3
	if n.silent {
		waiters = 1
	}
	var queue []*kit.Waiting
	var users []*user
	holder := kit.Must(t, at(t, n.places[0], n.opts...).Lock, "line")
	ref.Granted(admin.KindMutex, admin.Exclusive, holder)
	for i := range waiters {
		u := at(t, n.place(i+1), n.opts...)
		users = append(users, u)
		queue = append(queue, u.await(t, u.Lock, "line"))
	}
	for i, next := range queue {
		users[i].io.patient(t, "lock", "line")
		for j, later := range queue[i:] {
			require.False(t, later.Over(), "waiter %d is in before %d", i+j, i)
		}
		before := users[i].io.notices()
		released := time.Now()
		kit.Unlock(t, holder)
		holder = next.Granted(t)
		ref.Granted(admin.KindMutex, admin.Exclusive, holder)
		took := next.At.Sub(released)
		t.Logf("to %s: %v", n.place(i+1).name, took)
		if n.silent {
			require.Zero(t, users[i].io.notices())
			require.Less(t, took, byTimers)
		} else {
			require.Less(t, took, handedOver)
			require.Greater(t, users[i].io.notices(), before)
		}
	}
	kit.Unlock(t, holder)
	history.Verify(t, ref.History(), history.Options{Least: map[string]int{"grants": 1 + waiters}})
}

func boundedWait(t *testing.T, n network) {
	near, far := at(t, n.places[0], n.opts...), at(t, n.last(), n.opts...)
	l := kit.Must(t, near.Lock, "bound")
	_, err := far.Lock(t.Context(), "bound", natslock.MaxWait(time.Second))
	var timeout *natslock.TimeoutError
	require.ErrorAs(t, err, &timeout)
	if timeout.Holder != nil { // known only after a read
		require.Equal(t, n.places[0].name, timeout.Holder.Owner)
	}
	require.Less(t, timeout.Waited, 10*time.Second)
	kit.Eventually(t, "it has left the queue", func() bool {
		info, err := admin.New(near.Client).Inspect(t.Context(), admin.KindMutex, "bound")
		return err == nil && len(info.Queue) == 0
	})
	kit.Unlock(t, l)
}

// breaking has an operator at another place break a lock. The holder is notified immediately, and
// nobody gets in before the holder has stopped.
func breaking(t *testing.T, n network) {
	holder, operator := at(t, n.last(), n.opts...), at(t, n.places[0], n.opts...)
	l := kit.Must(t, holder.Lock, "broken")
	holder.listening(t, n)
	begun := time.Now()
	require.NoError(t, admin.New(operator.Client).Break(t.Context(), admin.BreakRequest{Kind: admin.KindMutex, Name: "broken", ID: l.ID(), Reason: "a story"}))
	kit.Receive(t, l.Context().Done(), "the end of the lock")
	took := time.Since(begun)
	t.Logf("notified in %v", took)
	if n.silent {
		require.Less(t, took, byTimers, "at its next renewal")
	} else {
		require.Less(t, took, handedOver)
	}
	require.ErrorIs(t, l.Err(), natslock.ErrBroken)
	_, err := operator.TryLock(t.Context(), "broken")
	require.ErrorIs(t, err, natslock.ErrLocked)
	require.ErrorIs(t, l.Unlock(t.Context()), natslock.ErrBroken)
	kit.Unlock(t, kit.Must(t, operator.Lock, "broken"))
}

// deleted checks that a holder whose record is deleted by hand is notified immediately.
func deleted(t *testing.T, n network) {
	holder := at(t, n.last(), n.opts...)
	l := kit.Must(t, holder.Lock, "deleted")
	holder.listening(t, n)
	nc := n.places[0].connect()
	by, err := n.places[0].open(nc)
	require.NoError(t, err)
	defer by.Close()
	r, err := by.Get(t.Context(), "lock.deleted", record.TokenRevision(l.Token()))
	require.NoError(t, err)
	begun := time.Now()
	_, err = by.Delete(t.Context(), "lock.deleted", r.Revision)
	for errIs(err, kvstore.ErrConflict, kvstore.ErrInFlight) { // the record was renewed or is being replicated
		r, err = by.Get(t.Context(), "lock.deleted", r.Revision)
		require.NoError(t, err)
		_, err = by.Delete(t.Context(), "lock.deleted", r.Revision)
	}
	require.NoError(t, err)
	kit.Receive(t, l.Context().Done(), "the end of the lock")
	took := time.Since(begun)
	if n.silent {
		require.Less(t, took, byTimers, "at its next renewal")
	} else {
		require.Less(t, took, handedOver)
	}
	require.ErrorIs(t, l.Err(), natslock.ErrLost)
	require.NotErrorIs(t, l.Err(), natslock.ErrBroken)
	require.ErrorIs(t, l.Unlock(t.Context()), natslock.ErrLost)
}

// gone checks that a holder whose connection has ended keeps others out for its TTL but no longer.
func gone(t *testing.T, n network) {
	ref := history.NewRecorder()
	dead, next := at(t, n.places[0], n.opts...), at(t, n.last(), n.opts...)
	l := kit.Must(t, dead.Lock, "gone", natslock.TTL(3*time.Second))
	ref.Granted(admin.KindMutex, admin.Exclusive, l)
	w := next.await(t, next.Lock, "gone")
	dead.nc.Close()
	closed := time.Now()
	got := w.Granted(t)
	ref.Granted(admin.KindMutex, admin.Exclusive, got)
	took := w.At.Sub(closed)
	t.Logf("after %v", took)
	require.Less(t, took, deadFor)
	require.ErrorIs(t, l.Err(), natslock.ErrLost)
	kit.Unlock(t, got)
	history.Verify(t, ref.History(), history.Options{Least: map[string]int{"grants": 2}})
}

// renewing checks that leases outlive their TTL several times over. The TTL is long enough for a
// busy machine, which may delay a renewal by a second.
func renewing(t *testing.T, n network) {
	const ttl = 3 * time.Second
	u := at(t, n.last(), n.opts...)
	l := kit.Must(t, u.Lock, "kept", natslock.TTL(ttl))
	r := kit.Must(t, u.rw.RLock, "kept_reading", natslock.TTL(ttl))
	begun := time.Now()
	select {
	case <-l.Context().Done():
		t.Fatalf("after %v: %v", time.Since(begun), l.Err())
	case <-r.Context().Done():
		t.Fatalf("after %v: %v", time.Since(begun), r.Err())
	case <-time.After(3 * ttl):
	}
	for _, name := range []string{"kept", "kept_reading"} {
		kit.Eventually(t, "three renewals", func() bool { return u.rec.Count(admin.EventRenewed, name) >= 3 })
	}
	kit.Unlock(t, l)
	kit.Unlock(t, r)
	if n.silent {
		require.Equal(t, 1, strings.Count(u.log.String(), "no notification of a change has ever arrived"))
	} else {
		require.NotContains(t, u.log.String(), "no notification")
	}
}

// inspecting checks that Inspect, List and Watch report locks that are held and waited for at other
// places.
func inspecting(t *testing.T, n network) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	near, far := at(t, n.places[0], n.opts...), at(t, n.last(), n.opts...)
	var mu sync.Mutex
	seen := map[admin.EventType]int{}
	var wg sync.WaitGroup
	wg.Go(func() {
		for ev, err := range admin.New(far.Client).Watch(ctx, "seen") {
			if !assert.NoError(t, err) {
				return
			}
			mu.Lock()
			seen[ev.Type]++
			mu.Unlock()
		}
	})
	defer wg.Wait()
	defer cancel()
	saw := func(typ admin.EventType) bool {
		mu.Lock()
		defer mu.Unlock()
		return seen[typ] > 0
	}
	if !n.silent {
		// Watch does not report when it has begun.
		kit.Eventually(t, "the watch is on", func() bool {
			kit.Unlock(t, kit.Must(t, near.Lock, "seen"))
			return saw(admin.EventGranted) && saw(admin.EventReleased)
		})
	}
	l := kit.Must(t, near.Lock, "seen", natslock.Meta(map[string]string{"job": "j"}))
	w := far.await(t, far.Lock, "seen")
	read := kit.Must(t, near.rw.RLock, "seen_rw")

	var info admin.Info
	kit.Eventually(t, "its holder", func() (there bool) { // takes less than a second on an idle machine
		var err error
		info, err = admin.New(far.Client).Inspect(ctx, admin.KindMutex, "seen")
		return err == nil && info.Holder != nil && info.Holder.Token == l.Token()
	})
	require.Equal(t, "j", info.Holder.Meta["job"])
	kit.Eventually(t, "its queue", func() bool { // a replica may lag
		info, err := admin.New(far.Client).Inspect(ctx, admin.KindMutex, "seen")
		return err == nil && len(info.Queue) == 1
	})
	kit.Eventually(t, "both are listed", func() bool {
		found := 0
		for info, err := range admin.New(far.Client).List(ctx, "*") {
			require.NoError(t, err)
			switch info.Name {
			case "seen":
				found += len(info.Queue)
			case "seen_rw":
				found += len(info.Readers)
			}
		}
		return found == 2
	})
	kit.Unlock(t, l)
	kit.Unlock(t, w.Granted(t))
	kit.Unlock(t, read)
	if !n.silent {
		kit.Eventually(t, "the watch reports the queue", func() bool { return saw(admin.EventQueued) })
	}
}

// counting has clients at all places concurrently increment a number that only the lock guards.
func counting(t *testing.T, n network) {
	ref := history.NewRecorder()
	count := 0
	var wg sync.WaitGroup
	const goroutines, rounds = 4, 4
	for i := range goroutines {
		u := at(t, n.place(i), n.opts...)
		wg.Go(func() {
			for range rounds {
				assert.NoError(t, u.Do(context.WithoutCancel(t.Context()), "count", func(_ context.Context, l *natslock.Lock) error {
					ref.Granted(admin.KindMutex, admin.Exclusive, l)
					count++
					return nil
				}), fmt.Sprint(i))
			}
		})
	}
	wg.Wait()
	require.Equal(t, goroutines*rounds, count)
	history.Verify(t, ref.History(), history.Options{Least: map[string]int{"grants": goroutines * rounds}})
}
