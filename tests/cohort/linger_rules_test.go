package cohort_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/machine"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// lingers outlasts every test.
var lingers = natslock.Linger(time.Hour)

// listSlowly delays each list of a client by d.
func listSlowly(f *faults.Store, d time.Duration) {
	f.FailReads(func(op faults.ReadOp, _ string) error {
		if op == faults.ReadList {
			time.Sleep(d)
		}
		return nil
	})
}

// TestLingerListed checks that an idle lease is not reused before a list has shown that nobody
// waits.
func TestLingerListed(t *testing.T) {
	for _, stranger := range []bool{false, true} {
		t.Run(fmt.Sprint(stranger), func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				c, f := kit.JoinFaulty(t, s)
				other := kit.Join(t, s)
				kit.Deaf(f)
				l := kit.Must(t, c.Lock, "l", lingers)
				var queued *kit.Waiting
				if stranger {
					queued = other.Await(t, "l")
				}
				listSlowly(f, 100*time.Millisecond)
				kit.Unlock(t, l)
				begun := time.Now()
				first, second := c.Settle(t, lingers), c.Settle(t, lingers)
				given := c.Begin(t, "l", lingers, natslock.MaxWait(50*time.Millisecond))
				require.ErrorIs(t, given.Failed(t), natslock.ErrTimeout)
				require.False(t, first.Over())
				if stranger {
					l = queued.Granted(t)
					require.Less(t, l.Token(), tokenAfter(t, l, first))
					kit.Unlock(t, second.Granted(t))
					require.Greater(t, second.Value.Token(), first.Value.Token())
				} else {
					kit.Unlock(t, first.Granted(t))
					require.Equal(t, 100*time.Millisecond, time.Since(begun))
					require.Equal(t, l.Token()+1, first.Value.Token(), "the same lease")
					kit.Unlock(t, second.Granted(t))
					require.Equal(t, 1, c.Stats().Idle)
				}
				require.NoError(t, c.Close(context.Background()))
				kit.WantNothing(t, s)
			})
		})
	}
}

// tokenAfter unlocks l, lets the waiting goroutine take and release the lock, and returns that
// goroutine's token.
func tokenAfter(t *testing.T, l *natslock.Lock, w *kit.Waiting) uint64 {
	t.Helper()
	kit.Unlock(t, l)
	kit.Unlock(t, w.Granted(t))
	return w.Value.Token()
}

// TestLingerWaits checks that Close, a break and the end of the goroutine's context end the wait
// for a list, but an outage does not. If the goroutine gives up, the lease is released.
func TestLingerWaits(t *testing.T) {
	for _, end := range []string{"close", "break", "outage", "given up"} {
		t.Run(end, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				c, f := kit.JoinFaulty(t, s)
				other := kit.Join(t, s)
				l := kit.Must(t, c.Lock, "l", lingers)
				time.Sleep(10 * time.Second) // long enough for the lease to be watched
				listSlowly(f, time.Second)
				kit.Unlock(t, l)
				w := c.Settle(t, lingers)
				switch end {
				case "close":
					require.NoError(t, kit.CloseNow(c.Client))
					require.ErrorIs(t, w.Failed(t), natslock.ErrClosed)
				case "break":
					require.NoError(t, admin.New(other.Client).Break(t.Context(), admin.BreakRequest{Name: "l", ID: l.ID()}))
					kit.Unlock(t, w.Granted(t))
					require.Greater(t, w.Value.Token(), l.Token()+64, "another lease")
				case "given up":
					w.Cancel(nil)
					require.ErrorIs(t, w.Failed(t), natslock.ErrTimeout)
					time.Sleep(2 * time.Second)
					require.Zero(t, c.Stats().Idle)
					kit.WantNothing(t, s)
				case "outage":
					f.FailReads(func(op faults.ReadOp, _ string) error {
						if op == faults.ReadList {
							return kvstore.ErrUnavailable
						}
						return nil
					})
					time.Sleep(3 * time.Second)
					f.FailReads(nil)
					kit.Unlock(t, w.Granted(t))
				}
				require.NoError(t, kit.CloseNow(c.Client))
				kit.WantNothing(t, s)
			})
		})
	}
}

// TestLingerShown checks that a lease lingers only if its record says that it may. The record of a
// lease claimed by a goroutine without Linger says so after the next renewal.
func TestLingerShown(t *testing.T) {
	for _, shown := range []bool{false, true} {
		t.Run(fmt.Sprint(shown), func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				c := kit.Join(t, s)
				l := kit.Must(t, c.Lock, "l")
				w := c.Settle(t, lingers)
				again := c.Settle(t, lingers)
				kit.Unlock(t, l)
				kit.Unlock(t, w.Granted(t))
				last := again.Granted(t)
				if shown {
					time.Sleep(time.Second)
				}
				kit.Unlock(t, last)
				synctest.Wait()
				h := kit.Inspect(t, c.Client, "l").Holder
				require.Equal(t, shown, h != nil)
				if shown {
					require.True(t, h.Lingers)
				}
			})
		})
	}
}

// TestLingerOwnTry checks that TryLock reuses its own client's idle lease, if necessary after a
// list. If the list fails, the client gives up the lease.
func TestLingerOwnTry(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, f := kit.JoinFaulty(t, s)
		l := kit.Must(t, c.Lock, "l", lingers)
		listSlowly(f, 100*time.Millisecond)
		kit.Unlock(t, l)
		token := l.Token()
		for _, wait := range []time.Duration{100 * time.Millisecond, 0} {
			begun := time.Now()
			l, err := c.TryLock(t.Context(), "l", lingers)
			require.NoError(t, err)
			require.Equal(t, wait, time.Since(begun))
			require.Equal(t, token+1, l.Token(), "the same lease")
			token = l.Token()
			_, err = c.TryLock(t.Context(), "l", lingers)
			require.ErrorIs(t, err, natslock.ErrLocked)
			kit.Unlock(t, l)
		}
		l = kit.Must(t, c.Lock, "m", lingers)
		limit := time.Now().Add(200 * time.Millisecond)
		f.FailReads(func(op faults.ReadOp, _ string) error {
			if op == faults.ReadList && time.Now().Before(limit) {
				return faults.Hang
			}
			return nil
		})
		kit.Unlock(t, l)
		begun := time.Now()
		again, err := c.TryLock(t.Context(), "m", lingers)
		require.Equal(t, 250*time.Millisecond, time.Since(begun))
		if err != nil { // the server may not have deleted the record yet
			require.ErrorIs(t, err, natslock.ErrLocked)
			return
		}
		require.Greater(t, again.Token(), l.Token()+64, "another lease")
	})
}

// TestLingerMany checks that many idle leases cost one renewal each per third of their TTL and a
// few lists in total.
func TestLingerMany(t *testing.T) {
	locks := machine.Part(1000)
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		for i := range locks {
			kit.Unlock(t, kit.Must(t, c.Lock, fmt.Sprint("l", i), lingers))
		}
		time.Sleep(20 * time.Second)
		before := c.NC.Stats().OutMsgs
		time.Sleep(time.Minute)
		sent := int(c.NC.Stats().OutMsgs - before)
		require.LessOrEqual(t, sent, locks*12+200)
		require.Equal(t, locks, c.Stats().Idle)
		other := kit.Join(t, s)
		begun := time.Now()
		for i := range locks {
			kit.Unlock(t, kit.Must(t, other.Lock, fmt.Sprint("l", i)))
		}
		require.Less(t, time.Since(begun), time.Second)
		synctest.Wait()
		require.Zero(t, c.Stats().Idle)
		kit.WantNothing(t, s)
	})
}

// TestLingerManyUnnotified checks that a client that misses the notifications of places on many
// locks discovers the waiters when their places are renewed.
func TestLingerManyUnnotified(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, f := kit.JoinFaulty(t, s)
		other := kit.Join(t, s)
		for i := range 300 {
			kit.Unlock(t, kit.Must(t, c.Lock, fmt.Sprint("l", i), lingers))
		}
		time.Sleep(20 * time.Second)
		dropPlaces(f)
		begun := time.Now()
		var waits []*kit.Waiting
		for i := range 100 {
			waits = append(waits, other.Begin(t, fmt.Sprint("l", 3*i)))
		}
		for _, w := range waits {
			kit.Unlock(t, w.Granted(t))
		}
		require.LessOrEqual(t, time.Since(begun), 5*time.Second)
		require.Equal(t, 200, c.Stats().Idle)
	})
}
