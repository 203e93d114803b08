package faults_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/rwlock"
	"github.com/natslock/locks/semaphore"
	"github.com/natslock/locks/testutil"
)

const (
	// overdueIn limits how long after the end of a record's TTL its lock is granted if the server
	// does not remove the record.
	overdueIn = 500 * time.Millisecond
	// overdueNot is how long after the end of its TTL a record is still left to its holder.
	overdueNot = 300 * time.Millisecond
)

// overdueCases are the records that can be overdue and the acquires that they keep out until then.
var overdueCases = map[string]struct {
	dead, first func(c *natslock.Client) kit.Taking // first takes the lock that the dead one waits for
	next        map[string]func(c *natslock.Client) kit.Taking
}{
	"holder": {kit.Mutex, nil, map[string]func(c *natslock.Client) kit.Taking{"lock": kit.Mutex, "try": kit.TryMutex}},
	"waiter": {kit.Mutex, kit.Mutex, map[string]func(c *natslock.Client) kit.Taking{"lock": kit.Mutex, "try": kit.TryMutex}},
	"writer": {kit.Writer, nil, map[string]func(c *natslock.Client) kit.Taking{
		"write": kit.Writer, "read": kit.Reader, "try write": kit.TryWriter, "try read": kit.TryReader}},
	"reader":         {kit.Reader, nil, map[string]func(c *natslock.Client) kit.Taking{"write": kit.Writer, "try write": kit.TryWriter}},
	"waiting writer": {kit.Writer, kit.Reader, map[string]func(c *natslock.Client) kit.Taking{"read": kit.Reader, "try read": kit.TryReader, "write": kit.Writer}},
	"waiting reader": {kit.Reader, kit.Writer, map[string]func(c *natslock.Client) kit.Taking{"write": kit.Writer, "try write": kit.TryWriter}},
}

// TestOverdue checks that a record that the server forgot to remove keeps other clients out only
// for its TTL and a slack, whether they were already waiting, come later or try once.
func TestOverdue(t *testing.T) {
	const ttl = 6 * time.Second
	for victim, tc := range overdueCases {
		for name, next := range tc.next {
			t.Run(victim+"/"+name, func(t *testing.T) {
				testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
					dead := kit.Join(t, s, natslock.WithTTL(ttl))
					b := kit.Join(t, s, natslock.WithTTL(ttl))
					var first *natslock.Lock
					var err error
					if tc.first != nil {
						first, err = tc.first(b.Client)(t.Context(), "l")
						require.NoError(t, err)
						go func() { _, _ = tc.dead(dead.Client)(context.Background(), "l") }()
						synctest.Wait()
					} else {
						_, err = tc.dead(dead.Client)(context.Background(), "l", natslock.Detached())
						require.NoError(t, err)
					}
					written := time.Now()
					dead.Link.Cut()
					time.Sleep(time.Second)
					kit.RestartWithoutTTLs(t, s)
					time.Sleep(time.Second)
					if first != nil {
						kit.Unlock(t, first)
					}
					if name == "try" || name == "try write" || name == "try read" {
						_, err = next(b.Client)(t.Context(), "l")
						require.ErrorIs(t, err, natslock.ErrLocked)
						time.Sleep(ttl + overdueIn - time.Since(written))
					}
					ctx, cancel := context.WithTimeout(t.Context(), kit.Patience)
					defer cancel()
					l, err := next(b.Client)(ctx, "l")
					require.NoError(t, err)
					if first == nil { // a dead waiter is passed earlier, after the lock has been idle
						require.GreaterOrEqual(t, time.Since(written), ttl+overdueNot)
					}
					require.LessOrEqual(t, time.Since(written), ttl+overdueIn)
					kit.Unlock(t, l)
					l, err = next(b.Client)(ctx, "l")
					require.NoError(t, err, "and again")
					kit.Unlock(t, l)
				})
			})
		}
	}
}

// TestOverdueAfterCrash checks that everything that a server restored after a crash is free once
// its TTL is over, both for clients that were already waiting and for newcomers.
func TestOverdueAfterCrash(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		const ttl = 5 * time.Second
		a, b := kit.Crowd(t, s, 31, natslock.WithTTL(ttl)), kit.Join(t, s, natslock.WithTTL(ttl))
		holder := kit.Must(t, a[0].Lock, "l")
		var places []*kit.Waiting
		for _, m := range a[1:] {
			places = append(places, m.Await(t, "l"))
		}
		for _, m := range a {
			m.Link.Cut()
		}
		died := time.Now()
		w := b.Await(t, "l")
		kit.RestartWithoutTTLs(t, s)
		l := w.Granted(t)
		require.LessOrEqual(t, w.At.Sub(died), ttl+overdueIn)
		require.Greater(t, l.Token(), holder.Token())
		kit.Unlock(t, l)
		for _, m := range a {
			m.Link.Heal()
		}
		var wg sync.WaitGroup
		for _, w := range places { // they have queued again, in no particular order
			wg.Go(func() {
				if <-w.Done; assert.NoError(t, w.Err) {
					assert.NoError(t, w.Value.Unlock(context.Background()))
				}
			})
		}
		wg.Wait()
	})
}

// TestOverdueIsRenewed checks that a live holder's record is never overdue, no matter what its
// server has forgotten.
func TestOverdueIsRenewed(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b := kit.Join(t, s, natslock.WithTTL(3*time.Second)), kit.Join(t, s, natslock.WithTTL(3*time.Second))
		l := kit.Must(t, a.Lock, "l")
		kit.RestartWithoutTTLs(t, s)
		w := b.Await(t, "l")
		for range 20 {
			time.Sleep(time.Second)
			require.False(t, w.Over())
			_, err := b.TryLock(t.Context(), "l")
			require.ErrorIs(t, err, natslock.ErrLocked)
		}
		kit.Unlock(t, l)
		kit.Unlock(t, w.Granted(t))
	})
}

// TestOverdueForged checks that a waiter does not claim the lock over a live record even if a
// notification shows an old record of the holder. Notifications can be forged, so their times prove
// nothing.
func TestOverdueForged(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, f := kit.JoinFaulty(t, s)
		holder := kit.QuietHolder(t, s)
		w := c.Await(t, "l")
		r := kit.NewRaw(t, s.Connect())
		m := r.Get("lock.l")
		tapped := kit.NewTap(t, s.Connect(), "lock.l")
		for range 5 {
			f.Forge(kvstore.Event{Kind: kvstore.Put, Record: kvstore.Record{
				Key: "lock.l", Value: m.Data, Revision: m.Sequence, Time: time.Now().Add(-time.Hour), TTL: time.Second,
			}})
			time.Sleep(2 * time.Second)
		}
		synctest.Wait()
		require.False(t, w.Over())
		for _, msg := range tapped.Take(t, c.NC) {
			require.Equal(t, "0", msg.Header.Get("Nats-Expected-Last-Subject-Sequence"))
		}
		require.Positive(t, holder.Remaining())
		kit.Unlock(t, holder)
		kit.Unlock(t, w.Granted(t))
	})
}

// TestOverdueBreak checks that an overdue record is shown as such, and that after breaking it there
// is nothing to wait for.
func TestOverdueBreak(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		const ttl = 4 * time.Second
		dead, op := kit.Join(t, s), kit.Join(t, s)
		l := kit.Must(t, dead.Lock, "l", natslock.TTL(ttl))
		written := time.Now()
		dead.Link.Cut()
		kit.RestartWithoutTTLs(t, s)
		time.Sleep(ttl + overdueNot - time.Since(written))
		info := kit.Inspect(t, op.Client, "l")
		require.True(t, info.Holder.Overdue)
		require.NoError(t, admin.New(op.Client).Break(t.Context(), admin.BreakRequest{Kind: admin.KindMutex, Name: "l", ID: l.ID(), Reason: "left behind"}))
		require.Nil(t, kit.Inspect(t, op.Client, "l").Holder, "there is no holder to wait for")
		fresh, err := op.TryLock(t.Context(), "l")
		require.NoError(t, err)
		require.False(t, kit.Inspect(t, op.Client, "l").Holder.Overdue)
		kit.Unlock(t, fresh)
	})
}

// TestOverdueBreakOfFixedLease checks that the broken record of a fixed lease lasts as long as the
// lease even if the clock of the server that reports the record's age to the operator is ahead by
// the slack.
func TestOverdueBreakOfFixedLease(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		const ttl = 60 * time.Second
		holder := kit.Join(t, s)
		op := kit.Join(t, s, faults.WrapStore(func(kv kvstore.KV) kvstore.KV { return &aheadBy{kv, overdueNot} }))
		l := kit.Must(t, holder.Lock, "l", natslock.TTL(ttl), natslock.NoRenew())
		begun := time.Now()
		time.Sleep(30*time.Second - 100*time.Millisecond)
		require.NoError(t, admin.New(op.Client).Break(t.Context(), admin.BreakRequest{Kind: admin.KindMutex, Name: "l", ID: l.ID(), Reason: "enough"}))
		broken := kit.NewRaw(t, s.Connect()).Get("lock.l")
		rest, err := time.ParseDuration(broken.Header.Get("Nats-TTL"))
		require.NoError(t, err)
		require.GreaterOrEqual(t, time.Since(begun)+rest, ttl)
	})
}

// TestOverdueBehindForgedRenewals checks that no flood of forged notifications, whether of renewals
// or of old records, delays the read by which a waiter discovers that a dead holder's record is
// overdue.
func TestOverdueBehindForgedRenewals(t *testing.T) {
	for name, age := range map[string]time.Duration{"new": 0, "old": time.Hour} {
		t.Run(name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				const ttl = 5 * time.Second
				dead := kit.Join(t, s, natslock.WithTTL(ttl))
				c, f := kit.JoinFaulty(t, s)
				kit.Must(t, dead.Lock, "l")
				written := time.Now()
				w := c.Await(t, "l")
				m := kit.NewRaw(t, s.Connect()).Get("lock.l")
				dead.Link.Cut()
				kit.RestartWithoutTTLs(t, s)
				for !w.Over() && time.Since(written) < kit.Patience {
					time.Sleep(10 * time.Millisecond)
					f.Forge(kvstore.Event{Kind: kvstore.Put, Record: kvstore.Record{
						Key: "lock.l", Value: m.Data, Revision: m.Sequence, Time: time.Now().Add(-age), TTL: ttl,
					}})
					synctest.Wait()
				}
				kit.Unlock(t, w.Granted(t))
				require.LessOrEqual(t, w.At.Sub(written), ttl+overdueIn)
			})
		})
	}
}

// TestOverdueRace checks that only one of several clients that claim an overdue record gets the
// lock. The others find that client's record, which is not overdue.
func TestOverdueRace(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		const ttl = 3 * time.Second
		dead := kit.Join(t, s, natslock.WithTTL(ttl))
		kit.Must(t, dead.Lock, "l")
		var wg sync.WaitGroup
		var inside, grants atomic.Int32
		kit.RestartWithoutTTLs(t, s)
		for range 5 {
			c := kit.Join(t, s, natslock.WithTTL(ttl))
			wg.Go(func() {
				for range 3 {
					l, err := c.TryLock(t.Context(), "l")
					for errors.Is(err, natslock.ErrLocked) {
						time.Sleep(50 * time.Millisecond) // every client tries at the same instant
						l, err = c.TryLock(t.Context(), "l")
					}
					if !assert.NoError(t, err) {
						return
					}
					assert.EqualValues(t, 1, inside.Add(1))
					time.Sleep(2 * ttl)
					inside.Add(-1)
					grants.Add(1)
					if !assert.NoError(t, l.Unlock(context.Background())) {
						return
					}
				}
			})
		}
		dead.Link.Cut()
		wg.Wait()
		require.EqualValues(t, 15, grants.Load())
	})
}

// TestOverdueDeletionUnanswered checks that a one-shot acquire does not report the lock as held or
// queued for if it cannot delete an overdue record because the reply is lost.
func TestOverdueDeletionUnanswered(t *testing.T) {
	deletesOverdue(t, faults.LoseAnswer, func(t *testing.T, err error) {
		require.NotErrorIs(t, err, natslock.ErrLocked)
		if err != nil {
			require.ErrorIs(t, err, natslock.ErrUnavailable)
		}
	})
}

// TestOverdueDeletionInFlight checks that a one-shot acquire still gets the lock if its deletion
// meets a write in flight, for example another client's deletion of the same record.
func TestOverdueDeletionInFlight(t *testing.T) {
	deletesOverdue(t, faults.Refuse(kvstore.ErrInFlight), func(t *testing.T, err error) { require.NoError(t, err) })
}

// TestOverdueLockIsDeleted checks that a waiter replaces an overdue record with a tombstone and
// claims the lock there. It retries a deletion that the server refuses because it has no room.
func TestOverdueLockIsDeleted(t *testing.T) {
	for name, tc := range map[string]struct {
		dead, next func(*natslock.Client) kit.Taking
		gate       string
	}{
		"mutex":  {kit.Mutex, kit.Mutex, "lock"},
		"writer": {kit.Writer, kit.Writer, "rw"},
		"reader": {kit.Writer, kit.Reader, "rw"},
	} {
		t.Run(name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				c, f := kit.JoinFaulty(t, s)
				leaveOverdue(t, s, tc.dead, nil)
				f.OnSend(kit.Between(tc.gate+" delete", 1, 2, faults.Refuse(kvstore.ErrFull)))
				begun := time.Now()
				l, err := tc.next(c.Client)(t.Context(), "l")
				require.NoError(t, err)
				require.Less(t, time.Since(begun), 500*time.Millisecond)
				n := f.Counts()
				require.Equal(t, 2, n.Sends-n.Passed)
				kit.Unlock(t, l)
			})
		})
	}
}

// TestOverdueUnasked checks that a one-shot acquire neither gets the lock nor reports it as held if
// the leader does not reply. Only the leader can tell whether a record is overdue.
func TestOverdueUnasked(t *testing.T) {
	permit := func(c *natslock.Client) kit.Taking { return semaphore.New(c, 1).Acquire }
	for name, tc := range map[string]struct {
		dead, first, try func(c *natslock.Client) kit.Taking
	}{
		"holder":         {kit.Mutex, nil, kit.TryMutex},
		"waiter":         {kit.Mutex, kit.Mutex, kit.TryMutex},
		"reader":         {kit.Reader, nil, kit.TryWriter},
		"writer":         {kit.Writer, nil, kit.TryReader},
		"permit":         {permit, nil, func(c *natslock.Client) kit.Taking { return semaphore.New(c, 1).TryAcquire }},
		"waiting permit": {permit, permit, func(c *natslock.Client) kit.Taking { return semaphore.New(c, 1).TryAcquire }},
	} {
		t.Run(name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				c, f := kit.JoinFaulty(t, s)
				leaveOverdue(t, s, tc.dead, tc.first)
				f.FailReads(func(op faults.ReadOp, _ string) error {
					if op == faults.ReadState {
						return fmt.Errorf("%w: test", kvstore.ErrUnavailable)
					}
					return nil
				})
				_, err := tc.try(c.Client)(t.Context(), "l")
				require.ErrorIs(t, err, natslock.ErrUnavailable)
				require.NotErrorIs(t, err, natslock.ErrLocked)
				f.FailReads(nil)
				l, err := tc.try(c.Client)(t.Context(), "l")
				require.NoError(t, err)
				kit.Unlock(t, l)
			})
		})
	}
}

// leaveOverdue kills a client that asks for a lock, behind a first holder if first is not nil. When
// it returns, that holder has unlocked and the dead client's record is overdue.
func leaveOverdue(t *testing.T, s *testutil.Server, asks, first func(*natslock.Client) kit.Taking) {
	t.Helper()
	const ttl = 5 * time.Second
	dead, holder := kit.Join(t, s, natslock.WithTTL(ttl)), kit.Join(t, s, natslock.WithTTL(ttl))
	var l *natslock.Lock
	if first != nil {
		var err error
		l, err = first(holder.Client)(t.Context(), "l")
		require.NoError(t, err)
	}
	go func() { _, _ = asks(dead.Client)(context.Background(), "l", natslock.Detached()) }()
	synctest.Wait()
	dead.Link.Cut()
	kit.RestartWithoutTTLs(t, s)
	time.Sleep(2 * ttl)
	if l != nil {
		kit.Unlock(t, l)
	}
}

// deletesOverdue has a one-shot acquire meet an overdue record and applies fate to its deletion of
// that record.
func deletesOverdue(t *testing.T, fate faults.Fate, outcome func(t *testing.T, err error)) {
	t.Helper()
	for victim, stage := range map[string]string{"holder": "lock delete", "reader": "read delete", "waiter": "wait delete", "writer": "rw delete"} {
		t.Run(victim, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				c, f := kit.JoinFaulty(t, s)
				tc := overdueCases[victim]
				leaveOverdue(t, s, tc.dead, tc.first)
				f.OnSend(kit.Between(stage, 1, 1, fate))
				try := tc.next["try"]
				if try == nil {
					try = tc.next["try write"]
				}
				l, err := try(c.Client)(t.Context(), "l")
				n := f.Counts()
				require.Equal(t, 1, n.Sends-n.Passed)
				outcome(t, err)
				if err == nil {
					kit.Unlock(t, l)
				}
			})
		})
	}
}

// TestOverdueWrongClock checks that the client's own clock decides only when to ask the server for
// the time.
func TestOverdueWrongClock(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		holder := kit.Join(t, s, natslock.WithTTL(5*time.Second))
		c := kit.Join(t, s, faults.WrapStore(func(kv kvstore.KV) kvstore.KV { return &hasty{kv} }))
		l := kit.Must(t, holder.Lock, "l")
		w := c.Await(t, "l")
		for range 10 {
			time.Sleep(time.Second)
			_, err := c.TryLock(t.Context(), "l")
			require.ErrorIs(t, err, natslock.ErrLocked)
		}
		require.False(t, w.Over())
		kit.Unlock(t, l)
		kit.Unlock(t, w.Granted(t))
	})
}

// hasty is the store of a client whose clock is an hour ahead of the server's.
type hasty struct{ kvstore.KV }

func (h *hasty) Now() time.Time { return h.KV.Now().Add(time.Hour) }

// TestOverdueUnreadable checks that a record that the client cannot parse belongs to an unknown
// holder and is never overdue.
func TestOverdueUnreadable(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		kit.Unlock(t, kit.Must(t, c.Lock, "l"))
		time.Sleep(2 * time.Second)
		msg := nats.NewMsg(kit.Subjects + "lock.l")
		msg.Data = []byte("not ours")
		msg.Header.Set("Nats-TTL", "2s")
		_, err := kit.NewRaw(t, s.Connect()).JS.PublishMsg(t.Context(), msg)
		require.NoError(t, err)
		kit.RestartWithoutTTLs(t, s)
		time.Sleep(10 * time.Second)
		_, err = c.TryLock(t.Context(), "l")
		require.ErrorIs(t, err, natslock.ErrLocked)
		require.False(t, kit.Inspect(t, c.Client, "l").Holder.Overdue)
	})
}

// TestOverdueReaderRenews checks that a reader counts as gone only when the deletion of its record
// is acknowledged. If the reader renews in the meantime, the server refuses the deletion and the
// reader keeps the lock.
func TestOverdueReaderRenews(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		const ttl = 3 * time.Second
		var f *faults.Store
		reader := kit.Join(t, s, natslock.WithTTL(ttl))
		// The writer's leader has a wrong clock, by which everyone is overdue.
		writer := kit.Join(t, s, natslock.WithTTL(time.Minute), faults.WrapStore(func(kv kvstore.KV) kvstore.KV {
			f = faults.New(&aheadBy{kv, time.Hour}, 1)
			return f
		}))
		f.OnSend(kit.At("read delete", faults.Delay(ttl/2))) // so that a renewal comes first
		l, err := rwlock.New(reader.Client).RLock(t.Context(), "l")
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 4*ttl)
		defer cancel()
		_, err = rwlock.New(writer.Client).Lock(ctx, "l")
		require.ErrorIs(t, err, natslock.ErrTimeout)
		kit.WantHeld(t, l)
		kit.Unlock(t, l)
	})
}

// aheadBy is a store whose leader's clock is ahead.
type aheadBy struct {
	kvstore.KV
	by time.Duration
}

func (a *aheadBy) State(ctx context.Context, pattern string) (kvstore.State, error) {
	st, err := a.KV.State(ctx, pattern)
	st.Time = st.Time.Add(a.by)
	return st, err
}

// TestOverduePlaceIsShown checks that Inspect shows a place as overdue if the server has forgotten
// to remove it.
func TestOverduePlaceIsShown(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, dead := kit.Join(t, s, natslock.WithTTL(time.Minute)), kit.Join(t, s)
		kit.Must(t, a.Lock, "l")
		dead.Await(t, "l")
		overdue := func() bool {
			info, err := admin.New(a.Client).Inspect(t.Context(), admin.KindMutex, "l")
			require.NoError(t, err)
			require.Len(t, info.Queue, 1)
			return info.Queue[0].Overdue
		}
		require.False(t, overdue())
		dead.Link.Cut()
		kit.RestartWithoutTTLs(t, s)
		time.Sleep(16 * time.Second)
		require.True(t, overdue())
	})
}

// TestRemoveOverdue checks that an operator can remove overdue records, up to a given number,
// without touching live ones, and that later grants have higher tokens.
func TestRemoveOverdue(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		const ttl = 4 * time.Second
		dead, live, op := kit.Join(t, s, natslock.WithTTL(ttl)), kit.Join(t, s), kit.Join(t, s)
		was := kit.Must(t, dead.Lock, "a.mutex")
		_, err := rwlock.New(dead.Client).Lock(t.Context(), "a.written", natslock.Detached())
		require.NoError(t, err)
		_, err = rwlock.New(dead.Client).RLock(t.Context(), "a.read", natslock.Detached())
		require.NoError(t, err)
		alive := kit.Must(t, live.Lock, "a.alive")
		kit.Keep(t, alive)
		dead.Await(t, "a.alive")
		dead.Link.Cut()
		kit.RestartWithoutTTLs(t, s)
		time.Sleep(2 * time.Second)
		removed, left, err := admin.New(op.Client).RemoveOverdue(t.Context(), ">", 10)
		require.NoError(t, err)
		require.Zero(t, removed+left, "not overdue yet")
		time.Sleep(10 * time.Second)

		removed, left, err = admin.New(op.Client).RemoveOverdue(t.Context(), "b.>", 10)
		require.NoError(t, err)
		require.Zero(t, removed+left, "another pattern")
		removed, left, err = admin.New(op.Client).RemoveOverdue(t.Context(), ">", 1)
		require.NoError(t, err)
		require.Equal(t, []int{1, 3}, []int{removed, left})
		removed, left, err = admin.New(op.Client).RemoveOverdue(t.Context(), "a.>", 10)
		require.NoError(t, err)
		require.Equal(t, []int{3, 0}, []int{removed, left})
		require.Equal(t, []string{"lock.a.alive"}, kit.NewRaw(t, s.Connect()).Live(">"))
		require.Positive(t, alive.Remaining())
		next := kit.Must(t, op.Lock, "a.mutex")
		require.Greater(t, next.Token(), was.Token())
		kit.Unlock(t, next)
		kit.Unlock(t, alive)
		time.Sleep(2 * time.Second)
		kit.WantNothing(t, s)

		_, _, err = admin.New(op.Client).RemoveOverdue(t.Context(), ">", 0)
		require.ErrorIs(t, err, natslock.ErrInvalid)
		_, _, err = admin.New(op.Client).RemoveOverdue(t.Context(), "", 1)
		require.ErrorIs(t, err, natslock.ErrInvalid)
	})
}

// TestRemoveOverdueRenewed checks that a holder that renews while an operator removes its record
// keeps it, even if the clock reported to the operator is an hour ahead.
func TestRemoveOverdueRenewed(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		holder := kit.Join(t, s, natslock.WithTTL(5*time.Second))
		var f *faults.Store
		op := kit.Join(t, s, faults.WrapStore(func(kv kvstore.KV) kvstore.KV {
			f = faults.New(&hasty{&aheadBy{kv, time.Hour}}, 1)
			return f
		}))
		l := kit.Must(t, holder.Lock, "l")
		f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
			require.True(t, w.Delete)
			require.NoError(t, l.Extend(context.Background(), 0))
			return faults.Pass
		})
		removed, left, err := admin.New(op.Client).RemoveOverdue(t.Context(), ">", 10)
		require.NoError(t, err)
		require.Equal(t, []int{0, 1}, []int{removed, left})
		require.Positive(t, l.Remaining())
		require.NoError(t, l.Extend(t.Context(), 0))
		kit.Unlock(t, l)
	})
}

// TestOverduePlaceDeletedByOther checks that readers that try a lock simultaneously and meet a
// writer's overdue place all get in, although the server accepts only one deletion of that place.
func TestOverduePlaceDeletedByOther(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		const ttl = 6 * time.Second
		dead, b := kit.Join(t, s, natslock.WithTTL(ttl)), kit.Join(t, s)
		writer, err := rwlock.New(b.Client).Lock(t.Context(), "l")
		require.NoError(t, err)
		go func() { _, _ = rwlock.New(dead.Client).Lock(t.Context(), "l") }()
		synctest.Wait()
		dead.Link.Cut()
		time.Sleep(time.Second)
		kit.RestartWithoutTTLs(t, s)
		var readers []*kit.Member
		var deletions sync.WaitGroup // makes each reader wait for the others before its own deletion
		for range 3 {
			c, f := kit.JoinFaulty(t, s)
			readers = append(readers, c)
			deletions.Add(1)
			f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
				if w.Delete && strings.HasPrefix(w.Key, "rwait.") {
					deletions.Done()
					deletions.Wait()
				}
				return faults.Pass
			})
		}
		time.Sleep(2 * ttl)
		kit.Unlock(t, writer) // leaves a tombstone, so that the readers read the queue
		var wg sync.WaitGroup
		for _, c := range readers {
			wg.Go(func() {
				l, err := rwlock.New(c.Client).TryRLock(t.Context(), "l")
				if assert.NoError(t, err) {
					kit.Unlock(t, l)
				}
			})
		}
		wg.Wait()
	})
}
