package natslock_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/rwlock"
	"github.com/natslock/locks/testutil"
)

// open reports whether, as far as the holder has been notified, nobody waits for the lock.
func open(l *natslock.Lock) bool {
	contended := l.Contended()
	synctest.Wait()
	select {
	case <-contended:
		return false
	default:
		return true
	}
}

// TestContended checks that a holder is notified of every waiting client and goroutine, however the
// lock was acquired, and whether the waiter arrives before or after the first call of Contended.
// This takes no timer, because the bubble's clock does not move.
func TestContended(t *testing.T) {
	for name, held := range map[string]func(c *natslock.Client) kit.Taking{"lock": kit.Mutex, "try": kit.TryMutex, "writer": kit.Writer, "try writer": kit.TryWriter, "reader": kit.Reader} {
		for _, other := range []bool{false, true} {
			for _, before := range []bool{false, true} {
				t.Run(name+map[bool]string{false: ", sibling", true: ", stranger"}[other]+map[bool]string{false: " after", true: " before"}[before], func(t *testing.T) {
					testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
						c := kit.Join(t, s)
						waiter := c
						if other {
							waiter = kit.Join(t, s)
						}
						wait := kit.Mutex
						if name != "lock" && name != "try" {
							wait = kit.Writer
						}
						l, err := held(c.Client)(t.Context(), "l")
						require.NoError(t, err)
						if !before {
							require.True(t, open(l))
							require.True(t, open(l))
						}
						ctx, cancel := context.WithCancel(t.Context())
						done := make(chan error, 1)
						go func() {
							_, err := wait(waiter.Client)(ctx, "l")
							done <- err
						}()
						synctest.Wait()
						begun := time.Now()
						kit.Receive(t, l.Contended(), "a waiter")
						require.Zero(t, time.Since(begun))
						kit.WantHeld(t, l)
						cancel()
						require.Error(t, <-done)
						require.False(t, open(l), "once closed it stays so")
						kit.Unlock(t, l)
						require.False(t, open(l))
						require.Nil(t, new(natslock.Lock).Contended())
					})
				})
			}
		}
	}
}

// TestContendedByNobody checks that neither a TryLock nor a reader next to another reader counts as
// waiting. Contended costs one subscription, its proof and one listing. The subscription ends with
// the lock.
func TestContendedByNobody(t *testing.T) {
	const ttl = 15 * time.Minute
	for name, held := range map[string]func(c *natslock.Client) kit.Taking{"lock": kit.Mutex, "try": kit.TryMutex, "reader": kit.Reader} {
		for _, lost := range []bool{false, true} {
			t.Run(name+map[bool]string{false: ", unlocked", true: ", lost"}[lost], func(t *testing.T) {
				testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
					c, other := kit.Join(t, s, natslock.WithTuning(natslock.Tuning{WatchAfter: -1})), kit.Join(t, s)
					l, err := held(c.Client)(t.Context(), "l", natslock.TTL(ttl))
					require.NoError(t, err)
					subs, out := c.NC.NumSubscriptions(), c.NC.Stats().OutMsgs
					require.True(t, open(l))
					want := 1
					if name == "reader" {
						want = 2
					}
					require.Equal(t, subs+want, c.NC.NumSubscriptions())
					require.LessOrEqual(t, c.NC.Stats().OutMsgs, out+3)
					if name == "reader" {
						beside, err := rwlock.New(other.Client).RLock(t.Context(), "l")
						require.NoError(t, err)
						defer func() { _ = beside.Unlock(context.Background()) }()
						sibling, err := rwlock.New(c.Client).RLock(t.Context(), "l", natslock.TTL(ttl))
						require.NoError(t, err)
						kit.Unlock(t, sibling)
						require.True(t, open(sibling))
					} else {
						_, err := other.TryLock(t.Context(), "l")
						require.ErrorIs(t, err, natslock.ErrLocked)
						_, err = c.TryLock(t.Context(), "l")
						require.ErrorIs(t, err, natslock.ErrLocked)
					}
					out = c.NC.Stats().OutMsgs
					time.Sleep(4 * time.Minute) // before the next check of the bucket and the first renewal
					require.True(t, open(l))
					require.Equal(t, out, c.NC.Stats().OutMsgs)
					if lost {
						s.Stop()
						time.Sleep(2 * ttl)
						synctest.Wait()
						require.ErrorIs(t, l.Err(), natslock.ErrLost)
					} else {
						kit.Unlock(t, l)
						synctest.Wait()
					}
					require.True(t, open(l))
					require.Equal(t, subs, c.NC.NumSubscriptions())
				})
			})
		}
	}
}

// TestContendedLateNews covers waiters whose notification was lost, or that queued before the
// holder's client subscribed. The holder learns of them from the listing, or when they next renew
// their place.
func TestContendedLateNews(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, f := kit.JoinFaulty(t, s)
		other := kit.Join(t, s)
		f.DropEvents(func(ev kvstore.Event) bool {
			body, err := record.Decode(ev.Record.Value)
			return err == nil && body.Status == record.StatusWaiting && body.Renewal == 0
		})
		l := kit.Must(t, c.Lock, "l")
		require.True(t, open(l))
		begun := time.Now()
		other.Await(t, "l")
		require.True(t, open(l))
		kit.Receive(t, l.Contended(), "a renewal of the place")
		require.LessOrEqual(t, time.Since(begun), 5*time.Second)
		kit.Unlock(t, l)

		f.DropAllEvents(true)
		l = kit.Must(t, c.Lock, "m")
		other.Await(t, "m")
		require.False(t, open(l), "by the list")
		kit.Unlock(t, l)
	})
}

// TestContendedInRun checks that goroutines of a client that pass a lock on among themselves are
// each notified individually.
func TestContendedInRun(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		l := kit.Must(t, c.Lock, "l")
		second, third := c.Await(t, "l"), c.Await(t, "l")
		require.False(t, open(l))
		kit.Unlock(t, l)
		require.False(t, open(second.Granted(t)), "the third one waits")
		kit.Unlock(t, second.Value)
		require.True(t, open(third.Granted(t)))
		kit.Join(t, s).Await(t, "l")
		require.False(t, open(third.Value))
		kit.Unlock(t, third.Value)
	})
}

// TestContendedSoon checks in real time that a holder is notified within 2 ms of a waiter's place
// reaching another connection. It uses the median, because the machine may be busy.
func TestContendedSoon(t *testing.T) {
	const rounds, most = 40, 2 * time.Millisecond
	s := testutil.RunServer(t)
	// The holder does not watch its lease. On a busy machine the test can outlast the second after
	// which a client starts watching, which would disturb the subscription count.
	holder, waiter := kit.Join(t, s, natslock.WithTuning(natslock.Tuning{WatchAfter: -1})), kit.Join(t, s)
	written := make(chan time.Time, 100)
	nc := s.Connect()
	_, err := nc.Subscribe(kit.Subjects+"wait.>", func(m *nats.Msg) {
		if len(m.Data) > 0 {
			written <- time.Now()
		}
	})
	require.NoError(t, err)
	require.NoError(t, nc.Flush())
	warm := kit.Must(t, holder.Lock, "warm")
	subs := holder.NC.NumSubscriptions()
	subscribed := func(n int) {
		t.Helper()
		require.Eventually(t, func() bool { return holder.NC.NumSubscriptions() == n }, kit.Patience, time.Millisecond)
	}
	var late []time.Duration
	for i := range rounds {
		name := fmt.Sprint("l", i)
		l := kit.Must(t, holder.Lock, name)
		contended, notified := l.Contended(), make(chan time.Time, 1)
		subscribed(subs + 1)
		go func() {
			<-contended
			notified <- time.Now()
		}()
		w := waiter.Await(t, name)
		late = append(late, kit.Receive(t, notified, "a waiter").Sub(kit.Receive(t, written, "a place")))
		w.Cancel(nil)
		<-w.Done
		kit.Unlock(t, l)
		subscribed(subs)
		for len(written) > 0 {
			<-written
		}
	}
	kit.Unlock(t, warm)
	slices.Sort(late)
	t.Logf("notified %v after the place, at the median; %v at most", late[rounds/2], late[rounds-1])
	require.LessOrEqual(t, late[rounds/2], most)
}
