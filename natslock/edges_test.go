package natslock_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// On a connection that was closed nothing is worth waiting for.
func TestUnlockOnClosedConnection(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		for name, how := range map[string]func(nc *nats.Conn){
			"closed before": (*nats.Conn).Close,
			"closed in the release": func(nc *nats.Conn) {
				time.AfterFunc(200*time.Millisecond, nc.Close)
			},
		} {
			c := kit.Join(t, s)
			l, m := kit.Must(t, c.Lock, "l", natslock.TTL(time.Hour)), kit.Must(t, c.Lock, "m", natslock.TTL(time.Hour))
			if name != "closed before" {
				c.Link.Blackhole(true)
			}
			begun := time.Now()
			how(c.NC)
			for _, l := range []*natslock.Lock{l, m} {
				err := l.Unlock(t.Context())
				require.ErrorIs(t, err, natslock.ErrUnavailable, name)
				require.ErrorIs(t, err, nats.ErrConnectionClosed, name)
				require.NotErrorIs(t, err, natslock.ErrLost, name)
			}
			require.LessOrEqual(t, time.Since(begun), 200*time.Millisecond, name)
			begun = time.Now()
			require.NoError(t, c.Close(t.Context()), "no clean-up is left that could wait")
			require.Zero(t, time.Since(begun), name)
			c.Link.Blackhole(false)
			r := kit.NewRaw(t, s.Connect())
			for _, key := range r.Live("lock.>") {
				r.Remove(key)
			}
		}
	})
}

// The context of an Unlock ends its waiting, and not the release.
func TestUnlockContext(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, other := kit.Join(t, s), kit.Join(t, s)
		l := kit.Must(t, c.Lock, "l", natslock.TTL(time.Hour))
		var all *natslock.LockSet
		all, err := c.LockAll(t.Context(), []string{"x", "y"})
		require.NoError(t, err)
		c.Link.Blackhole(true)
		for name, unlock := range map[string]func(context.Context) error{"one": l.Unlock, "several": all.Unlock} {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			begun := time.Now()
			err := unlock(ctx)
			cancel()
			require.Equal(t, 300*time.Millisecond, time.Since(begun), name)
			require.ErrorIs(t, err, natslock.ErrUnavailable, name)
			require.ErrorIs(t, err, context.DeadlineExceeded, name)
			require.NotErrorIs(t, err, natslock.ErrLost, name)
		}
		require.ErrorIs(t, l.Err(), natslock.ErrReleased)
		c.Link.Blackhole(false)
		for _, name := range []string{"l", "x", "y"} {
			kit.Must(t, other.Lock, name)
		}
	})
}

// A context that had ended before, the lock's own and none are no reason not to wait.
func TestUnlockContextEndedBefore(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		for name, ctx := range map[string]func(l *natslock.Lock) context.Context{
			"ended": func(*natslock.Lock) context.Context {
				ctx, cancel := context.WithCancel(context.Background())
				cancel()
				return ctx
			},
			"its own": (*natslock.Lock).Context,
			"below its own": func(l *natslock.Lock) context.Context {
				ctx, cancel := context.WithTimeout(l.Context(), time.Hour)
				t.Cleanup(cancel)
				return ctx
			},
			"none": func(*natslock.Lock) context.Context { return nil },
		} {
			c := kit.Join(t, s)
			l := kit.Must(t, c.Lock, "l")
			c.Link.Blackhole(true)
			time.AfterFunc(2*time.Second, func() { c.Link.Blackhole(false) })
			begun := time.Now()
			require.NoError(t, l.Unlock(ctx(l)), name)
			require.GreaterOrEqual(t, time.Since(begun), 2*time.Second, name)
		}
	})
}

// A Close that an observer calls does not wait for the observer, whichever context it has.
func TestCloseInObserver(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		for _, second := range []bool{false, true} {
			var c *natslock.Client
			entered, go_ := make(chan struct{}), make(chan struct{})
			closed := make(chan time.Duration, 1)
			c = kit.NewClient(t, s.Connect(), admin.WithObserver(func(_ context.Context, ev admin.Event) {
				if ev.Type != admin.EventReleased {
					return
				}
				close(entered)
				<-go_
				begun := time.Now()
				err := c.Close(context.Background())
				if err != nil {
					t.Error(err)
				}
				closed <- time.Since(begun)
			}))
			kit.Unlock(t, kit.Must(t, c.Lock, "l"))
			<-entered
			other := make(chan time.Duration, 1)
			if second { // another Close waits for the observer already
				go func() {
					begun := time.Now()
					_ = c.Close(context.Background())
					other <- time.Since(begun)
				}()
			} else {
				other <- 0
			}
			time.Sleep(time.Second)
			close(go_)
			require.Zero(t, kit.Receive(t, closed, "Close in the observer"))
			require.LessOrEqual(t, kit.Receive(t, other, "the other Close"), time.Second)
		}
	})
}

// A nil context is refused before anything has happened.
func TestNilContext(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		l := kit.Must(t, c.Lock, "l")
		var none context.Context
		var errs []error
		add := func(err error) { errs = append(errs, err) }
		add(c.Close(none))
		_, err := c.Lock(none, "x")
		add(err)
		_, err = c.TryLock(none, "x")
		add(err)
		_, err = c.LockAll(none, []string{"x", "y"})
		add(err)
		add(c.Do(none, "x", func(context.Context, *natslock.Lock) error { return nil }))
		add(c.Once(none, "x", time.Hour, func(context.Context, *natslock.Lock) error { return nil }))
		add(admin.New(c.Client).Break(none, admin.BreakRequest{Name: "l", ID: l.ID()}))
		_, err = admin.New(c.Client).Inspect(none, admin.KindMutex, "l")
		add(err)
		for _, err := range admin.New(c.Client).List(none, ">") {
			add(err)
		}
		for _, err := range admin.New(c.Client).Watch(none, ">") {
			add(err)
		}
		for _, err := range admin.New(c.Client).History(none, ">", time.Time{}) {
			add(err)
		}
		add(l.Extend(none, 0))
		add(l.SetMeta(none, nil))
		_, err = l.Handoff(none)
		add(err)
		_, err = c.Adopt(none, natslock.Handle{})
		add(err)
		_, err = natslock.New(none, c.NC)
		add(err)
		require.Len(t, errs, 16)
		for i, err := range errs {
			require.ErrorIs(t, err, natslock.ErrInvalid, "number %d", i)
		}
		kit.WantHeld(t, l)
		kit.Unlock(t, l)
		begun := time.Now()
		require.NoError(t, c.Close(context.Background()))
		require.Zero(t, time.Since(begun), "nothing is left that it waits for")
	})
}

// With the old style of requests a draining connection receives nothing. The release goes
// out all the same.
func TestDrainOldRequestStyle(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		nc := s.Connect(nats.UseOldRequestStyle())
		c := kit.NewClient(t, nc)
		r := kit.NewRaw(t, s.Connect())
		inside, result := make(chan struct{}), make(chan error, 1)
		_, err := nc.Subscribe("work", func(*nats.Msg) {
			result <- c.Do(context.Background(), "l", func(context.Context, *natslock.Lock) error {
				close(inside)
				time.Sleep(3 * time.Second)
				return nil
			})
		})
		require.NoError(t, err)
		require.NoError(t, nc.Flush())
		require.NoError(t, s.Connect().Publish("work", nil))
		<-inside
		require.NoError(t, nc.Drain())
		time.Sleep(2900 * time.Millisecond)
		require.NotEmpty(t, r.Live("lock.l"))
		begun := time.Now()
		err = kit.Receive(t, result, "the handler")
		require.ErrorIs(t, err, natslock.ErrUnavailable)
		require.ErrorContains(t, err, "UseOldRequestStyle")
		require.NotErrorIs(t, err, natslock.ErrLost)
		require.Equal(t, 100*time.Millisecond, time.Since(begun).Round(10*time.Millisecond), "at once")
		synctest.Wait()
		require.Empty(t, r.Live("lock.l"), "nobody waits for its TTL")
		kit.Eventually(t, "the drain is over", nc.IsClosed)
	})
}

// blindToSize does not know how much the server takes.
type blindToSize struct{ kvstore.KV }

func (blindToSize) MaxValue() int { return kvstore.MaxRecord }

// Metadata that the server does not take are refused, and the lease is as it was. That also
// holds where only the write itself shows it.
func TestMaxPayload(t *testing.T) {
	for _, blind := range []bool{false, true} {
		testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
			c := kit.Join(t, s, faults.WrapStore(func(kv kvstore.KV) kvstore.KV {
				if blind {
					return blindToSize{kv}
				}
				return kv
			}))
			meta := func(n int) map[string]string { return map[string]string{"k": strings.Repeat("x", n)} }
			l := kit.Must(t, c.Lock, "l", natslock.Meta(meta(10)))
			require.NoError(t, l.SetMeta(t.Context(), meta(20)))
			begun := time.Now()
			for what, err := range map[string]error{
				"SetMeta": l.SetMeta(t.Context(), meta(3000)),
				"Lock":    func() error { _, err := c.Lock(t.Context(), "m", natslock.Meta(meta(3000))); return err }(),
			} {
				require.ErrorIs(t, err, natslock.ErrInvalid, what)
				require.NotErrorIs(t, err, natslock.ErrUnavailable, what)
			}
			require.Less(t, time.Since(begun), time.Second)
			time.Sleep(2 * time.Minute)
			kit.WantHeld(t, l)
			require.Equal(t, meta(20), kit.Inspect(t, c.Client, "l").Holder.Meta)
			require.NoError(t, l.SetMeta(t.Context(), meta(1000)))
			kit.Unlock(t, l)
		}, testutil.WithConfig(func(o *server.Options) { o.MaxPayload = 3000 }))
	}
}

// An error of the function itself may match ErrLocked, too. It names the lock.
func TestTryDoFunctionReturnsLocked(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		kit.Must(t, c.Lock, "other")
		ran := false
		err := c.TryDo(t.Context(), "l", func(ctx context.Context, _ *natslock.Lock) error {
			ran = true
			_, err := c.TryLock(ctx, "other")
			return err
		})
		require.True(t, ran)
		var locked *natslock.LockedError
		require.ErrorAs(t, err, &locked)
		require.Equal(t, "other", locked.Name)
	})
}
