package rwlock_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// TestTokens checks that a writer's token is higher than those of all readers it waited for, that a
// later reader's token is higher than the writer's, and that readers that share a lease share its
// token.
func TestTokens(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b := newPeer(t, s.Connect(), 1), newPeer(t, s.Connect(), 2)
		var last uint64 // of the last writer
		for range 3 {
			var readers []*natslock.Lock
			var highest uint64
			for range 4 {
				l, err := a.RLock(t.Context(), "x")
				require.NoError(t, err)
				require.Greater(t, l.Token(), last)
				highest = max(highest, l.Token())
				readers = append(readers, l)
			}
			require.Equal(t, readers[0].Token(), highest, "of the join")
			require.Zero(t, highest%64)
			l, err := b.RLock(t.Context(), "x")
			require.NoError(t, err)
			require.Greater(t, l.Token(), highest)
			readers, highest = append(readers, l), l.Token()
			grants := make(chan grant, 1)
			b.write("w", grants)
			nobody(t, grants, "over readers")
			for _, r := range readers {
				require.NoError(t, r.Extend(t.Context(), 0)) // renewals keep the token
			}
			require.Equal(t, highest, readers[4].Token())
			kit.Unlock(t, readers...)
			g := <-grants
			require.NoError(t, g.err)
			require.Greater(t, g.l.Token(), highest)
			last = g.l.Token()
			kit.Unlock(t, g.l)
		}
	})
}

// TestReleasedIsNotShared checks that a reader that arrives while the release of its client's
// shared lease is in flight gets a new lease.
func TestReleasedIsNotShared(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b := newPeer(t, s.Connect(), 1), newPeer(t, s.Connect(), 2)
		first, err := a.RLock(t.Context(), "x", natslock.TTL(20*time.Second)) // a separate lease
		require.NoError(t, err)
		host, err := a.RLock(t.Context(), "x")
		require.NoError(t, err)
		guest, err := a.RLock(t.Context(), "x")
		require.NoError(t, err)
		require.Equal(t, claimOf(host), claimOf(guest))
		kit.Unlock(t, host) // the guest keeps the lease
		require.NoError(t, guest.Err())
		a.f.OnSend(kit.At("read delete", faults.Delay(500*time.Millisecond)))
		released := make(chan error)
		go func() { released <- guest.Unlock(context.Background()) }()
		synctest.Wait()
		again, err := a.RLock(t.Context(), "x")
		require.NoError(t, err)
		require.NotEqual(t, claimOf(guest), claimOf(again))
		require.Greater(t, again.Token(), guest.Token())
		require.NoError(t, <-released)
		a.f.OnSend(nil)
		require.Positive(t, again.Remaining())
		grants := make(chan grant, 1)
		kit.Unlock(t, first)
		b.write("w", grants)
		nobody(t, grants, "over a reader")
		kit.Unlock(t, again)
		g := <-grants
		require.NoError(t, g.err)
		kit.Unlock(t, g.l)
	})
}

// TestReadersTogether checks that readers share a lease but not their contexts: each context ends
// with its own parent, or with the lease.
func TestReadersTogether(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		nc, link := s.ConnectLink()
		a := newPeer(t, nc, 1, natslock.WithTTL(5*time.Second))
		kept, err := a.RLock(t.Context(), "x")
		require.NoError(t, err)
		kit.Keep(t, kept)
		type key struct{}
		parent, cancel := context.WithCancelCause(context.WithValue(t.Context(), key{}, "v"))
		host, err := a.RLock(parent, "x")
		require.NoError(t, err)
		guest, err := a.RLock(t.Context(), "x")
		require.NoError(t, err)
		detached, err := a.RLock(parent, "x", natslock.Detached())
		require.NoError(t, err)
		for _, l := range []*natslock.Lock{guest, detached} {
			require.Equal(t, claimOf(host), claimOf(l))
			require.NotEqual(t, host.ID(), l.ID())
		}
		reason := errors.New("the request is over")
		cancel(reason)
		<-host.Context().Done()
		require.ErrorIs(t, host.Err(), reason)
		require.Positive(t, host.Remaining(), "its context ended, not the lock")
		require.NoError(t, guest.Err())
		require.NoError(t, detached.Err())
		require.Equal(t, "v", detached.Context().Value(key{}))
		kit.Unlock(t, host)
		require.ErrorIs(t, host.Err(), natslock.ErrReleased)
		require.ErrorIs(t, host.Extend(t.Context(), 0), natslock.ErrReleased, "a reader that has left speaks for nobody")
		require.False(t, kit.ValidUntil(host).After(time.Now()))
		require.Zero(t, host.Remaining())
		require.Positive(t, guest.Remaining())
		require.True(t, kit.ValidUntil(guest).After(time.Now()))

		time.Sleep(time.Minute) // renewed for the remaining readers
		require.NoError(t, guest.Err())
		link.Cut()
		<-guest.Context().Done()
		<-detached.Context().Done()
		lost := time.Now()
		time.Sleep(10 * time.Second)
		for _, l := range []*natslock.Lock{guest, detached} {
			require.ErrorIs(t, context.Cause(l.Context()), natslock.ErrLost)
			require.ErrorIs(t, l.Err(), natslock.ErrLost)
			require.ErrorIs(t, l.Unlock(t.Context()), natslock.ErrLost)
			require.ErrorIs(t, l.Unlock(t.Context()), natslock.ErrLost, "as before")
			require.False(t, kit.ValidUntil(l).After(lost), "not until it was released")
		}
	})
}

// TestUntilBehindReplicas checks that a writer on several replicas, which renews its gate to prove
// that nobody reads, still ends at the time it requested.
func TestUntilBehindReplicas(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a := liedTo(t, s, &liar{state: func(_ int, st *kvstore.State) error {
			st.Replicas = 3
			return nil
		}})
		renewed := 0
		a.f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
			if kit.Stage(w) == "rw renew" {
				renewed++
			}
			return faults.Pass
		})
		until := time.Now().Add(9500 * time.Millisecond) // no TTL in whole seconds gives exactly this validity
		l, err := a.Lock(t.Context(), "x", natslock.Until(until))
		require.NoError(t, err)
		require.Positive(t, renewed)
		require.Equal(t, until.UnixMilli(), kit.ValidUntil(l).UnixMilli())
		<-l.Context().Done()
		require.Equal(t, until.UnixMilli(), time.Now().UnixMilli())
		require.ErrorIs(t, l.Unlock(t.Context()), natslock.ErrEnded)
	})
}

// TestLeaseOptions tries each lease option with readers and with writers.
func TestLeaseOptions(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b := newPeer(t, s.Connect(), 1), newPeer(t, s.Connect(), 2)
		type take func(ctx context.Context, name string, opts ...natslock.LockOption) (*natslock.Lock, error)
		for _, writes := range []bool{false, true} {
			in, other := take(a.RLock), take(b.Lock)
			if writes {
				in, other = a.Lock, b.RLock
			}
			// Until: the lock ends at that time and is not renewed.
			begun := time.Now()
			l, err := in(t.Context(), "x", natslock.Until(begun.Add(10*time.Second)))
			require.NoError(t, err)
			next, err := other(t.Context(), "x")
			require.NoError(t, err)
			require.ErrorIs(t, l.Err(), natslock.ErrEnded)
			require.GreaterOrEqual(t, time.Since(begun), 10*time.Second)
			require.Less(t, time.Since(begun), 12500*time.Millisecond)
			kit.Unlock(t, next)
			require.ErrorIs(t, l.Unlock(t.Context()), natslock.ErrEnded)

			// NoRenew: the lock ends unless Extend prolongs it.
			begun = time.Now()
			l, err = in(t.Context(), "x", natslock.TTL(5*time.Second), natslock.NoRenew())
			require.NoError(t, err)
			time.Sleep(4 * time.Second)
			require.NoError(t, l.Extend(t.Context(), 8*time.Second))
			<-l.Context().Done()
			require.WithinDuration(t, begun.Add(4*time.Second+7200*time.Millisecond), time.Now(), 50*time.Millisecond)
			require.ErrorIs(t, l.Unlock(t.Context()), natslock.ErrLost)
			synctest.Wait()

			// Meta: the metadata is shown.
			l, err = in(t.Context(), "x", natslock.Meta(map[string]string{"job": "42"}))
			require.NoError(t, err)
			info, err := admin.New(b.c).Inspect(t.Context(), admin.KindRW, "x")
			require.NoError(t, err)
			holders := info.Readers
			if writes {
				require.Empty(t, holders)
				holders = append(holders, *info.Holder)
			} else {
				require.Nil(t, info.Holder)
			}
			require.Len(t, holders, 1)
			require.Equal(t, map[string]string{"job": "42"}, holders[0].Meta)
			require.Equal(t, l.Token(), holders[0].Token)
			require.Equal(t, l.ID(), holders[0].ID)

			// MaxWait: a waiter learns whom it waited for and leaves nothing behind.
			begun = time.Now()
			_, err = other(t.Context(), "x", natslock.MaxWait(3*time.Second))
			require.ErrorIs(t, err, natslock.ErrTimeout)
			require.Equal(t, 3*time.Second, time.Since(begun))
			var timeout *natslock.TimeoutError
			require.ErrorAs(t, err, &timeout)
			require.NotNil(t, timeout.Holder)
			require.Equal(t, l.Token(), timeout.Holder.Token)
			synctest.Wait()
			info, err = admin.New(b.c).Inspect(t.Context(), admin.KindRW, "x")
			require.NoError(t, err)
			require.Empty(t, info.Queue)
			require.Equal(t, writes, info.Holder != nil)

			// The lock that is renewed lives on.
			time.Sleep(time.Minute)
			require.NoError(t, l.Err())
			kit.Unlock(t, l)

			// Detached: the lock outlives the context.
			ctx, cancel := context.WithCancel(t.Context())
			l, err = in(ctx, "x", natslock.Detached())
			require.NoError(t, err)
			bound, err := a.RLock(ctx, "y")
			require.NoError(t, err)
			cancel()
			<-bound.Context().Done()
			require.NoError(t, l.Err())
			kit.Unlock(t, l, bound)
		}
		require.Empty(t, kit.KeysLeft(t, s.Connect()))
	})
}

// TestDo checks that Do and RDo run functions under the lock and release it, whatever those
// functions do.
func TestDo(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b := newPeer(t, s.Connect(), 1), newPeer(t, s.Connect(), 2)
		reason := errors.New("no")
		for what, do := range map[string]func(context.Context, string, func(context.Context, *natslock.Lock) error, ...natslock.LockOption) error{"Do": a.Do, "RDo": a.RDo} {
			require.ErrorIs(t, do(t.Context(), "x", func(ctx context.Context, l *natslock.Lock) error {
				require.NoError(t, ctx.Err())
				require.Positive(t, l.Remaining())
				_, err := b.TryLock(ctx, "x")
				require.ErrorIs(t, err, natslock.ErrLocked)
				r, err := b.TryRLock(ctx, "x")
				if what == "Do" {
					require.ErrorIs(t, err, natslock.ErrLocked)
				} else {
					require.NoError(t, err)
					kit.Unlock(t, r)
				}
				return reason
			}), reason)
			require.Panics(t, func() {
				_ = do(t.Context(), "x", func(context.Context, *natslock.Lock) error { panic("no") })
			})
			l, err := b.TryLock(t.Context(), "x")
			require.NoError(t, err)
			never := func(context.Context, *natslock.Lock) error {
				t.Errorf("%s ran its function without the lock", what)
				return nil
			}
			require.ErrorIs(t, do(t.Context(), "x", never, natslock.MaxWait(time.Second)), natslock.ErrTimeout)
			asked := time.Now()
			require.ErrorIs(t, do(t.Context(), "x", nil, natslock.MaxWait(time.Second)), natslock.ErrInvalid)
			require.Zero(t, time.Since(asked), "refused before the wait")
			kit.Unlock(t, l)
		}
	})
}

// TestSeen checks that Inspect, List and Watch distinguish readers, writers and the queue.
func TestSeen(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b, c := newPeer(t, s.Connect(), 1, natslock.WithOwner("alice")), newPeer(t, s.Connect(), 2, natslock.WithOwner("bob")), newPeer(t, s.Connect(), 3, natslock.WithOwner("carol"))
		ctx, cancel := context.WithCancel(t.Context())
		var mu sync.Mutex
		var events []admin.Event
		var watching sync.WaitGroup
		watching.Go(func() {
			for ev, err := range admin.New(b.c).Watch(ctx, ">") {
				assert.NoError(t, err)
				if ev.Type == admin.EventWatching {
					continue
				}
				mu.Lock()
				events = append(events, ev)
				mu.Unlock()
			}
		})
		synctest.Wait()
		m, err := b.c.Lock(t.Context(), "m")
		require.NoError(t, err)
		r1, err := a.RLock(t.Context(), "orders.7")
		require.NoError(t, err)
		r2, err := b.RLock(t.Context(), "orders.7")
		require.NoError(t, err)
		grants := make(chan grant, 3)
		go func() {
			l, err := b.Lock(context.Background(), "orders.7")
			grants <- grant{"w", l, err, time.Now()}
		}()
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		go func() {
			l, err := c.RLock(context.Background(), "orders.7")
			grants <- grant{"r", l, err, time.Now()}
		}()
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()

		seen := map[string]admin.Info{}
		for info, err := range admin.New(a.c).List(t.Context(), ">") {
			require.NoError(t, err)
			seen[info.Kind.String()+" "+info.Name] = info
		}
		require.Len(t, seen, 2)
		require.Equal(t, m.Token(), seen["mutex m"].Holder.Token)
		info, err := admin.New(a.c).Inspect(t.Context(), admin.KindRW, "orders.7")
		require.NoError(t, err)
		require.Equal(t, info, seen["rw orders.7"])
		require.Equal(t, "bob", info.Holder.Owner, "the writer at the gate")
		require.Len(t, info.Readers, 2)
		require.Equal(t, []string{"alice", "bob"}, []string{info.Readers[0].Owner, info.Readers[1].Owner})
		require.Equal(t, []uint64{r1.Token(), r2.Token()}, []uint64{info.Readers[0].Token, info.Readers[1].Token})
		require.Len(t, info.Queue, 1)
		require.Equal(t, admin.Shared, info.Queue[0].Mode)
		require.Equal(t, "carol", info.Queue[0].Owner)
		mutex, err := admin.New(a.c).Inspect(t.Context(), admin.KindMutex, "orders.7")
		require.NoError(t, err)
		require.Nil(t, mutex.Holder, "another lock")
		for info, err := range admin.New(a.c).List(t.Context(), "orders.*") {
			require.NoError(t, err)
			require.Equal(t, admin.KindRW, info.Kind)
		}

		kit.Unlock(t, r1, r2)
		w := <-grants
		require.Equal(t, "w", w.who)
		kit.Unlock(t, w.l)
		r := <-grants
		require.Equal(t, "r", r.who)
		kit.Unlock(t, r.l, m)
		synctest.Wait()
		cancel()
		watching.Wait()
		type key struct {
			typ   admin.EventType
			kind  admin.Kind
			mode  admin.Mode
			name  string
			token uint64
		}
		count := map[key]int{}
		for _, ev := range events {
			count[key{ev.Type, ev.Kind, ev.Mode, ev.Name, ev.Token}]++
		}
		for _, want := range []key{
			{admin.EventGranted, admin.KindMutex, admin.Exclusive, "m", m.Token()},
			{admin.EventReleased, admin.KindMutex, admin.Exclusive, "m", m.Token()},
			{admin.EventGranted, admin.KindRW, admin.Shared, "orders.7", r1.Token()},
			{admin.EventGranted, admin.KindRW, admin.Shared, "orders.7", r2.Token()},
			{admin.EventReleased, admin.KindRW, admin.Shared, "orders.7", r1.Token()},
			{admin.EventReleased, admin.KindRW, admin.Shared, "orders.7", r2.Token()},
			{admin.EventGranted, admin.KindRW, admin.Exclusive, "orders.7", w.l.Token()},
			{admin.EventReleased, admin.KindRW, admin.Exclusive, "orders.7", w.l.Token()},
			{admin.EventQueued, admin.KindRW, admin.Shared, "orders.7", info.Queue[0].Ticket},
			{admin.EventGranted, admin.KindRW, admin.Shared, "orders.7", r.l.Token()},
			{admin.EventReleased, admin.KindRW, admin.Shared, "orders.7", r.l.Token()},
		} {
			require.Equal(t, 1, count[want], "%v", want)
			delete(count, want)
		}
		require.Empty(t, count)
	})
}

// TestCloseWithReaders closes a client whose readers share a lease. Their contexts end, but the
// record stays until its TTL has passed, because the work may still be stopping.
func TestCloseWithReaders(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		const ttl = 5 * time.Second
		a, b := newPeer(t, s.Connect(), 1, natslock.WithTTL(ttl)), newPeer(t, s.Connect(), 2, natslock.WithTTL(ttl))
		var readers []*natslock.Lock
		for range 3 {
			l, err := a.RLock(t.Context(), "x")
			require.NoError(t, err)
			readers = append(readers, l)
		}
		grants := make(chan grant, 1)
		b.write("w", grants)
		nobody(t, grants, "over readers")
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		closed := make(chan error, 1)
		go func() { closed <- a.c.Close(ctx) }()
		time.Sleep(time.Second)
		kit.Unlock(t, readers[1])
		_, err := a.RLock(t.Context(), "x")
		require.ErrorIs(t, err, natslock.ErrClosed)
		_, err = a.TryRLock(t.Context(), "y")
		require.ErrorIs(t, err, natslock.ErrClosed)
		for range 12 {
			nobody(t, grants, "over readers that are waited for")
		}
		require.Empty(t, closed)
		err = <-closed
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, `"x"`)
		for _, i := range []int{0, 2} {
			require.ErrorIs(t, context.Cause(readers[i].Context()), natslock.ErrClosed)
			require.ErrorIs(t, readers[i].Err(), natslock.ErrClosed)
		}
		over := time.Now()
		g := <-grants
		require.NoError(t, g.err)
		require.Greater(t, g.at.Sub(over), 2*time.Second, "their records were deleted")
		require.Less(t, g.at.Sub(over), ttl+500*time.Millisecond)
		kit.Unlock(t, g.l)
		require.ErrorIs(t, readers[2].Unlock(t.Context()), natslock.ErrClosed)

		// A client whose readers leave in time closes cleanly.
		l, err := b.RLock(t.Context(), "x")
		require.NoError(t, err)
		go func() { closed <- b.c.Close(context.Background()) }()
		time.Sleep(time.Second)
		require.Empty(t, closed)
		kit.Unlock(t, l)
		require.NoError(t, <-closed)
		require.Empty(t, kit.KeysLeft(t, s.Connect()))
	})
}

// TestCloseEndsWaiters checks that a queued reader, a queued writer and a draining writer all end
// with an error and leave nothing behind.
func TestCloseEndsWaiters(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b := newPeer(t, s.Connect(), 1), newPeer(t, s.Connect(), 2)
		r, err := a.RLock(t.Context(), "x")
		require.NoError(t, err)
		grants := make(chan grant, 3)
		b.write("drains", grants)
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		b.write("waits", grants)
		b.read("waits", grants)
		nobody(t, grants, "over a reader")
		require.NoError(t, b.c.Close(t.Context()))
		for range 3 {
			require.ErrorIs(t, (<-grants).err, natslock.ErrClosed)
		}
		synctest.Wait()
		require.Len(t, kit.KeysLeft(t, s.Connect()), 1, "the reader's")
		kit.Unlock(t, r)
	})
}

// TestForeignReader checks that a value under the library's keys that the library did not write
// counts as held by an unknown owner, even under a reader's key.
func TestForeignReader(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a := newPeer(t, s.Connect(), 1)
		_, err := kit.OpenStore(t, s.Connect()).Create(t.Context(), "read.x.SOMEBODY", []byte("?"), 5*time.Second)
		require.NoError(t, err)
		begun := time.Now()
		_, err = a.TryLock(t.Context(), "x")
		require.ErrorIs(t, err, natslock.ErrLocked)
		var locked *natslock.LockedError
		require.ErrorAs(t, err, &locked)
		require.Nil(t, locked.Holder)
		r, err := a.RLock(t.Context(), "x")
		require.NoError(t, err)
		kit.Unlock(t, r)
		info, err := admin.New(a.c).Inspect(t.Context(), admin.KindRW, "x")
		require.NoError(t, err)
		require.Len(t, info.Readers, 1)
		require.True(t, info.Readers[0].Unreadable)
		l, err := a.Lock(t.Context(), "x")
		require.NoError(t, err)
		require.GreaterOrEqual(t, time.Since(begun), 5*time.Second)
		require.Less(t, time.Since(begun), 5500*time.Millisecond)
		kit.Unlock(t, l)
	})
}

// TestCloseWithUnansweredReader covers a client that closes while a reader's claim is unanswered,
// and so reads whether the claim was stored. The server may answer that read before it stores the
// claim. Close must therefore wait for the reply to the claim, or the record would keep writers out
// until its TTL.
func TestCloseWithUnansweredReader(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		p := newPeer(t, s.Connect(), 1)
		sent := make(chan string, 1)
		p.f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
			if w.Guard == "" {
				return faults.Pass
			}
			sent <- w.Key
			return faults.DelayAnswer(200 * time.Millisecond)
		})
		over := make(chan error, 1)
		go func() { _, err := p.RLock(t.Context(), "x"); over <- err }()
		key := <-sent
		synctest.Wait() // the claim is stored, and its reply is in flight
		p.f.FailReads(func(_ faults.ReadOp, asked string) error {
			if asked == key {
				return kvstore.ErrNotFound
			}
			return nil
		})
		require.NoError(t, p.c.Close(t.Context()))
		require.ErrorIs(t, <-over, natslock.ErrClosed)
		require.Empty(t, kit.KeysLeft(t, s.Connect()))
	})
}
