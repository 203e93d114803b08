package natslock_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// TestUnlockOnClosedConnection checks that Unlock does not wait on a closed connection, because no
// reply can arrive.
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

// TestUnlockContext checks that Unlock's context ends only the wait, not the release.
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

// TestUnlockContextEndedBefore checks that Unlock still waits if its context had already ended, is
// the lock's own, or is nil.
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

// blindToSize does not know the server's size limit.
type blindToSize struct{ kvstore.KV }

func (blindToSize) MaxValue() int { return kvstore.MaxRecord }

// TestExtendOnClosedConnection checks that Extend does not wait on a connection closed for good,
// because no confirmation can arrive.
func TestExtendOnClosedConnection(t *testing.T) {
	for name, early := range map[string]bool{"closed before": true, "closed meanwhile": false} {
		t.Run(name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				c := kit.Join(t, s)
				l := kit.Must(t, c.Lock, "l")
				if early {
					c.NC.Close()
				} else {
					c.Link.Blackhole(true)
					time.AfterFunc(time.Second, c.NC.Close)
				}
				begun := time.Now()
				err := l.Extend(t.Context(), time.Minute)
				require.ErrorIs(t, err, natslock.ErrUnavailable)
				require.ErrorContains(t, err, "connection closed")
				require.LessOrEqual(t, time.Since(begun), 1100*time.Millisecond)
				require.NoError(t, l.Err(), "it holds until the end of its validity")
			})
		})
	}
}
