// Package guide_test runs what docs/guide/shutdown.md describes: each row of its table during
// an outage of two minutes, and the order in which a process shuts down. Time is simulated.
package guide_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/election"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

func TestMain(m *testing.M) { kit.LeakCheck(m) }

// outage is a client that has acquired locks and then loses its server.
type outage struct {
	t     *testing.T
	locks *natslock.Client
	other *natslock.Client // can reach the server throughout
	nc    *nats.Conn
	link  *testutil.Link
	began time.Time
}

func newOutage(t *testing.T, s *testutil.Server, opts ...nats.Option) *outage {
	t.Helper()
	o := &outage{t: t}
	o.nc, o.link = s.ConnectLink(opts...)
	o.locks, o.other = newClient(t, o.nc), newClient(t, s.Connect())
	return o
}

func newClient(t *testing.T, nc *nats.Conn) *natslock.Client {
	t.Helper()
	c, err := natslock.New(t.Context(), nc)
	require.NoError(t, err)
	t.Cleanup(func() {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		_ = c.Close(ended)
	})
	return c
}

func (o *outage) cut() { o.link.Cut(); o.began = time.Now() }

// call is a call running in the background.
type call struct {
	done chan struct{}
	err  error
	at   time.Duration // since the beginning of the outage
}

func (o *outage) call(fn func() error) *call {
	c := &call{done: make(chan struct{})}
	go func() {
		defer close(c.done)
		c.err = fn()
		c.at = time.Since(o.began)
	}()
	return c
}

// ends waits for a call to end and requires that it ended between from and to after the
// beginning of the outage, with errors that match.
func (o *outage) ends(what string, c *call, from, to time.Duration, match ...error) {
	o.t.Helper()
	<-c.done
	assert.True(o.t, from <= c.at && c.at <= to, "%s: %v and not %v to %v", what, c.at, from, to)
	if len(match) == 0 {
		assert.NoError(o.t, c.err, what)
	}
	for _, m := range match {
		assert.ErrorIs(o.t, c.err, m, what)
	}
}

func (o *outage) lock(name string, opts ...natslock.LockOption) *natslock.Lock {
	o.t.Helper()
	l, err := o.locks.Lock(o.t.Context(), name, opts...)
	require.NoError(o.t, err)
	return l
}

func nothing(context.Context, *natslock.Lock) error { return nil }

// TestOutage runs the page's table.
func TestOutage(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		o := newOutage(t, s, nats.MaxReconnects(-1))
		ctx := t.Context()
		held, released, extended, kept := o.lock("held"), o.lock("released"), o.lock("extended"), o.lock("kept", natslock.TTL(5*time.Minute))
		theirs, err := o.other.Lock(ctx, "theirs")
		require.NoError(t, err)
		waiter := o.call(func() error { return o.locks.Do(ctx, "theirs", nothing) })
		e := election.New(o.locks, "leader")
		leads, stop := context.WithCancel(ctx)
		defer stop()
		terms := make(chan time.Duration, 4)
		run := o.call(func() error {
			return e.Run(leads, func(ctx context.Context, _ *election.Term) error {
				<-ctx.Done()
				terms <- time.Since(o.began)
				return nil
			})
		})
		observed := make(chan election.Leader, 100)
		go func() {
			for l, err := range e.Observe(leads) {
				assert.NoError(t, err)
				observed <- l
			}
		}()
		time.Sleep(9 * time.Second) // the last renewal is 4 s old
		first := <-observed
		for first.Vacant() {
			first = <-observed
		}
		_, leading := e.IsLeader()
		require.True(t, leading)
		require.NoError(t, o.locks.Healthy())
		o.cut()
		synctest.Wait()

		tryLock := o.call(func() error { _, err := o.locks.TryLock(ctx, "a"); return err })
		tryDo := o.call(func() error { return o.locks.TryDo(ctx, "b", nothing) })
		bounded := o.call(func() error { _, err := o.locks.Lock(ctx, "c", natslock.MaxWait(3*time.Second)); return err })
		waiting := o.call(func() error { return o.locks.Do(ctx, "d", nothing) })
		once := o.call(func() error { return o.locks.Once(ctx, "e", time.Hour, nothing) })
		leader := o.call(func() error { _, err := e.Leader(ctx); return err })
		unlock := o.call(func() error { return released.Unlock(ctx) })
		extend := o.call(func() error { return extended.Extend(ctx, 0) })
		heldEnds := o.call(func() error { <-held.Context().Done(); return context.Cause(held.Context()) })

		o.ends("TryLock", tryLock, 0, 5*time.Second, natslock.ErrUnavailable)
		o.ends("TryDo", tryDo, 0, 5*time.Second, natslock.ErrUnavailable)
		o.ends("Once", once, 0, 5*time.Second, natslock.ErrUnavailable)
		o.ends("Leader", leader, 0, 5*time.Second, natslock.ErrUnavailable)
		require.ErrorIs(t, o.locks.Healthy(), natslock.ErrUnavailable)
		o.ends("Lock with MaxWait", bounded, 3*time.Second, 3*time.Second, natslock.ErrUnavailable, natslock.ErrTimeout)
		o.ends("Unlock", unlock, 5*time.Second, 5*time.Second, natslock.ErrUnavailable)
		// The validity is 14 s from a renewal, and the last renewal was at most 5 s ago.
		o.ends("the context of a held lock", heldEnds, 8*time.Second, 14*time.Second, natslock.ErrLost)
		o.ends("Extend", extend, 8*time.Second, 14*time.Second, natslock.ErrLost)
		require.ErrorIs(t, held.Unlock(ctx), natslock.ErrLost)
		require.LessOrEqual(t, <-terms, 14*time.Second, "the term of a leader")
		_, leading = e.IsLeader()
		require.False(t, leading)

		time.Sleep(time.Until(o.began.Add(2 * time.Minute)))
		require.NoError(t, kept.Err(), "a TTL longer than the outage")
		require.ErrorIs(t, o.locks.Healthy(), natslock.ErrUnavailable)
		require.Empty(t, observed, "Observe yields nothing in an outage")
		require.NoError(t, theirs.Unlock(ctx))
		o.link.Heal()
		o.ends("Lock without a limit", waiting, 2*time.Minute, 2*time.Minute+3*time.Second)
		o.ends("a waiter of before", waiter, 2*time.Minute, 2*time.Minute+3*time.Second)
		require.NoError(t, o.locks.Healthy())
		_, leading = e.IsLeader()
		require.True(t, leading, "Run campaigns again")
		require.True(t, (<-observed).Vacant(), "a vacancy, and then the next term")
		require.Greater(t, (<-observed).Token, first.Token)
		require.NoError(t, kept.Unlock(ctx))
		stop()
		o.ends("Run", run, 2*time.Minute, 3*time.Minute, context.Canceled)
	})
}

// TestSilent covers a connection that counts as up but delivers no replies.
func TestSilent(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		o := newOutage(t, s, nats.PingInterval(10*time.Second))
		held, released := o.lock("held"), o.lock("released")
		time.Sleep(time.Second)
		o.link.Blackhole(true)
		o.began = time.Now()
		tryLock := o.call(func() error { _, err := o.locks.TryLock(t.Context(), "l"); return err })
		unlock := o.call(func() error { return released.Unlock(t.Context()) })
		heldEnds := o.call(func() error { <-held.Context().Done(); return context.Cause(held.Context()) })
		o.ends("TryLock", tryLock, time.Millisecond, 5*time.Second, natslock.ErrUnavailable)
		require.NoError(t, o.locks.Healthy(), "it does not know yet")
		o.ends("Unlock", unlock, 5*time.Second, 5*time.Second, natslock.ErrUnavailable)
		time.Sleep(time.Second)
		require.ErrorIs(t, o.locks.Healthy(), natslock.ErrUnavailable)
		require.True(t, o.nc.IsConnected())
		o.ends("the context of a held lock", heldEnds, 13*time.Second, 14*time.Second, natslock.ErrLost)
		time.Sleep(time.Until(o.began.Add(31 * time.Second)))
		require.False(t, o.nc.IsConnected(), "two pings in intervals of 10 s had no answer")
	})
}

// TestOutageShort checks that a lock survives an outage that is shorter than its validity.
func TestOutageShort(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		o := newOutage(t, s, nats.MaxReconnects(-1))
		l := o.lock("held")
		time.Sleep(9 * time.Second)
		o.cut()
		time.Sleep(8 * time.Second)
		o.link.Heal()
		time.Sleep(time.Minute)
		require.NoError(t, l.Err())
		require.NoError(t, l.Unlock(t.Context()))
	})
}

// TestDefaultReconnects checks that with the defaults of nats.go a connection is closed for
// good after an outage of two minutes, after which everything on it fails.
func TestDefaultReconnects(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		o := newOutage(t, s, nats.MaxReconnects(nats.DefaultMaxReconnect), nats.ReconnectWait(nats.DefaultReconnectWait),
			nats.ReconnectJitter(nats.DefaultReconnectJitter, nats.DefaultReconnectJitterTLS))
		ctx := t.Context()
		o.cut()
		waiter := o.call(func() error { _, err := o.locks.Lock(ctx, "l"); return err })
		run := o.call(func() error {
			return election.New(o.locks, "leader").Run(ctx, func(context.Context, *election.Term) error { return nil })
		})
		o.ends("Lock", waiter, 2*time.Minute, 130*time.Second, natslock.ErrUnavailable, nats.ErrConnectionClosed)
		o.ends("Run", run, 2*time.Minute, 130*time.Second, natslock.ErrUnavailable, nats.ErrConnectionClosed)
		o.link.Heal()
		time.Sleep(time.Hour)
		require.True(t, o.nc.IsClosed())
		require.ErrorIs(t, o.locks.Healthy(), natslock.ErrUnavailable)
		_, err := o.locks.TryLock(ctx, "l")
		require.ErrorIs(t, err, nats.ErrConnectionClosed)
	})
}

// TestRefusedLogin checks that nats.go closes a connection for good when the server refuses the
// login twice in a row, whatever MaxReconnects says, unless IgnoreAuthErrorAbort is given.
func TestRefusedLogin(t *testing.T) {
	var options *server.Options
	users := func(password string) []*server.User { return []*server.User{{Username: "u", Password: password}} }
	// This needs TCP: in a bubble, the end of the connection overtakes the server's refusal.
	s := testutil.RunServer(t, testutil.WithConfig(func(o *server.Options) { o.Users, options = users("p"), o }))
	login := []nats.Option{nats.UserInfo("u", "p"), nats.MaxReconnects(-1), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})}
	gone, stays := s.Connect(login...), s.Connect(append(login, nats.IgnoreAuthErrorAbort())...)
	c := newClient(t, stays)
	reload := func(password string) {
		o := options.Clone()
		o.Users = users(password)
		require.NoError(t, s.Server().ReloadOptions(o))
	}
	reload("another")
	require.Eventually(t, gone.IsClosed, 30*time.Second, 10*time.Millisecond)
	require.Eventually(t, func() bool { return errors.Is(c.Healthy(), natslock.ErrUnavailable) }, 30*time.Second, 10*time.Millisecond)
	require.False(t, stays.IsClosed())
	reload("p")
	require.NoError(t, c.Do(t.Context(), "l", nothing))
}

// TestCloseInOutage checks that Close waits for holders until its context ends but ends the
// waiters immediately.
func TestCloseInOutage(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		o := newOutage(t, s, nats.MaxReconnects(-1))
		theirs, err := o.other.Lock(t.Context(), "theirs")
		require.NoError(t, err)
		held := o.lock("held")
		waiter := o.call(func() error { return o.locks.Do(t.Context(), "theirs", nothing) })
		time.Sleep(time.Second)
		o.cut()
		end, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		closed := o.call(func() error { return o.locks.Close(end) })
		o.ends("a waiter", waiter, 0, 0, natslock.ErrClosed)
		o.ends("Close", closed, 5*time.Second, 5*time.Second, context.DeadlineExceeded)
		require.ErrorIs(t, context.Cause(held.Context()), natslock.ErrClosed)
		require.ErrorIs(t, o.locks.Healthy(), natslock.ErrClosed)
		require.NoError(t, theirs.Unlock(t.Context()))
	})
}

// TestOrder checks that after Close followed by nc.Close the next client gets the locks
// immediately. After just nc.Close or nc.Drain it has to wait for the TTL, even for idle locks.
func TestOrder(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		next := newClient(t, s.Connect())
		for name, end := range map[string]func(*natslock.Client, *nats.Conn){
			"nc.Close": func(_ *natslock.Client, nc *nats.Conn) { nc.Close() },
			"nc.Drain": func(_ *natslock.Client, nc *nats.Conn) { require.NoError(t, nc.Drain()) },
			"Close, nc.Close": func(c *natslock.Client, nc *nats.Conn) {
				require.NoError(t, c.Close(context.Background()))
				nc.Close()
			},
			"Close, nc.Drain": func(c *natslock.Client, nc *nats.Conn) {
				require.NoError(t, c.Close(context.Background()))
				require.NoError(t, nc.Drain())
			},
		} {
			nc := s.Connect()
			c := newClient(t, nc)
			require.NoError(t, c.Do(t.Context(), "idle", nothing, natslock.Linger(time.Minute)))
			l, err := c.Lock(t.Context(), "held")
			require.NoError(t, err)
			time.AfterFunc(time.Second, func() { _ = l.Unlock(context.Background()) }) // its work takes a second
			end(c, nc)
			begin := time.Now()
			require.NoError(t, next.Do(t.Context(), "idle", nothing))
			require.NoError(t, next.Do(t.Context(), "held", nothing))
			if waited := time.Since(begin); name == "nc.Close" || name == "nc.Drain" {
				require.Greater(t, waited, 10*time.Second, name)
			} else {
				require.Less(t, waited, time.Second, name)
			}
		}
		time.Sleep(time.Minute) // nats.go drains on a goroutine of its own
	})
}

// TestDetached checks that the context of a signal ends the waiting but, with Detached, not the
// work. Close waits for the work.
func TestDetached(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		o := newOutage(t, s)
		o.began = time.Now()
		ctx, signal := context.WithCancel(t.Context())
		work := func(ctx context.Context, _ *natslock.Lock) error {
			select {
			case <-time.After(10 * time.Second):
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		plain := o.call(func() error { return o.locks.Do(ctx, "plain", work) })
		detached := o.call(func() error { return o.locks.Do(ctx, "detached", work, natslock.Detached()) })
		synctest.Wait()
		waits := o.call(func() error { return o.locks.Do(ctx, "detached", work, natslock.Detached()) })
		time.Sleep(time.Second)
		signal()
		o.ends("without Detached", plain, time.Second, time.Second, context.Canceled)
		o.ends("a wait with Detached", waits, time.Second, time.Second, context.Canceled)
		o.ends("Close", o.call(func() error { return o.locks.Close(context.Background()) }), 10*time.Second, 10*time.Second)
		o.ends("with Detached", detached, 10*time.Second, 10*time.Second)
	})
}

// TestCloseEnded checks that Close waits for no holder if its context has already ended. A
// later Unlock reports this and leaves the record to its TTL.
func TestCloseEnded(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		o := newOutage(t, s)
		held := o.lock("held")
		require.NoError(t, o.locks.Do(t.Context(), "idle", nothing, natslock.Linger(time.Minute)))
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		require.ErrorIs(t, o.locks.Close(ended), context.Canceled)
		require.ErrorIs(t, held.Err(), natslock.ErrClosed)
		unlock := held.Unlock(t.Context())
		require.ErrorIs(t, unlock, natslock.ErrClosed)
		require.NotErrorIs(t, unlock, natslock.ErrLost)
		_, err := o.other.TryLock(t.Context(), "held")
		require.ErrorIs(t, err, natslock.ErrLocked)
		time.Sleep(time.Second)
		l, err := o.other.TryLock(t.Context(), "idle")
		require.NoError(t, err, "an idle lock is given up in the background")
		require.NoError(t, l.Unlock(t.Context()))
	})
}
