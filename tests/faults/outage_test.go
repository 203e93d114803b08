package faults_test

import (
	"context"
	"fmt"
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
	"github.com/natslock/locks/testutil"
)

// TestHandleServerRestart checks that a lease survives a server restart that is shorter than its
// TTL if the server keeps its files.
func TestHandleServerRestart(t *testing.T) {
	t.Parallel()
	s := testutil.RunServer(t)
	c, other := kit.Join(t, s), kit.Join(t, s)
	l := kit.Must(t, c.Lock, "l", natslock.TTL(30*time.Second))
	fixed := kit.Must(t, c.Lock, "fixed", natslock.TTL(time.Minute), natslock.NoRenew())
	w := other.Await(t, "l")
	for range 3 {
		renewed := c.Events.Count(admin.EventRenewed, "l")
		s.Restart()
		kit.Eventually(t, "it is confirmed", func() bool { return c.Events.Count(admin.EventRenewed, "l") > renewed })
		kit.WantHeld(t, l)
		kit.WantHeld(t, fixed)
		require.False(t, w.Over())
	}
	require.NoError(t, l.Extend(t.Context(), 0))
	require.NoError(t, fixed.Extend(t.Context(), 0))
	token := l.Token()
	kit.Unlock(t, l)
	require.Greater(t, w.Granted(t).Token(), token)
	kit.Unlock(t, w.Value)
	kit.Unlock(t, fixed)
}

// TestHandleServerAway checks that a lease is lost if the server is away for longer than its TTL,
// and that a longer lease is kept.
func TestHandleServerAway(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		l := kit.Must(t, c.Lock, "l", natslock.TTL(10*time.Second))
		kept := kit.Must(t, c.Lock, "kept", natslock.TTL(time.Minute))
		s.Stop()
		kit.Receive(t, l.Context().Done(), "the end")
		kit.WantLost(t, l, natslock.ErrLost)
		w := c.Begin(t, "l") // waits out the outage
		time.Sleep(20 * time.Second)
		require.False(t, w.Over())
		s.Restart()
		begun := time.Now()
		w.Granted(t)
		require.Less(t, w.At.Sub(begun), 5*time.Second)
		require.Greater(t, w.Value.Token(), l.Token())
		synctest.Wait()
		kit.WantHeld(t, kept)
		time.Sleep(time.Minute)
		kit.WantHeld(t, kept)
	})
}

// TestNewOnConnectionThatIsAway checks that New waits for a connection that is down, just as it
// waits for a server that does not reply.
func TestNewOnConnectionThatIsAway(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		nc, link := s.ConnectLink()
		link.Cut()
		synctest.Wait()
		require.Equal(t, nats.RECONNECTING, nc.Status())
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		begun := time.Now()
		_, err := natslock.New(ctx, nc)
		cancel()
		require.ErrorIs(t, err, natslock.ErrUnavailable)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.WithinDuration(t, begun.Add(time.Second), time.Now(), 100*time.Millisecond)
		time.AfterFunc(3*time.Second, link.Heal)
		c := kit.NewClient(t, nc)
		kit.Unlock(t, kit.Must(t, c.Lock, "l"))

		nc = s.Connect()
		nc.Close()
		begun = time.Now()
		_, err = natslock.New(t.Context(), nc)
		require.ErrorIs(t, err, natslock.ErrUnavailable)
		require.ErrorIs(t, err, nats.ErrConnectionClosed)
		require.Zero(t, time.Since(begun), "there is nothing to wait for")
	})
}

// TestOutageBacksOff checks that a waiter that cannot reach the server backs off, and continues
// once the server is back.
func TestOutageBacksOff(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		nc, link := s.ConnectLink(nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond))
		c, f := kit.Faulty(t, nc, 1)
		link.Cut()
		got := make(chan *natslock.Lock, 1)
		go func() {
			l, err := c.Lock(context.Background(), "x")
			assert.NoError(t, err)
			got <- l
		}()
		time.Sleep(10 * time.Minute)
		require.Less(t, f.Counts().Sends, 500)
		link.Heal()
		back := time.Now()
		l := <-got
		require.Less(t, time.Since(back), time.Second)
		require.NoError(t, l.Unlock(t.Context()))
	})
}

// TestConnectionClosedBefore checks that an acquire fails if the connection is closed before the
// first lock.
func TestConnectionClosedBefore(t *testing.T) {
	s := testutil.RunServer(t)
	for range 10 {
		nc := s.Connect()
		c, err := natslock.New(t.Context(), nc)
		require.NoError(t, err)
		nc.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		_, err = c.Lock(ctx, "x")
		cancel()
		require.ErrorIs(t, err, natslock.ErrUnavailable)
		require.NoError(t, c.Close(t.Context()))
	}
}

// outages are the ways in which a server in trouble affects a client's requests. The field says is
// part of the error of a wait that gives up.
var outages = []struct {
	name, says string
	begin      func(m *kit.Member, f *faults.Store)
}{
	{"silent", "answer", func(m *kit.Member, _ *faults.Store) { m.Link.Blackhole(true) }},
	{"away", "connection is", func(m *kit.Member, _ *faults.Store) { m.Link.Cut() }},
	{"full", "maximum bytes exceeded", func(_ *kit.Member, f *faults.Store) {
		f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
			return faults.Refuse(kit.Refusal(w, 10077, "maximum bytes exceeded"))
		})
	}},
	{"too large", "maximum payload exceeded", func(_ *kit.Member, f *faults.Store) {
		f.OnSend(func(int, kvstore.Write) faults.Fate {
			return faults.NotSent(fmt.Errorf("%w: %w", kvstore.ErrUnavailable, nats.ErrMaxPayload))
		})
	}},
}

// acquires are the ways to wait for a lock with a limit.
var acquires = []struct {
	name string
	lock func(c *natslock.Client, limit time.Duration) error
}{
	{"MaxWait", func(c *natslock.Client, limit time.Duration) error {
		_, err := c.Lock(context.Background(), "l", natslock.MaxWait(limit))
		return err
	}},
	{"deadline", func(c *natslock.Client, limit time.Duration) error {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		_, err := c.Lock(ctx, "l")
		return err
	}},
	{"LockAll", func(c *natslock.Client, limit time.Duration) error {
		_, err := c.LockAll(context.Background(), []string{"l", "m"}, natslock.MaxWait(limit))
		return err
	}},
}

// TestOutageIsNoBusyLock checks that the error reports an outage if that is why a wait took too
// long. Services need to tell an outage from a lock that another client holds.
func TestOutageIsNoBusyLock(t *testing.T) {
	for _, outage := range outages {
		for _, acquire := range acquires {
			t.Run(outage.name+"/"+acquire.name, func(t *testing.T) {
				testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
					c, f := kit.JoinFaulty(t, s)
					kit.Unlock(t, kit.Must(t, c.Lock, "known"))
					outage.begin(c, f)
					synctest.Wait()
					begun := time.Now()
					err := acquire.lock(c.Client, 2*time.Second)
					require.Equal(t, 2*time.Second, time.Since(begun).Truncate(time.Millisecond))
					require.ErrorIs(t, err, natslock.ErrTimeout)
					require.ErrorIs(t, err, natslock.ErrUnavailable)
					require.ErrorContains(t, err, `"l"`)
					require.ErrorContains(t, err, outage.says)
					if acquire.name == "deadline" {
						require.ErrorIs(t, err, context.DeadlineExceeded)
					} else {
						require.NotErrorIs(t, err, context.DeadlineExceeded)
					}
					c.Link.Heal()
					f.OnSend(nil)
					kit.Unlock(t, kit.Must(t, c.Lock, "l"))
				})
			})
		}
	}
}

// TestOutageOfAWaiter checks that an outage that begins while a client waits is noticed with the
// client's next request. The goroutines behind the waiter in its client rely on what it has
// learned.
func TestOutageOfAWaiter(t *testing.T) {
	for _, outage := range outages {
		t.Run(outage.name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				holder := kit.Join(t, s)
				kit.Must(t, holder.Lock, "l")
				c, f := kit.JoinFaulty(t, s)
				ctx, cancel := context.WithTimeout(t.Context(), 12*time.Second)
				defer cancel()
				first := c.Await(t, "l", natslock.MaxWait(11*time.Second))
				second := make(chan error, 1)
				go func() {
					_, err := c.Lock(ctx, "l")
					second <- err
				}()
				time.Sleep(time.Second)
				outage.begin(c, f)
				for _, err := range []error{first.Failed(t), kit.Receive(t, second, "the end of the second")} {
					require.ErrorIs(t, err, natslock.ErrTimeout)
					if outage.name == "full" || outage.name == "too large" {
						// The client does not have to write, because a read shows that the lock is
						// held.
						require.NotErrorIs(t, err, natslock.ErrUnavailable)
						continue
					}
					require.ErrorIs(t, err, natslock.ErrUnavailable)
				}
				c.Link.Heal()
			})
		})
	}
}

// TestBusyLockIsNoOutage checks that a held lock or a queue is not reported as an outage, whether
// the caller waits behind another client, behind a goroutine of its own client, or after an outage.
func TestBusyLockIsNoOutage(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		holder, c := kit.Join(t, s), kit.Join(t, s)
		kit.Must(t, holder.Lock, "l")
		kit.Must(t, c.Lock, "own")
		for _, name := range []string{"l", "own"} {
			errs := make(chan error, 3)
			for range cap(errs) {
				go func() {
					_, err := c.Lock(t.Context(), name, natslock.MaxWait(2*time.Second))
					errs <- err
				}()
			}
			for range cap(errs) {
				err := kit.Receive(t, errs, "the end of a wait")
				require.ErrorIs(t, err, natslock.ErrTimeout)
				require.NotErrorIs(t, err, natslock.ErrUnavailable)
			}
		}
		w := c.Await(t, "l", natslock.MaxWait(20*time.Second))
		time.Sleep(time.Second)
		c.Link.Blackhole(true)
		time.Sleep(3 * time.Second)
		c.Link.Heal()
		err := w.Failed(t)
		require.ErrorIs(t, err, natslock.ErrTimeout)
		require.NotErrorIs(t, err, natslock.ErrUnavailable)
	})
}

// TestOutageOfALaterWait checks that the error of a wait reports an outage that began during that
// wait. What the client learned during an earlier goroutine's wait says nothing about a later one.
func TestOutageOfALaterWait(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, f := kit.JoinFaulty(t, s)
		holder := kit.QuietHolder(t, s)
		first := c.Settle(t)
		kit.Unlock(t, holder)
		l := first.Granted(t) // the server has replied to the first goroutine
		second := c.Begin(t, "l", natslock.MaxWait(2500*time.Millisecond))
		synctest.Wait()
		f.OnSend(func(int, kvstore.Write) faults.Fate { return faults.Drop })
		f.FailReads(func(faults.ReadOp, string) error { return kvstore.ErrUnavailable })
		time.Sleep(2 * time.Second) // what the client knows about others is now old
		_ = l.Unlock(t.Context())
		err := second.Failed(t)
		require.ErrorIs(t, err, natslock.ErrTimeout)
		require.ErrorIs(t, err, natslock.ErrUnavailable)
		f.OnSend(nil)
		f.FailReads(nil)
	})
}
