package natslock_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/kvstore"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/rwlock"
	"github.com/natslock/locks/testutil"
)

// gathering is a LockAll under way on a goroutine of its own.
type gathering struct {
	done   chan struct{}
	cancel context.CancelCauseFunc
	locks  *natslock.Locks
	err    error
	at     time.Time
}

func (m *member) gather(t testing.TB, names []string, opts ...natslock.LockOption) *gathering {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(t.Context()))
	g := &gathering{done: make(chan struct{}), cancel: cancel}
	t.Cleanup(func() { runtime.KeepAlive(g) })
	go func() {
		defer close(g.done)
		g.locks, g.err = m.LockAll(ctx, names, opts...)
		g.at = time.Now()
	}()
	return g
}

func (g *gathering) granted(t testing.TB) *natslock.Locks {
	t.Helper()
	receive(t, g.done, "a grant of all")
	require.NoError(t, g.err)
	return g.locks
}

func (g *gathering) failed(t testing.TB) error {
	t.Helper()
	receive(t, g.done, "the end of a LockAll")
	require.Error(t, g.err)
	return g.err
}

func (g *gathering) over() bool {
	select {
	case <-g.done:
		return true
	default:
		return false
	}
}

func mustUnlockAll(t testing.TB, l *natslock.Locks) {
	t.Helper()
	require.NoError(t, l.Unlock(context.Background()))
}

// slow has each answer to a write of the client take so long.
func slow(f *testutil.Faults, d time.Duration) {
	f.OnSend(func(int, kvstore.Write) testutil.Fate { return testutil.DelayAnswer(d) })
}

// Locks that are free cost one message each, to take and to release, and one round trip
// together. Taken one after the other they cost a round trip each.
func TestLockAllMessages(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		const n, rtt = 20, 50 * time.Millisecond
		c, f := joinFaulty(t, s, natslock.WithWatchAfter(-1))
		names := func(prefix string) (names []string) {
			for i := range n {
				names = append(names, fmt.Sprint(prefix, i))
			}
			return names
		}
		mustUnlock(t, mustLock(t, c.Client, "warm")) // starts the client's subscription
		time.Sleep(time.Minute)
		slow(f, rtt)
		measure := func(what string, messages uint64, trips int, fn func()) {
			t.Helper()
			out, begun := c.nc.Stats().OutMsgs, time.Now()
			fn()
			require.Equal(t, messages, c.nc.Stats().OutMsgs-out, what)
			require.Equal(t, time.Duration(trips)*rtt, time.Since(begun), what)
		}
		measure("n TryLocks", n, n, func() {
			for _, name := range names("single") {
				l, err := c.TryLock(t.Context(), name)
				require.NoError(t, err)
				defer runtime.KeepAlive(l)
			}
		})
		for what, acquire := range map[string]func(context.Context, []string, ...natslock.LockOption) (*natslock.Locks, error){
			"TryLockAll": c.TryLockAll, "LockAll": c.LockAll,
		} {
			var l *natslock.Locks
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

// A TryLockAll that is refused one lock returns that and releases the others.
func TestTryLockAllRefused(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		holder, c := join(t, s, natslock.WithOwner("alice")), join(t, s)
		r := newRaw(t, s.Connect())
		l := mustLock(t, holder.Client, "c")
		p := newTap(t, s.Connect(), ">")
		begun := time.Now()
		all, err := c.TryLockAll(t.Context(), []string{"d", "c", "b", "a"})
		require.Nil(t, all)
		var locked *natslock.LockedError
		require.ErrorAs(t, err, &locked)
		require.Equal(t, "c", locked.Name)
		require.Equal(t, "alice", locked.Holder.Owner)
		require.Zero(t, time.Since(begun))
		require.Equal(t, []string{"lock.c"}, r.live(">"))
		require.Len(t, p.take(t, c.nc), 7, "4 attempts, 3 releases")
		mustUnlock(t, l)
		all, err = c.TryLockAll(t.Context(), []string{"d", "c", "b", "a"})
		require.NoError(t, err)
		require.Equal(t, []string{"a", "b", "c", "d"}, all.Names())
		mustUnlockAll(t, all)
		require.Empty(t, r.live(">"))
	})
}

// Two clients that name the same locks in crossing orders queue for the smaller one first,
// and both get all of them.
func TestLockAllCrossing(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		holder, c := join(t, s), crowd(t, s, 2)
		r := newRaw(t, s.Connect())
		a, b := mustLock(t, holder.Client, "a"), mustLock(t, holder.Client, "b")
		both := []*gathering{
			c[0].gather(t, []string{"a", "b"}, natslock.MaxWait(time.Minute)),
			c[1].gather(t, []string{"b", "a"}, natslock.MaxWait(time.Minute)),
		}
		for _, m := range c {
			m.rec.wait(t, natslock.EventQueued, "a")
		}
		synctest.Wait()
		require.Len(t, r.live("wait.a.*"), 2)
		require.Empty(t, r.live("wait.b.*"))
		mustUnlock(t, b)
		mustUnlock(t, a)
		synctest.Wait()
		require.NotEqual(t, both[0].over(), both[1].over(), "one of them has both")
		for range both {
			for _, g := range both {
				if g.over() && g.locks != nil {
					mustUnlockAll(t, g.granted(t))
					g.locks = nil
				}
			}
			synctest.Wait()
		}
		for _, g := range both {
			receive(t, g.done, "the end")
			require.NoError(t, g.err)
		}
		require.Empty(t, r.live(">"))
	})
}

// While it waits for a name, a LockAll holds those before it and no later name. Then it
// takes the later names.
func TestLockAllKeepsSmaller(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		holder, other, c := join(t, s), join(t, s), join(t, s)
		r := newRaw(t, s.Connect())
		b := mustLock(t, holder.Client, "b")
		g := c.gather(t, []string{"d", "c", "b", "a"})
		c.rec.wait(t, natslock.EventQueued, "b")
		synctest.Wait()
		require.Equal(t, []string{"lock.a", "lock.b"}, r.live("lock.*"))
		d := mustLock(t, other.Client, "d")
		mustUnlock(t, b)
		c.rec.wait(t, natslock.EventQueued, "d")
		synctest.Wait()
		require.Equal(t, []string{"lock.a", "lock.b", "lock.c", "lock.d"}, r.live("lock.*"))
		require.False(t, g.over())
		mustUnlock(t, d)
		l := g.granted(t)
		require.Equal(t, []string{"a", "b", "c", "d"}, l.Names())
		require.Greater(t, l.Token("d"), d.Token())
		require.NoError(t, l.Err())
		mustUnlockAll(t, l)
		require.Empty(t, r.live(">"))
	})
}

// A name that comes twice is one lock, and names are in the order of their keys.
func TestLockAllNames(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := join(t, s)
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

// Bad input is refused before anything is sent. The error names it.
func TestLockAllInvalid(t *testing.T) {
	s := testutil.RunServer(t)
	c := join(t, s)
	rw, err := rwlock.New(c.Client).RLock(t.Context(), "shared")
	require.NoError(t, err)
	defer rw.Unlock(t.Context())
	many := make([]string, natslock.MaxLockAll+1)
	for i := range many {
		many[i] = fmt.Sprint(i)
	}
	out := c.nc.Stats().OutMsgs
	for what, x := range map[string]struct {
		names []string
		opts  []natslock.LockOption
		err   error
		text  string
	}{
		"no names":   {nil, nil, natslock.ErrInvalidOption, "there are 0"},
		"many":       {many, nil, natslock.ErrInvalidOption, "there are 257"},
		"empty":      {[]string{"a", ""}, nil, natslock.ErrInvalidName, `name 2, ""`},
		"long":       {[]string{"a", strings.Repeat("x", 600)}, nil, natslock.ErrInvalidName, "name 2"},
		"kind":       {[]string{"fresh", "shared"}, nil, natslock.ErrInvalidName, `"shared"`},
		"nil option": {[]string{"a", "b"}, []natslock.LockOption{nil}, natslock.ErrInvalidOption, "nil"},
		"TTL":        {[]string{"a", "b"}, []natslock.LockOption{natslock.TTL(48 * time.Hour)}, natslock.ErrInvalidTTL, `"a"`},
		"MaxWait":    {[]string{"a", "b"}, []natslock.LockOption{natslock.MaxWait(-1)}, natslock.ErrInvalidOption, "MaxWait"},
		"Until":      {[]string{"a", "b"}, []natslock.LockOption{natslock.Until(time.Now()), natslock.NoRenew()}, natslock.ErrInvalidOption, "Until"},
		"MinHold":    {[]string{"a", "b"}, []natslock.LockOption{natslock.MinHold(time.Second)}, natslock.ErrInvalidOption, "MinHold"},
		"Meta":       {[]string{"a", "b"}, []natslock.LockOption{natslock.Meta(map[string]string{"x": strings.Repeat("x", 1<<15)})}, natslock.ErrInvalidOption, `"a"`},
	} {
		for _, acquire := range []func(context.Context, []string, ...natslock.LockOption) (*natslock.Locks, error){c.LockAll, c.TryLockAll} {
			l, err := acquire(t.Context(), x.names, x.opts...)
			require.ErrorIs(t, err, x.err, what)
			require.ErrorContains(t, err, x.text, what)
			require.Nil(t, l, what)
		}
	}
	require.Equal(t, out, c.nc.Stats().OutMsgs, "nothing is sent")
	rw2, err := rwlock.New(c.Client).RLock(t.Context(), "fresh") // a refused call has not made it a mutex
	require.NoError(t, err)
	require.NoError(t, rw2.Unlock(t.Context()))
}

// A zero Locks holds nothing, and a client made without New takes none.
func TestLockAllZero(t *testing.T) {
	ctx := t.Context()
	for _, l := range []*natslock.Locks{nil, {}} {
		require.Empty(t, l.Names())
		require.Zero(t, l.Token("a"))
		refused(t, l.Err(), "no acquire has returned")
		refused(t, context.Cause(l.Context()), "no acquire has returned")
		refused(t, l.Unlock(ctx), "no acquire has returned")
		refused(t, l.Do(func(context.Context, *natslock.Locks) error { panic("it runs") }), "no acquire has returned")
	}
	for _, c := range []*natslock.Client{nil, {}} {
		_, err := c.LockAll(ctx, []string{"a"})
		refused(t, err, "made without New")
		_, err = c.TryLockAll(ctx, []string{"a"})
		refused(t, err, "made without New")
	}
}

// A LockAll that loses a lock while it waits for another one fails at once. It keeps
// nothing, and its error names both.
func TestLockAllLosesWhileWaiting(t *testing.T) {
	for what, lose := range map[string]func(t *testing.T, r *raw, by *natslock.Client, l natslock.Holder) error{
		"broken": func(t *testing.T, _ *raw, by *natslock.Client, h natslock.Holder) error {
			require.NoError(t, by.Break(t.Context(), natslock.BreakRequest{Kind: natslock.KindMutex, Name: "a", ID: h.ID, Reason: "test"}))
			return natslock.ErrBroken
		},
		"deleted": func(_ *testing.T, r *raw, _ *natslock.Client, _ natslock.Holder) error {
			r.remove("lock.a")
			return natslock.ErrLost
		},
	} {
		t.Run(what, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				holder, c := join(t, s), join(t, s, natslock.WithWatchAfter(0))
				r := newRaw(t, s.Connect())
				b := mustLock(t, holder.Client, "b")
				g := c.gather(t, []string{"a", "b"})
				c.rec.wait(t, natslock.EventQueued, "b")
				time.Sleep(2 * time.Second)
				begun := time.Now()
				want := lose(t, r, holder.Client, *inspect(t, holder.Client, "a").Holder)
				err := g.failed(t)
				require.ErrorIs(t, err, want)
				require.NotErrorIs(t, err, natslock.ErrTimeout)
				require.ErrorContains(t, err, `"a"`)
				require.ErrorContains(t, err, `"b"`)
				require.Less(t, g.at.Sub(begun), time.Second)
				time.Sleep(time.Second)
				require.Equal(t, []string{"lock.b"}, r.live(">"))
				mustUnlock(t, b)
			})
		})
	}
}

// A lease that is not renewed can end while LockAll waits for another lock.
func TestLockAllNoRenew(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		holder, c := join(t, s), join(t, s)
		b := mustLock(t, holder.Client, "b")
		_, err := c.LockAll(t.Context(), []string{"a", "b"}, natslock.NoRenew(), natslock.TTL(5*time.Second))
		require.ErrorIs(t, err, natslock.ErrLost)
		mustUnlock(t, b)
		until := time.Now().Add(10 * time.Second)
		l, err := c.LockAll(t.Context(), []string{"a", "b"}, natslock.Until(until))
		require.NoError(t, err)
		<-l.Context().Done()
		require.Equal(t, until, time.Now())
		require.ErrorIs(t, l.Err(), natslock.ErrEnded)
		require.ErrorIs(t, context.Cause(l.Context()), natslock.ErrEnded)
		require.ErrorIs(t, l.Unlock(t.Context()), natslock.ErrEnded)
	})
}

// The one context ends with the first loss. The others are held until Unlock, whose error
// names the lost one.
func TestLockAllContext(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		admin, c := join(t, s), join(t, s, natslock.WithWatchAfter(0))
		r := newRaw(t, s.Connect())
		l, err := c.LockAll(t.Context(), []string{"a", "b", "c"})
		require.NoError(t, err)
		time.Sleep(time.Second)
		require.NoError(t, l.Err())
		require.NoError(t, l.Context().Err())
		require.NoError(t, admin.Break(t.Context(), natslock.BreakRequest{
			Kind: natslock.KindMutex, Name: "b", ID: inspect(t, admin.Client, "b").Holder.ID, Reason: "test",
		}))
		receive(t, l.Context().Done(), "the end of the context")
		cause := context.Cause(l.Context())
		require.ErrorIs(t, cause, natslock.ErrBroken)
		require.ErrorContains(t, cause, `"b"`)
		require.ErrorIs(t, l.Err(), natslock.ErrBroken)
		synctest.Wait()
		require.Equal(t, []string{"lock.a", "lock.b", "lock.c"}, r.live(">"))
		err = l.Unlock(t.Context())
		require.ErrorIs(t, err, natslock.ErrBroken)
		require.ErrorContains(t, err, `"b"`)
		require.NotContains(t, err.Error(), `"a"`)
		require.ErrorIs(t, l.Err(), natslock.ErrBroken)
		require.Equal(t, err, l.Unlock(t.Context()))
		require.Empty(t, r.live(">"))
	})
}

// The context is a child of the acquire's, unless the locks are detached. Its end leaves
// the locks held.
func TestLockAllParent(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := join(t, s)
		type key struct{}
		ctx, cancel := context.WithCancelCause(context.WithValue(t.Context(), key{}, "value"))
		child, err := c.LockAll(ctx, []string{"a", "b"})
		require.NoError(t, err)
		detached, err := c.LockAll(ctx, []string{"c", "d"}, natslock.Detached())
		require.NoError(t, err)
		require.Equal(t, "value", child.Context().Value(key{}))
		require.Equal(t, "value", detached.Context().Value(key{}))
		reason := errors.New("the user went away")
		cancel(reason)
		require.Equal(t, reason, context.Cause(child.Context()))
		require.Equal(t, reason, child.Err())
		require.NoError(t, detached.Context().Err())
		require.NoError(t, detached.Err())
		time.Sleep(time.Minute)
		require.Equal(t, 4, c.Stats().Held)
		mustUnlockAll(t, child)
		mustUnlockAll(t, detached)
		require.ErrorIs(t, context.Cause(detached.Context()), natslock.ErrReleased)

		_, err = c.LockAll(ctx, []string{"a", "b"})
		require.ErrorIs(t, err, natslock.ErrTimeout)
		require.ErrorIs(t, err, reason)
		_, err = c.TryLockAll(ctx, []string{"a", "b"})
		require.ErrorIs(t, err, natslock.ErrTimeout)
		require.ErrorIs(t, err, reason)
	})
}

// Unlock ends the context before the first release is sent.
func TestLockAllContextEndsFirst(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, f := joinFaulty(t, s)
		l, err := c.LockAll(t.Context(), []string{"a", "b", "c"})
		require.NoError(t, err)
		f.OnSend(func(_ int, w kvstore.Write) testutil.Fate {
			assert.True(t, w.Delete)
			assert.ErrorIs(t, l.Context().Err(), context.Canceled)
			return testutil.Pass
		})
		mustUnlockAll(t, l)
	})
}

// MaxWait and ctx bound the whole call, also after some locks were granted. Then these are
// released.
func TestLockAllGivesUp(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		holder, c := join(t, s, natslock.WithOwner("alice")), join(t, s)
		r := newRaw(t, s.Connect())
		for _, limit := range []bool{true, false} {
			b, e := mustLock(t, holder.Client, "b"), mustLock(t, holder.Client, "e")
			var opts []natslock.LockOption
			if limit {
				opts = append(opts, natslock.MaxWait(10*time.Second))
			}
			g := c.gather(t, []string{"a", "b", "c", "d", "e"}, opts...)
			time.Sleep(6 * time.Second)
			mustUnlock(t, b)
			time.Sleep(4*time.Second - time.Millisecond)
			require.False(t, g.over())
			require.Len(t, r.live("lock.*"), 5)
			time.Sleep(time.Millisecond)
			reason := errors.New("the user went away")
			if !limit {
				g.cancel(reason)
			}
			err := g.failed(t)
			var timeout *natslock.TimeoutError
			require.ErrorAs(t, err, &timeout)
			require.Equal(t, "e", timeout.Name)
			require.Equal(t, 10*time.Second, timeout.Waited)
			require.Equal(t, "alice", timeout.Holder.Owner)
			if !limit {
				require.ErrorIs(t, err, reason)
				require.ErrorIs(t, err, context.Canceled)
			} else {
				require.NotErrorIs(t, err, context.DeadlineExceeded)
			}
			synctest.Wait()
			require.Equal(t, []string{"lock.e"}, r.live(">"))
			mustUnlock(t, e)
		}
	})
}

// A LockAll outlives an outage, and one that gives up in it does so in time.
func TestLockAllOutage(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := join(t, s)
		mustUnlock(t, mustLock(t, c.Client, "warm"))
		c.link.Blackhole(true)
		begun := time.Now()
		_, err := c.LockAll(t.Context(), []string{"a", "b"}, natslock.MaxWait(2*time.Second))
		require.ErrorIs(t, err, natslock.ErrTimeout)
		require.Equal(t, 2*time.Second, time.Since(begun))
		_, err = c.TryLockAll(t.Context(), []string{"a", "b"})
		require.ErrorIs(t, err, natslock.ErrUnavailable)
		g := c.gather(t, []string{"a", "b"})
		time.Sleep(20 * time.Second)
		c.link.Blackhole(false)
		mustUnlockAll(t, g.granted(t))
	})
}

// Whatever becomes of a write, a LockAll gets its locks, and leaves nothing.
func TestLockAllFaults(t *testing.T) {
	for _, fate := range []testutil.Fate{testutil.Drop, testutil.LoseAnswer, testutil.Delay(3 * time.Second), testutil.DelayAnswer(20 * time.Second)} {
		for nth := range 7 {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				other, c := join(t, s), (*member)(nil)
				c, f := joinFaulty(t, s)
				r := newRaw(t, s.Connect())
				b := mustLock(t, other.Client, "b")
				var mu sync.Mutex
				n := 0
				f.OnSend(func(int, kvstore.Write) testutil.Fate {
					mu.Lock()
					defer mu.Unlock()
					if n++; n == nth+1 {
						return fate
					}
					return testutil.Pass
				})
				g := c.gather(t, []string{"a", "b", "c"}, natslock.MaxWait(2*time.Minute))
				time.Sleep(15 * time.Second)
				mustUnlock(t, b)
				l := g.granted(t)
				for _, name := range l.Names() {
					_, err := other.TryLock(t.Context(), name)
					require.ErrorIs(t, err, natslock.ErrLocked)
				}
				time.Sleep(time.Minute)
				mustUnlockAll(t, l)
				time.Sleep(time.Minute)
				require.Emptyf(t, r.live(">"), "%v of write %d", fate, nth+1)
			})
		}
	}
}

// Goroutines of one client, and of two, that lock overlapping sets are inside one at a
// time, also with locks that linger.
func TestLockAllSiblings(t *testing.T) {
	sets := [][]string{{"a", "b"}, {"b", "c"}, {"c", "a"}, {"c", "b", "a"}, {"b", "a"}, {"c"}}
	for name, opts := range map[string][]natslock.LockOption{"plain": nil, "lingering": {natslock.Linger(time.Minute)}} {
		t.Run(name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				var mu sync.Mutex
				inside, tokens := map[string]int{}, map[string]uint64{}
				var all sync.WaitGroup
				clients := crowd(t, s, 2)
				for i, set := range append(sets, sets...) {
					c := clients[i%2]
					all.Go(func() {
						for n := range 50 {
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

// A LockAll of locks that its client keeps idle costs no message.
func TestLockAllLingers(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := join(t, s)
		names := []string{"a", "b", "c"}
		for i := range 3 {
			out := c.nc.Stats().OutMsgs
			l, err := c.LockAll(t.Context(), names, natslock.Linger(time.Minute))
			require.NoError(t, err)
			mustUnlockAll(t, l)
			if i > 0 {
				require.Equal(t, out, c.nc.Stats().OutMsgs)
			}
			time.Sleep(time.Millisecond) // the queues are listed
		}
		require.Equal(t, 3, c.Stats().Idle)
	})
}

// Close ends a LockAll that waits, which releases what it has. It waits for the holder of
// locks.
func TestLockAllClose(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		holder, c := join(t, s), join(t, s)
		r := newRaw(t, s.Connect())
		b := mustLock(t, holder.Client, "b")
		held, err := c.LockAll(t.Context(), []string{"x", "y"})
		require.NoError(t, err)
		g := c.gather(t, []string{"a", "b"})
		c.rec.wait(t, natslock.EventQueued, "b")
		closed := make(chan error, 1)
		go func() { closed <- c.Close(context.Background()) }()
		err = g.failed(t)
		require.ErrorIs(t, err, natslock.ErrClosed)
		synctest.Wait()
		require.Equal(t, []string{"lock.b", "lock.x", "lock.y"}, r.live(">"))
		require.Empty(t, closed)
		mustUnlockAll(t, held)
		require.NoError(t, receive(t, closed, "the end of Close"))
		mustUnlock(t, b)
		for _, acquire := range []func(context.Context, []string, ...natslock.LockOption) (*natslock.Locks, error){c.LockAll, c.TryLockAll} {
			_, err = acquire(t.Context(), []string{"a", "b"})
			require.ErrorIs(t, err, natslock.ErrClosed)
		}
	})
}

// Do unlocks when its function returns or panics.
func TestLockAllDo(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := join(t, s)
		r := newRaw(t, s.Connect())
		fault := errors.New("fault")
		l, err := c.TryLockAll(t.Context(), []string{"a", "b"})
		require.NoError(t, err)
		refused(t, l.Do(nil), "nil")
		require.NoError(t, l.Err())
		require.ErrorIs(t, l.Do(func(ctx context.Context, in *natslock.Locks) error {
			assert.Same(t, l, in)
			assert.NoError(t, ctx.Err())
			return fault
		}), fault)
		require.Empty(t, r.live(">"))
		l, err = c.LockAll(t.Context(), []string{"a", "b"})
		require.NoError(t, err)
		require.Panics(t, func() { _ = l.Do(func(context.Context, *natslock.Locks) error { panic("test") }) })
		require.Empty(t, r.live(">"))
	})
}

// Locks that are dropped without Unlock are renewed no more.
func TestLockAllDropped(t *testing.T) {
	s := testutil.RunServer(t)
	var log journal
	other := join(t, s)
	c := join(t, s, log.option())
	ctx := func() context.Context {
		l, err := c.LockAll(t.Context(), []string{"a", "b"}, natslock.TTL(time.Second))
		require.NoError(t, err)
		c.rec.wait(t, natslock.EventRenewed, "a")
		c.rec.wait(t, natslock.EventRenewed, "b")
		require.NoError(t, l.Err())
		return l.Context()
	}()
	eventually(t, "it is noticed", func() bool {
		runtime.GC()
		return strings.Contains(log.String(), "lock=a") && strings.Contains(log.String(), "lock=b")
	})
	receive(t, ctx.Done(), "the end of the context")
	require.ErrorIs(t, context.Cause(ctx), natslock.ErrLost)
	l, err := other.LockAll(t.Context(), []string{"a", "b"})
	require.NoError(t, err)
	mustUnlockAll(t, l)
}
