package natslock_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/machine"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/rwlock"
	"github.com/natslock/locks/testutil"
)

// gathering is a LockAll in progress.
type gathering = kit.Call[*natslock.LockSet]

func gather(t testing.TB, m *kit.Member, names []string, opts ...natslock.LockOption) *gathering {
	return kit.Begin(t, func(ctx context.Context) (*natslock.LockSet, error) { return m.LockAll(ctx, names, opts...) })
}

func mustUnlockAll(t testing.TB, l *natslock.LockSet) {
	t.Helper()
	require.NoError(t, l.Unlock(context.Background()))
}

// slow delays the reply to each of the client's writes by d.
func slow(f *faults.Store, d time.Duration) {
	f.OnSend(func(int, kvstore.Write) faults.Fate { return faults.DelayAnswer(d) })
}

// TestLockAllMessages checks that free locks cost one message each to acquire and to release, but
// only one round trip in total. Acquired one after the other, they would cost a round trip each.
func TestLockAllMessages(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		const n, rtt = 20, 50 * time.Millisecond
		c, f := kit.JoinFaulty(t, s, natslock.WithTuning(natslock.Tuning{WatchAfter: -1}))
		names := func(prefix string) (names []string) {
			for i := range n {
				names = append(names, fmt.Sprint(prefix, i))
			}
			return names
		}
		kit.Unlock(t, kit.Must(t, c.Lock, "warm")) // starts the client's subscription
		time.Sleep(time.Minute)
		slow(f, rtt)
		measure := func(what string, messages uint64, trips int, fn func()) {
			t.Helper()
			out, begun := c.NC.Stats().OutMsgs, time.Now()
			fn()
			require.Equal(t, messages, c.NC.Stats().OutMsgs-out, what)
			require.Equal(t, time.Duration(trips)*rtt, time.Since(begun), what)
		}
		measure("n TryLocks", n, n, func() {
			for _, name := range names("single") {
				l, err := c.TryLock(t.Context(), name)
				require.NoError(t, err)
				defer runtime.KeepAlive(l)
			}
		})
		for what, acquire := range map[string]func(context.Context, []string, ...natslock.LockOption) (*natslock.LockSet, error){
			"TryLockAll": c.TryLockAll, "LockAll": c.LockAll,
		} {
			var l *natslock.LockSet
			var err error
			measure(what, n, 1, func() {
				l, err = acquire(t.Context(), names(what))
				require.NoError(t, err)
			})
			require.Len(t, l.Names(), n)
			measure("Unlock", n, 1, func() { mustUnlockAll(t, l) })
		}
	})
}

// TestTryLockAllRefused checks that a TryLockAll that is refused one lock reports that lock and
// releases the others.
func TestTryLockAllRefused(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		holder, c := kit.Join(t, s, natslock.WithOwner("alice")), kit.Join(t, s)
		r := kit.NewRaw(t, s.Connect())
		l := kit.Must(t, holder.Lock, "c")
		p := kit.NewTap(t, s.Connect(), ">")
		begun := time.Now()
		all, err := c.TryLockAll(t.Context(), []string{"d", "c", "b", "a"})
		require.Nil(t, all)
		var locked *natslock.LockedError
		require.ErrorAs(t, err, &locked)
		require.Equal(t, "c", locked.Name)
		require.Equal(t, "alice", locked.Holder.Owner)
		require.Zero(t, time.Since(begun))
		require.Equal(t, []string{"lock.c"}, r.Live(">"))
		require.Len(t, p.Take(t, c.NC), 7, "4 attempts, 3 releases")
		kit.Unlock(t, l)
		all, err = c.TryLockAll(t.Context(), []string{"d", "c", "b", "a"})
		require.NoError(t, err)
		require.Equal(t, []string{"a", "b", "c", "d"}, all.Names())
		mustUnlockAll(t, all)
		require.Empty(t, r.Live(">"))
	})
}

// TestLockAllCrossing checks that two clients that name the same locks in opposite orders both
// queue for the smaller name first, and both get all of them.
func TestLockAllCrossing(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		holder, c := kit.Join(t, s), kit.Crowd(t, s, 2)
		r := kit.NewRaw(t, s.Connect())
		a, b := kit.Must(t, holder.Lock, "a"), kit.Must(t, holder.Lock, "b")
		both := []*gathering{
			gather(t, c[0], []string{"a", "b"}, natslock.MaxWait(time.Minute)),
			gather(t, c[1], []string{"b", "a"}, natslock.MaxWait(time.Minute)),
		}
		for _, m := range c {
			m.Events.Wait(t, admin.EventQueued, "a")
		}
		synctest.Wait()
		require.Len(t, r.Live("wait.a.*"), 2)
		require.Empty(t, r.Live("wait.b.*"))
		kit.Unlock(t, b)
		kit.Unlock(t, a)
		synctest.Wait()
		require.NotEqual(t, both[0].Over(), both[1].Over(), "one of them has both")
		for range both {
			for _, g := range both {
				if g.Over() && g.Value != nil {
					mustUnlockAll(t, g.Granted(t))
					g.Value = nil
				}
			}
			synctest.Wait()
		}
		for _, g := range both {
			kit.Receive(t, g.Done, "the end")
			require.NoError(t, g.Err)
		}
		require.Empty(t, r.Live(">"))
	})
}

// TestLockAllKeepsSmaller checks that while a LockAll waits for a name, it holds the names before
// it and none after it, and that it then goes on to acquire the later ones.
func TestLockAllKeepsSmaller(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		holder, other, c := kit.Join(t, s), kit.Join(t, s), kit.Join(t, s)
		r := kit.NewRaw(t, s.Connect())
		b := kit.Must(t, holder.Lock, "b")
		g := gather(t, c, []string{"d", "c", "b", "a"})
		c.Events.Wait(t, admin.EventQueued, "b")
		synctest.Wait()
		require.Equal(t, []string{"lock.a", "lock.b"}, r.Live("lock.*"))
		d := kit.Must(t, other.Lock, "d")
		kit.Unlock(t, b)
		c.Events.Wait(t, admin.EventQueued, "d")
		synctest.Wait()
		require.Equal(t, []string{"lock.a", "lock.b", "lock.c", "lock.d"}, r.Live("lock.*"))
		require.False(t, g.Over())
		kit.Unlock(t, d)
		l := g.Granted(t)
		require.Equal(t, []string{"a", "b", "c", "d"}, l.Names())
		require.Greater(t, l.Token("d"), d.Token())
		require.NoError(t, l.Err())
		mustUnlockAll(t, l)
		require.Empty(t, r.Live(">"))
	})
}

// TestLockAllNames checks that a repeated name is one lock, and that names are sorted by their
// keys.
func TestLockAllNames(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		l, err := c.LockAll(t.Context(), []string{"b", "a", "b", "ä", "a c", "a", "A"})
		require.NoError(t, err)
		require.Equal(t, []string{"ä", "A", "a", "a c", "b"}, l.Names(), "as =C3=A4, A, a, a=20c, b")
		require.Equal(t, 5, c.Stats().Held)
		require.NotZero(t, l.Token("ä"))
		require.Zero(t, l.Token("c"))
		mustUnlockAll(t, l)
		require.Zero(t, c.Stats().Held)
		mustUnlockAll(t, l)
		require.ErrorIs(t, l.Err(), natslock.ErrReleased)
	})
}

// TestLockAllInvalid checks that bad input is refused before anything is sent, with an error that
// names it.
func TestLockAllInvalid(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		rw, err := rwlock.New(c.Client).RLock(t.Context(), "shared")
		require.NoError(t, err)
		defer rw.Unlock(t.Context())
		many := make([]string, 256+1)
		for i := range many {
			many[i] = fmt.Sprint(i)
		}
		out := c.NC.Stats().OutMsgs
		for what, x := range map[string]struct {
			names []string
			opts  []natslock.LockOption
			err   error
			text  string
		}{
			"no names":   {nil, nil, natslock.ErrInvalid, "0 names given"},
			"many":       {many, nil, natslock.ErrInvalid, "257 names given"},
			"empty":      {[]string{"a", ""}, nil, natslock.ErrInvalid, `name 2, ""`},
			"long":       {[]string{"a", strings.Repeat("x", 600)}, nil, natslock.ErrInvalid, "name 2"},
			"kind":       {[]string{"fresh", "shared"}, nil, natslock.ErrInvalid, `"shared"`},
			"nil option": {[]string{"a", "b"}, []natslock.LockOption{nil}, natslock.ErrInvalid, "nil"},
			"TTL":        {[]string{"a", "b"}, []natslock.LockOption{natslock.TTL(48 * time.Hour)}, natslock.ErrInvalid, `"a"`},
			"MaxWait":    {[]string{"a", "b"}, []natslock.LockOption{natslock.MaxWait(-1)}, natslock.ErrInvalid, "MaxWait"},
			"Until":      {[]string{"a", "b"}, []natslock.LockOption{natslock.Until(time.Now()), natslock.NoRenew()}, natslock.ErrInvalid, "Until"},
			"MinHold":    {[]string{"a", "b"}, []natslock.LockOption{natslock.MinHold(time.Second)}, natslock.ErrInvalid, "MinHold"},
			"Meta":       {[]string{"a", "b"}, []natslock.LockOption{natslock.Meta(map[string]string{"x": strings.Repeat("x", 1<<15)})}, natslock.ErrInvalid, `"a"`},
		} {
			for _, acquire := range []func(context.Context, []string, ...natslock.LockOption) (*natslock.LockSet, error){c.LockAll, c.TryLockAll} {
				l, err := acquire(t.Context(), x.names, x.opts...)
				require.ErrorIs(t, err, x.err, what)
				require.ErrorContains(t, err, x.text, what)
				require.Nil(t, l, what)
			}
		}
		require.Equal(t, out, c.NC.Stats().OutMsgs, "nothing is sent")
		rw2, err := rwlock.New(c.Client).RLock(t.Context(), "fresh") // the refused call has not made "fresh" a mutex
		require.NoError(t, err)
		require.NoError(t, rw2.Unlock(t.Context()))
	})
}

// TestLockAllZero checks that a zero LockSet holds nothing, and that a client that was not created
// by New acquires nothing.
func TestLockAllZero(t *testing.T) {
	ctx := t.Context()
	for _, l := range []*natslock.LockSet{nil, {}} {
		require.Empty(t, l.Names())
		require.Zero(t, l.Token("a"))
		refused(t, l.Err(), "was not returned by an acquire")
		refused(t, context.Cause(l.Context()), "was not returned by an acquire")
		refused(t, l.Unlock(ctx), "was not returned by an acquire")
		refused(t, l.Do(func(context.Context, *natslock.LockSet) error { panic("it runs") }), "was not returned by an acquire")
	}
	for _, c := range []*natslock.Client{nil, {}} {
		_, err := c.LockAll(ctx, []string{"a"})
		refused(t, err, "was not created by New")
		_, err = c.TryLockAll(ctx, []string{"a"})
		refused(t, err, "was not created by New")
	}
}

// TestLockAllFaults checks that whatever happens to a write, a LockAll gets its locks and leaves
// nothing behind.
func TestLockAllFaults(t *testing.T) {
	for name, fate := range map[string]faults.Fate{
		"lost on the way":    faults.Drop,
		"its answer is lost": faults.LoseAnswer,
		"late":               faults.Delay(3 * time.Second),
		"its answer is late": faults.DelayAnswer(20 * time.Second),
	} {
		for nth := range 7 {
			t.Run(fmt.Sprintf("write %d, %s", nth+1, name), func(t *testing.T) {
				t.Parallel()
				kit.InMemory(t, func(t *testing.T, bucket *kvstore.Memory) {
					other, _ := kit.JoinInMemory(t, bucket)
					faulty, f := kit.FaultyInMemory(t, bucket, 1)
					c := &kit.Member{Client: faulty}
					b := kit.Must(t, other.Lock, "b")
					var mu sync.Mutex
					n := 0
					f.OnSend(func(int, kvstore.Write) faults.Fate {
						mu.Lock()
						defer mu.Unlock()
						if n++; n == nth+1 {
							return fate
						}
						return faults.Pass
					})
					g := gather(t, c, []string{"a", "b", "c"}, natslock.MaxWait(2*time.Minute))
					time.Sleep(15 * time.Second)
					kit.Unlock(t, b)
					l := g.Granted(t)
					for _, name := range l.Names() {
						_, err := other.TryLock(t.Context(), name)
						require.ErrorIs(t, err, natslock.ErrLocked)
					}
					time.Sleep(time.Minute)
					mustUnlockAll(t, l)
					time.Sleep(time.Minute)
					require.Empty(t, kit.KeysLeftInMemory(t, bucket))
				})
			})
		}
	}
}

// TestLockAllSiblings checks that goroutines of one client, and of two, that lock overlapping sets
// are inside one at a time, even if the locks linger.
func TestLockAllSiblings(t *testing.T) {
	sets := [][]string{{"a", "b"}, {"b", "c"}, {"c", "a"}, {"c", "b", "a"}, {"b", "a"}, {"c"}}
	for name, opts := range map[string][]natslock.LockOption{"plain": nil, "lingering": {natslock.Linger(time.Minute)}} {
		t.Run(name, func(t *testing.T) {
			rounds := machine.Part(50)
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				var mu sync.Mutex
				inside, tokens := map[string]int{}, map[string]uint64{}
				var all sync.WaitGroup
				clients := kit.Crowd(t, s, 2)
				for i, set := range append(sets, sets...) {
					c := clients[i%2]
					all.Go(func() {
						for n := range rounds {
							l, err := c.LockAll(t.Context(), set, append(opts, natslock.MaxWait(time.Hour))...)
							if !assert.NoError(t, err) {
								return
							}
							mu.Lock()
							for _, name := range set {
								inside[name]++
								assert.Equal(t, 1, inside[name])
								assert.Greater(t, l.Token(name), tokens[name])
								tokens[name] = l.Token(name)
							}
							mu.Unlock()
							time.Sleep(time.Duration(n%7) * time.Millisecond)
							mu.Lock()
							for _, name := range set {
								inside[name]--
							}
							mu.Unlock()
							assert.NoError(t, l.Unlock(t.Context()))
						}
					})
				}
				begun := time.Now()
				all.Wait()
				require.Less(t, time.Since(begun), time.Minute)
			})
		})
	}
}

// TestLockAllLingers checks that a LockAll of locks that its client keeps idle sends no message.
func TestLockAllLingers(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		names := []string{"a", "b", "c"}
		for i := range 3 {
			out := c.NC.Stats().OutMsgs
			l, err := c.LockAll(t.Context(), names, natslock.Linger(time.Minute))
			require.NoError(t, err)
			mustUnlockAll(t, l)
			if i > 0 {
				require.Equal(t, out, c.NC.Stats().OutMsgs)
			}
			time.Sleep(time.Millisecond) // the queues have been listed
		}
		require.Equal(t, 3, c.Stats().Idle)

		// While the client waits for b, it keeps c idle, and another client that queues for c gets it
		// immediately.
		other := kit.Join(t, s)
		b := kit.Must(t, other.Lock, "b")
		g := gather(t, c, names, natslock.Linger(time.Minute))
		c.Events.Wait(t, admin.EventQueued, "b")
		time.Sleep(time.Second)
		begun := time.Now()
		kit.Unlock(t, kit.Must(t, other.Lock, "c"))
		require.Less(t, time.Since(begun), 10*time.Millisecond)
		_, err := other.TryLock(t.Context(), "a")
		require.ErrorIs(t, err, natslock.ErrLocked)
		kit.Unlock(t, b)
		mustUnlockAll(t, g.Granted(t))
	})
}

// TestTryLockAllLingers checks that TryLockAll takes locks that its own client keeps idle. If
// another client keeps one of them idle, TryLockAll is refused and takes none.
func TestTryLockAllLingers(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, other := kit.Join(t, s), kit.Join(t, s)
		names := []string{"a", "b", "c"}
		kit.Unlock(t, kit.Must(t, other.Lock, "b", natslock.Linger(time.Minute)))
		_, err := c.TryLockAll(t.Context(), names, natslock.Linger(time.Minute))
		require.ErrorIs(t, err, natslock.ErrLocked)
		require.Equal(t, 1, other.Stats().Idle)
		require.Zero(t, c.Stats().Held)
		kit.Unlock(t, kit.Must(t, c.Lock, "b", natslock.Linger(time.Minute)))
		for range 3 {
			l, err := c.TryLockAll(t.Context(), names, natslock.Linger(time.Minute))
			require.NoError(t, err)
			require.Equal(t, 3, c.Stats().Held)
			_, err = c.TryLockAll(t.Context(), names)
			require.ErrorIs(t, err, natslock.ErrLocked, "its own goroutine holds them")
			mustUnlockAll(t, l)
			time.Sleep(time.Second)
			require.Equal(t, 3, c.Stats().Idle)
		}
	})
}

// TestLockAllCrossingLingers checks that two clients that acquire the same lingering locks in
// opposite orders take turns.
func TestLockAllCrossingLingers(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		const rounds = 50
		var inside atomic.Int32
		var wg sync.WaitGroup
		begun := time.Now()
		for _, names := range [][]string{{"a", "b"}, {"b", "a"}} {
			c := kit.Join(t, s)
			wg.Go(func() {
				for range rounds {
					l, err := c.LockAll(t.Context(), names, natslock.Linger(time.Minute))
					if !assert.NoError(t, err) {
						return
					}
					assert.EqualValues(t, 1, inside.Add(1))
					time.Sleep(5 * time.Millisecond)
					inside.Add(-1)
					assert.NoError(t, l.Unlock(context.WithoutCancel(t.Context())))
				}
			})
		}
		wg.Wait()
		require.Less(t, time.Since(begun), 2*rounds*5*time.Millisecond+time.Second)
	})
}

// TestLockAllDo checks that Do unlocks whether its function returns or panics.
func TestLockAllDo(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		r := kit.NewRaw(t, s.Connect())
		fault := errors.New("fault")
		l, err := c.TryLockAll(t.Context(), []string{"a", "b"})
		require.NoError(t, err)
		refused(t, l.Do(nil), "nil")
		require.NoError(t, l.Err())
		require.ErrorIs(t, l.Do(func(ctx context.Context, in *natslock.LockSet) error {
			assert.Same(t, l, in)
			assert.NoError(t, ctx.Err())
			return fault
		}), fault)
		require.Empty(t, r.Live(">"))
		l, err = c.LockAll(t.Context(), []string{"a", "b"})
		require.NoError(t, err)
		require.Panics(t, func() { _ = l.Do(func(context.Context, *natslock.LockSet) error { panic("test") }) })
		require.Empty(t, r.Live(">"))
	})
}
