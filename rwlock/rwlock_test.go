package rwlock_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/history"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// grant is what a goroutine that waited for a lock reports.
type grant struct {
	who string
	l   *natslock.Lock
	err error
	at  time.Time
}

func (p *peer) read(who string, to chan<- grant) {
	go func() {
		l, err := p.RLock(context.Background(), "x")
		to <- grant{who, l, err, time.Now()}
	}()
}

func (p *peer) write(who string, to chan<- grant) {
	go func() {
		l, err := p.Lock(context.Background(), "x")
		to <- grant{who, l, err, time.Now()}
	}()
}

func nobody(t *testing.T, grants chan grant, why string) {
	t.Helper()
	time.Sleep(time.Second) // in a bubble, everything that can happen has happened by now
	synctest.Wait()
	select {
	case g := <-grants:
		t.Fatalf("%s got in: %s", g.who, why)
	default:
	}
}

// TestReadersAndWriters serves a queue: readers are inside together, a writer is inside alone, and
// nobody overtakes a waiting writer.
func TestReadersAndWriters(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		u := history.NewRecorder()
		a, b, c := newPeer(t, s.Connect(), 1), newPeer(t, s.Connect(), 2), newPeer(t, s.Connect(), 3)
		d, e, f, g := newPeer(t, s.Connect(), 4), newPeer(t, s.Connect(), 5), newPeer(t, s.Connect(), 6), newPeer(t, s.Connect(), 7)
		u.Tap(t, s.Connect())
		r1, err := a.RLock(t.Context(), "x")
		require.NoError(t, err)
		u.Granted(admin.KindRW, admin.Shared, r1)
		r2, err := b.RLock(t.Context(), "x")
		require.NoError(t, err, "readers do not exclude each other")
		u.Granted(admin.KindRW, admin.Shared, r2)
		_, err = c.TryLock(t.Context(), "x")
		require.ErrorIs(t, err, natslock.ErrLocked)
		var locked *natslock.LockedError
		require.ErrorAs(t, err, &locked)
		require.NotNil(t, locked.Holder, "a reader holds it")

		grants := make(chan grant, 10)
		c.write("w1", grants)
		nobody(t, grants, "a writer over readers")
		d.read("r3", grants)
		nobody(t, grants, "a reader past a waiting writer")
		e.read("r4", grants)
		nobody(t, grants, "a reader past a waiting writer")
		f.write("w2", grants)
		nobody(t, grants, "a writer past everybody")
		g.read("r5", grants)
		nobody(t, grants, "a reader past two writers")
		_, err = a.TryRLock(t.Context(), "x")
		require.ErrorIs(t, err, natslock.ErrLocked)
		_, err = a.TryLock(t.Context(), "x")
		require.ErrorIs(t, err, natslock.ErrLocked)

		info, err := admin.New(a.c).Inspect(t.Context(), admin.KindRW, "x")
		require.NoError(t, err)
		require.NotNil(t, info.Holder, "the gate")
		require.Len(t, info.Readers, 2)
		var modes []admin.Mode
		for _, q := range info.Queue {
			modes = append(modes, q.Mode)
		}
		require.Equal(t, []admin.Mode{admin.Shared, admin.Shared, admin.Exclusive, admin.Shared}, modes)

		kit.Unlock(t, r1)
		nobody(t, grants, "a writer over the last reader")
		began := time.Now()
		kit.Unlock(t, r2)
		w1 := <-grants
		require.Equal(t, "w1", w1.who)
		require.NoError(t, w1.err)
		require.Less(t, w1.at.Sub(began), 50*time.Millisecond)
		u.Granted(admin.KindRW, admin.Exclusive, w1.l)
		nobody(t, grants, "beside a writer")
		kit.Unlock(t, w1.l)
		first, second := <-grants, <-grants
		require.ElementsMatch(t, []string{"r3", "r4"}, []string{first.who, second.who}, "consecutive readers enter together")
		u.Granted(admin.KindRW, admin.Shared, first.l)
		u.Granted(admin.KindRW, admin.Shared, second.l)
		nobody(t, grants, "over readers")
		kit.Unlock(t, first.l, second.l)
		w2 := <-grants
		require.Equal(t, "w2", w2.who)
		u.Granted(admin.KindRW, admin.Exclusive, w2.l)
		nobody(t, grants, "beside a writer")
		kit.Unlock(t, w2.l)
		r5 := <-grants
		require.Equal(t, "r5", r5.who)
		u.Granted(admin.KindRW, admin.Shared, r5.l)
		kit.Unlock(t, r5.l)
		u.Check(t)
		n := u.History().Counts()
		require.Equal(t, 2, n["readers at once"])
		require.Equal(t, 5, n["joins"])
		require.Empty(t, kit.KeysLeft(t, s.Connect()))
	})
}

// TestKilled cuts off a reader, a writer or a waiter for good. The others continue once its lease
// is over.
func TestKilled(t *testing.T) {
	const ttl = 5 * time.Second
	for _, victim := range []string{"reader", "writer", "queued writer", "queued reader"} {
		t.Run(victim, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				nc, link := s.ConnectLink()
				dead := newPeer(t, nc, 1, natslock.WithTTL(ttl))
				a, b := newPeer(t, s.Connect(), 2, natslock.WithTTL(ttl)), newPeer(t, s.Connect(), 3, natslock.WithTTL(ttl))
				grants := make(chan grant, 10)
				lost := make(chan grant, 10)
				var holder *natslock.Lock
				var err error
				switch victim {
				case "reader":
					_, err = dead.RLock(t.Context(), "x")
				case "writer":
					_, err = dead.Lock(t.Context(), "x")
				case "queued writer":
					holder, err = a.Lock(t.Context(), "x")
					dead.write("dead", lost)
				case "queued reader":
					holder, err = a.Lock(t.Context(), "x")
					dead.read("dead", lost)
				}
				require.NoError(t, err)
				time.Sleep(time.Second)
				b.write("b", grants)
				time.Sleep(time.Second)
				link.Cut()
				cut := time.Now()
				if holder != nil {
					kit.Unlock(t, holder)
				}
				g := <-grants
				require.NoError(t, g.err)
				assert.Less(t, g.at.Sub(cut), ttl+500*time.Millisecond)
				kit.Unlock(t, g.l)
			})
		})
	}
}

// TestGiveUp checks that those behind a waiter that leaves the line continue immediately.
func TestGiveUp(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b, c := newPeer(t, s.Connect(), 1), newPeer(t, s.Connect(), 2), newPeer(t, s.Connect(), 3)
		r1, err := a.RLock(t.Context(), "x")
		require.NoError(t, err)
		for _, how := range []string{"context", "maximum wait"} {
			ctx, cancel := context.WithCancel(t.Context())
			failed := make(chan error, 1)
			go func() {
				var opts []natslock.LockOption
				if how == "maximum wait" {
					opts = append(opts, natslock.MaxWait(3*time.Second))
				}
				_, err := b.Lock(ctx, "x", opts...)
				failed <- err
			}()
			time.Sleep(time.Second)
			grants := make(chan grant, 1)
			c.read("c", grants)
			nobody(t, grants, "past a waiting writer")
			if how == "context" {
				cancel()
			}
			require.ErrorIs(t, <-failed, natslock.ErrTimeout)
			left := time.Now()
			g := <-grants
			require.NoError(t, g.err)
			require.Less(t, g.at.Sub(left), 50*time.Millisecond)
			kit.Unlock(t, g.l)
			cancel()
		}
		kit.Unlock(t, r1)
		require.Empty(t, kit.KeysLeft(t, s.Connect()))
	})
}

// TestOneShot checks that one-shot acquires leave nothing behind and never hold anyone up.
func TestOneShot(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b := newPeer(t, s.Connect(), 1), newPeer(t, s.Connect(), 2)
		r, err := a.RLock(t.Context(), "x")
		require.NoError(t, err)
		u := history.NewRecorder()
		u.Tap(t, s.Connect())
		for range 10 {
			_, err = b.TryLock(t.Context(), "x")
			require.ErrorIs(t, err, natslock.ErrLocked)
		}
		time.Sleep(time.Second)
		for _, e := range u.History().Stream { // the tap may not have received the earlier join yet
			require.Equal(t, "read.x."+r.ID(), e.Key, "a one-shot writer took the gate over readers, or queued")
		}
		r2, err := b.TryRLock(t.Context(), "x")
		require.NoError(t, err)
		kit.Unlock(t, r, r2)
		l, err := b.TryLock(t.Context(), "x")
		require.NoError(t, err)
		_, err = a.TryRLock(t.Context(), "x")
		require.ErrorIs(t, err, natslock.ErrLocked)
		kit.Unlock(t, l)
		time.Sleep(2 * time.Second)
		require.Empty(t, kit.KeysLeft(t, s.Connect()))
	})
}

// TestJoinMeetsWriter covers a reader that saw the gate free and then meets a writer there.
func TestJoinMeetsWriter(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b := newPeer(t, s.Connect(), 1), newPeer(t, s.Connect(), 2)
		l, err := a.Lock(t.Context(), "x")
		require.NoError(t, err)
		kit.Unlock(t, l) // leaves a tombstone
		b.f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
			if w.Guard != "" && w.Expect > 0 {
				b.f.OnSend(nil)
				return faults.Delay(50 * time.Millisecond)
			}
			return faults.Pass
		})
		writer := make(chan *natslock.Lock, 1)
		time.AfterFunc(20*time.Millisecond, func() {
			l, err := a.Lock(context.Background(), "x")
			assert.NoError(t, err)
			writer <- l
		})
		_, err = b.TryRLock(t.Context(), "x")
		require.ErrorIs(t, err, natslock.ErrLocked)
		require.Equal(t, 1, b.f.Counts().Delayed)
		kit.Unlock(t, <-writer)
	})
}

// TestSharing checks that goroutines of one client read together without a message until a writer
// appears.
func TestSharing(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		nc := s.Connect()
		a, b := newPeer(t, nc, 1), newPeer(t, s.Connect(), 2)
		r1, err := a.RLock(t.Context(), "x")
		require.NoError(t, err)
		r2, err := a.RLock(t.Context(), "x") // shows that there is demand
		require.NoError(t, err)
		require.Equal(t, claimOf(r1), claimOf(r2))
		require.NotEqual(t, r1.ID(), r2.ID())
		before := nc.Stats().OutMsgs
		var shared []*natslock.Lock
		for range 100 {
			l, err := a.RLock(t.Context(), "x")
			require.NoError(t, err)
			require.Equal(t, r2.Token(), l.Token())
			shared = append(shared, l)
		}
		require.Equal(t, before, nc.Stats().OutMsgs, "sharing costs no message")
		kit.Unlock(t, shared[:50]...)
		for _, l := range shared[:50] {
			require.ErrorIs(t, context.Cause(l.Context()), natslock.ErrReleased)
			require.ErrorIs(t, l.Err(), natslock.ErrReleased)
		}
		require.Equal(t, before, nc.Stats().OutMsgs)
		require.NoError(t, shared[99].Err())

		grants := make(chan grant, 2)
		b.write("w", grants)
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		_, err = a.TryRLock(t.Context(), "x")
		require.ErrorIs(t, err, natslock.ErrLocked, "shared past a writer")
		kit.Unlock(t, r1, r2)
		kit.Unlock(t, shared[50:99]...)
		nobody(t, grants, "a writer over the last reader")
		kit.Unlock(t, shared[99])
		g := <-grants
		require.NoError(t, g.err)
		require.Greater(t, g.l.Token(), r2.Token())
		kit.Unlock(t, g.l)
		require.Empty(t, kit.KeysLeft(t, s.Connect()))
	})
}

// TestSharingGoesOn checks that sharing continues while the lease is renewed, even with goroutines
// that want an early warning. A reader with a different TTL or other metadata gets its own lease.
func TestSharingGoesOn(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a := newPeer(t, s.Connect(), 1, natslock.WithTTL(9*time.Second), natslock.WithTuning(natslock.Tuning{WatchAfter: -1}))
		first, err := a.RLock(t.Context(), "x")
		require.NoError(t, err)
		readers := []*natslock.Lock{first}
		join := func(opts ...natslock.LockOption) *natslock.Lock {
			l, err := a.RLock(t.Context(), "x", opts...)
			require.NoError(t, err)
			readers = append(readers, l)
			return l
		}
		for _, wait := range []time.Duration{0, 2900 * time.Millisecond, 200 * time.Millisecond, 20 * time.Second} {
			time.Sleep(wait)
			require.Equal(t, claimOf(first), claimOf(join()), "after %v", wait)
		}
		require.NoError(t, first.Extend(t.Context(), 0)) // a renewal
		var warned atomic.Int32
		for range 2 {
			l := join(natslock.EarlyWarning(8*time.Second, func(*natslock.Lock) { warned.Add(1) }))
			require.Equal(t, claimOf(first), claimOf(l))
			require.Equal(t, first.Token(), l.Token())
		}
		time.Sleep(200 * time.Millisecond)
		require.EqualValues(t, 2, warned.Load())
		require.NotEqual(t, claimOf(first), claimOf(join(natslock.Meta(map[string]string{"job": "42"}))))
		require.NotEqual(t, claimOf(first), claimOf(join(natslock.TTL(20*time.Second))))
		kit.Unlock(t, readers...)
		require.Empty(t, kit.KeysLeft(t, s.Connect()))
	})
}

// TestMixedKinds checks that a client refuses to use one name for both kinds of lock.
func TestMixedKinds(t *testing.T) {
	s := testutil.RunServer(t)
	a := newPeer(t, s.Connect(), 1)
	l, err := a.c.Lock(t.Context(), "m")
	require.NoError(t, err)
	_, err = a.RLock(t.Context(), "m")
	require.ErrorIs(t, err, natslock.ErrInvalid)
	require.ErrorContains(t, err, "so it cannot also use it as a reader-writer lock")
	_, err = a.TryLock(t.Context(), "m")
	require.ErrorIs(t, err, natslock.ErrInvalid)
	kit.Unlock(t, l)
}

// TestBreakReader breaks one reader. The writer gets in once that reader has stopped or its lease
// is over, and not before.
func TestBreakReader(t *testing.T) {
	for _, stops := range []bool{true, false} {
		t.Run(fmt.Sprintf("stops %v", stops), func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				u := history.NewRecorder()
				a := newPeer(t, s.Connect(), 1, natslock.WithTTL(6*time.Second), natslock.WithTuning(natslock.Tuning{WatchAfter: 1}))
				b := newPeer(t, s.Connect(), 2, natslock.WithTTL(6*time.Second))
				r, err := a.RLock(t.Context(), "x")
				require.NoError(t, err)
				u.Granted(admin.KindRW, admin.Shared, r)
				grants := make(chan grant, 1)
				b.write("w", grants)
				nobody(t, grants, "over a reader")
				broken := time.Now()
				require.NoError(t, admin.New(b.c).Break(t.Context(), admin.BreakRequest{Kind: admin.KindRW, Name: "x", ID: r.ID(), Reason: "test"}))
				<-r.Context().Done()
				require.Less(t, time.Since(broken), 20*time.Millisecond)
				require.ErrorIs(t, context.Cause(r.Context()), natslock.ErrBroken)
				nobody(t, grants, "a broken reader is a live one")
				if stops {
					require.ErrorIs(t, r.Unlock(t.Context()), natslock.ErrBroken)
				}
				g := <-grants
				u.Granted(admin.KindRW, admin.Exclusive, g.l)
				if !stops {
					require.GreaterOrEqual(t, g.at.Sub(broken), 6*time.Second)
				}
				kit.Unlock(t, g.l)
				u.Check(t)
			})
		})
	}
}

// TestUnguardedProof injects replies from the stream's leader that prove nothing because they are
// stale, leaderless or late. The writer must ask again.
func TestUnguardedProof(t *testing.T) {
	for _, tc := range []struct {
		name  string
		spoil func(*kvstore.State)
		late  time.Duration
	}{
		{"older than the gate", func(st *kvstore.State) { st.LastRevision = 1 }, 0},
		{"without a leader", func(st *kvstore.State) { st.Complete = false }, 0},
		{"late", func(st *kvstore.State) { st.Replicas = 3 }, 450 * time.Millisecond},
	} {
		t.Run(tc.name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				a := newPeer(t, s.Connect(), 1, natslock.WithTTL(5*time.Second))
				spoilt := 0
				c, err := natslock.New(t.Context(), s.Connect(), natslock.WithTTL(5*time.Second), faults.WrapStore(func(kv kvstore.KV) kvstore.KV {
					return &spoiler{KV: kv, state: func(st kvstore.State) kvstore.State {
						if spoilt++; spoilt <= 3 {
							st.Keys = nil // as if nobody were there
							tc.spoil(&st)
							time.Sleep(tc.late)
						}
						return st
					}}
				}))
				require.NoError(t, err)
				t.Cleanup(func() { _ = c.Close(context.Background()) })
				r, err := a.RLock(t.Context(), "x")
				require.NoError(t, err)
				b := &peer{RWLock: rwOf(c), c: c}
				grants := make(chan grant, 1)
				b.write("w", grants)
				nobody(t, grants, "on a worthless proof")
				require.GreaterOrEqual(t, spoilt, 3)
				kit.Unlock(t, r)
				g := <-grants
				require.NoError(t, g.err)
				kit.Unlock(t, g.l)
			})
		})
	}
}
