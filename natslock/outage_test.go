package natslock_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// outages are what a server in trouble makes of the requests of a client, and what the error
// of a wait that is given up says of it.
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

// acquires are the ways to wait for a lock, with a bound.
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

// The error of a wait that an outage has made too long says so: a service answers its
// callers otherwise than for a lock that another one holds.
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

// An outage that begins while a client waits counts from the next thing that it asks. What
// the goroutines behind it in its client have heard is what it has.
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
						// The client need not write: it reads that the lock is held.
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

// A lock that is held, or has a queue, is no outage: not behind another client, not behind
// a goroutine of the own one, and not after an outage.
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

// What a client has learned while one goroutine waited says nothing of the wait of a later one: the error of that one
// tells the outage that it has met.
func TestOutageOfALaterWait(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, f := kit.JoinFaulty(t, s)
		holder := kit.QuietHolder(t, s)
		first := c.Settle(t)
		kit.Unlock(t, holder)
		l := first.Granted(t) // the server has answered the first one
		second := c.Begin(t, "l", natslock.MaxWait(2500*time.Millisecond))
		synctest.Wait()
		f.OnSend(func(int, kvstore.Write) faults.Fate { return faults.Drop })
		f.FailReads(func(faults.ReadOp, string) error { return kvstore.ErrUnavailable })
		time.Sleep(2 * time.Second) // what the client knows of others is old
		_ = l.Unlock(t.Context())
		err := second.Failed(t)
		require.ErrorIs(t, err, natslock.ErrTimeout)
		require.ErrorIs(t, err, natslock.ErrUnavailable)
		f.OnSend(nil)
		f.FailReads(nil)
	})
}
