package faults_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/proxy"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// TestFullBucket checks that a full single-server bucket refuses new locks but never ends a lease.
// A server accepts a replacement that is no larger than the old record, so the record of a lease
// keeps the size it had when granted.
func TestFullBucket(t *testing.T) {
	for name, opts := range map[string][]natslock.LockOption{
		"plain": {natslock.TTL(time.Second)}, "linger": {natslock.TTL(time.Second), natslock.Linger(time.Hour)},
		"meta": {natslock.TTL(time.Second), natslock.Meta(map[string]string{"a": "b"})},
	} {
		t.Run(name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				c := kit.Join(t, s, natslock.WithBucketConfig(kvstore.Config{MaxBytes: 64 << 10}))
				l := kit.Must(t, c.Lock, "l", opts...)
				r := kit.NewRaw(t, s.Connect())
				for size := 4096; size > 0; size /= 2 {
					for i := 0; ; i++ {
						if _, err := r.JS.Publish(t.Context(), fmt.Sprintf("%slock.fill.%d.%d", kit.Subjects, size, i), make([]byte, size)); err != nil {
							break
						}
					}
				}
				_, err := c.TryLock(t.Context(), "other")
				require.ErrorIs(t, err, natslock.ErrUnavailable)
				time.Sleep(3 * time.Minute) // 540 renewals
				kit.WantHeld(t, l)
				require.NoError(t, l.Unlock(context.Background()))
			})
		})
	}
}

// TestFullReplicas checks that clients notice when a bucket with replicas is filling up. Each
// renewal counts in full there, so they stop taking locks before the bucket is full, and continue
// once there is room.
func TestFullReplicas(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		const limit = 64 << 10
		var used, asked atomic.Int64
		js := proxy.JetStream(t, s, func(nc *nats.Conn, m *nats.Msg) bool {
			return strings.Contains(m.Subject, ".STREAM.INFO.") && proxy.Rewrite(t, nc, m, func(info map[string]any) {
				asReplica(info, "n1", false)
				info["config"].(map[string]any)["num_replicas"] = 3
				used.Store(int64(info["state"].(map[string]any)["bytes"].(float64)))
				asked.Add(1)
			})
		})
		kit.Join(t, s, natslock.WithBucketConfig(kvstore.Config{MaxBytes: limit})) // creates the bucket
		c := kit.NewClient(t, js.Conn(), natslock.WithJetStream(js), natslock.WithTTL(time.Hour))
		first := kit.Must(t, c.Lock, "first")
		var held []*natslock.Lock
		for i := 0; ; i++ {
			l, err := c.TryLock(t.Context(), fmt.Sprint(i), natslock.Detached())
			if err != nil {
				require.ErrorIs(t, err, natslock.ErrUnavailable)
				require.ErrorIs(t, err, kvstore.ErrFull)
				break
			}
			kit.Keep(t, l)
			held = append(held, l)
			time.Sleep(time.Millisecond) // lets the client verify the bucket
		}
		require.Greater(t, used.Load(), int64(limit/4*3))
		require.Less(t, used.Load(), int64(limit/8*7))
		require.ErrorIs(t, c.Healthy(), kvstore.ErrFull)
		require.Less(t, asked.Load(), int64(len(held)/4), "for %d locks", len(held))

		require.NoError(t, first.Extend(t.Context(), 0), "what is held is renewed")
		_, err := c.Lock(t.Context(), "next", natslock.MaxWait(10*time.Second))
		require.ErrorIs(t, err, natslock.ErrTimeout)
		require.ErrorIs(t, err, kvstore.ErrFull)
		next := make(chan error, 1)
		go func() {
			l, err := c.Lock(t.Context(), "next")
			if err == nil {
				err = l.Unlock(t.Context())
			}
			next <- err
		}()
		for _, l := range held {
			require.NoError(t, l.Unlock(t.Context()))
		}
		begun := time.Now()
		require.NoError(t, <-next)
		require.Less(t, time.Since(begun), 10*time.Second)
		require.NoError(t, c.Healthy())
	})
}

// TestFullOfWaiters checks that a client with a place in a nearly full bucket may still claim the
// lock, because doing so makes room. A client opened at that time must take nothing.
func TestFullOfWaiters(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		const limit = 16 << 10
		var full atomic.Bool
		js := proxy.JetStream(t, s, func(nc *nats.Conn, m *nats.Msg) bool {
			return strings.Contains(m.Subject, ".STREAM.INFO.") && proxy.Rewrite(t, nc, m, func(info map[string]any) {
				asReplica(info, "n1", false)
				info["config"].(map[string]any)["num_replicas"] = 3
				if full.Load() { // by the places of other clients
					info["state"].(map[string]any)["bytes"] = limit - 1
				}
			})
		})
		kit.Join(t, s, natslock.WithBucketConfig(kvstore.Config{MaxBytes: limit})) // creates the bucket
		l := kit.Must(t, kit.NewClient(t, js.Conn(), natslock.WithJetStream(js)).Lock, "l")
		waiter := kit.NewClient(t, js.Conn(), natslock.WithJetStream(js))
		got := make(chan error, 1)
		go func() {
			l, err := waiter.Lock(t.Context(), "l", natslock.MaxWait(10*time.Minute))
			if err == nil {
				err = l.Unlock(t.Context())
			}
			got <- err
		}()
		time.Sleep(time.Second) // long enough for it to get a place
		full.Store(true)
		time.Sleep(5 * time.Minute) // long enough for the bucket to be verified
		require.ErrorIs(t, waiter.Healthy(), kvstore.ErrFull)
		late := kit.NewClient(t, js.Conn(), natslock.WithJetStream(js))
		require.ErrorIs(t, late.Healthy(), kvstore.ErrFull)
		_, err := late.TryLock(t.Context(), "other")
		require.ErrorIs(t, err, kvstore.ErrFull)
		require.NoError(t, l.Unlock(t.Context()))
		require.NoError(t, <-got)
	})
}

// errFull is the error with which a full bucket refuses a write.
var errFull = fmt.Errorf("%w: %w: maximum bytes exceeded", kvstore.ErrUnavailable, kvstore.ErrFull)

// TestNoRoom checks that a waiter repeats a claim that finds no room, now and then gives up its
// place, and takes its time over both.
func TestNoRoom(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		l := kit.Must(t, kit.Join(t, s).Lock, "l")
		m, f := kit.JoinFaulty(t, s)
		w := m.Await(t, "l")
		time.Sleep(time.Second)
		var mu sync.Mutex
		refused, places := 0, 0
		f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
			mu.Lock()
			defer mu.Unlock()
			switch {
			case w.Key == "lock.l" && !w.Delete && refused < 12:
				refused++
				return faults.Refuse(errFull)
			case strings.HasPrefix(w.Key, "wait.l.") && !w.Delete:
				b, err := record.Decode(w.Value)
				assert.NoError(t, err)
				if b.Renewal == 0 {
					places++
				}
			}
			return faults.Fate{}
		})
		begun := time.Now()
		kit.Unlock(t, l)
		kit.Unlock(t, w.Granted(t))
		mu.Lock()
		defer mu.Unlock()
		require.Equal(t, 3, places, "one for each four refusals")
		require.Greater(t, time.Since(begun), 500*time.Millisecond)
	})
}

// twoAtOnePlace has two goroutines wait for the lock "l" at the same place.
func twoAtOnePlace(t *testing.T, m *kit.Member, f *faults.Store) (one, two *kit.Waiting) {
	f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
		if w.Key == "lock.l" {
			return faults.Delay(100 * time.Millisecond)
		}
		return faults.Fate{}
	})
	one = m.Begin(t, "l")
	time.Sleep(10 * time.Millisecond)
	two = m.Begin(t, "l") // while the first goroutine's claim is unanswered
	time.Sleep(time.Second)
	return one, two
}

// TestNoRoomForTheNext checks that when the first goroutine gives up, the next one waits for room
// just as the first did.
func TestNoRoomForTheNext(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		l := kit.Must(t, kit.Join(t, s).Lock, "l")
		m, f := kit.JoinFaulty(t, s)
		one, two := twoAtOnePlace(t, m, f)
		var full atomic.Bool
		full.Store(true)
		f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
			if full.Load() && !w.Delete && w.Expect != kvstore.NoRevision {
				if b, err := record.Decode(w.Value); err == nil && b.Renewal == 0 {
					return faults.Refuse(errFull)
				}
			}
			return faults.Fate{}
		})
		time.Sleep(time.Second)
		other := m.Begin(t, "l", natslock.TTL(20*time.Second)) // joins another cohort, which gets no place
		time.Sleep(time.Second)
		kit.Unlock(t, l)
		time.Sleep(time.Second)
		one.Cancel(errors.New("gave up"))
		require.ErrorIs(t, one.Failed(t), kvstore.ErrFull)
		time.Sleep(10 * time.Second)
		require.False(t, two.Over())
		full.Store(false)
		time.Sleep(10 * time.Second)
		first, second := two, other
		if other.Over() {
			first, second = other, two
		}
		kit.Unlock(t, first.Granted(t))
		kit.Unlock(t, second.Granted(t))
	})
}

// TestNoRoomOnce checks that a waiter that has given up its place can reuse the room, even if the
// bucket has none for newcomers.
func TestNoRoomOnce(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		l := kit.Must(t, kit.Join(t, s, natslock.WithBucketConfig(kvstore.Config{MaxBytes: 64 << 10})).Lock, "l")
		m, f := kit.JoinFaulty(t, s)
		w := m.Await(t, "l")
		r := kit.NewRaw(t, s.Connect())
		for i := range 100 { // other clients' locks, 62 of 64 KiB
			_, err := r.JS.Publish(t.Context(), fmt.Sprintf("%slock.fill.%d", kit.Subjects, i), make([]byte, 575))
			require.NoError(t, err)
		}
		time.Sleep(10 * time.Minute) // long enough for the bucket to be verified
		require.ErrorIs(t, m.Healthy(), kvstore.ErrFull)
		var refused atomic.Int32
		f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
			if w.Key == "lock.l" && !w.Delete && refused.Add(1) <= 5 {
				return faults.Refuse(errFull)
			}
			return faults.Fate{}
		})
		kit.Unlock(t, l)
		kit.Unlock(t, w.Granted(t))
	})
}

// TestNoRoomPause checks that when the first goroutine gives up while its client has no place, the
// next one queues instead of claiming past others, and does not keep the client's other cohorts
// from queueing.
func TestNoRoomPause(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		l := kit.Must(t, kit.Join(t, s).Lock, "l")
		m, f := kit.JoinFaulty(t, s)
		one, two := twoAtOnePlace(t, m, f)
		var mu sync.Mutex
		full, refused, places := true, 0, 0
		fourth := make(chan struct{})
		f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
			mu.Lock()
			defer mu.Unlock()
			switch {
			case w.Key == "lock.l" && !w.Delete && w.Expect != kvstore.NoRevision && full:
				if refused++; refused == 4 {
					close(fourth)
				}
				return faults.Refuse(errFull)
			case strings.HasPrefix(w.Key, "wait.l.") && !w.Delete:
				if b, err := record.Decode(w.Value); err == nil && b.Renewal == 0 {
					places++
				}
			}
			return faults.Fate{}
		})
		kit.Unlock(t, l)
		<-fourth
		time.Sleep(5 * time.Millisecond) // by now the client has given up its place
		one.Cancel(errors.New("gave up"))
		_ = one.Failed(t)
		three := m.Begin(t, "l", natslock.TTL(20*time.Second)) // joins another cohort
		time.Sleep(12 * time.Second)
		mu.Lock()
		require.GreaterOrEqual(t, places, 2, "one for each cohort")
		full = false
		mu.Unlock()
		time.Sleep(10 * time.Second)
		first, second := two, three
		if three.Over() {
			first, second = three, two
		}
		kit.Unlock(t, first.Granted(t))
		kit.Unlock(t, second.Granted(t))
	})
}
