package natslock_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// TestHealthyAfterUnansweredRelease checks that an unanswered release makes a client unhealthy even
// though the client no longer holds anything.
func TestHealthyAfterUnansweredRelease(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		l := kit.Must(t, c.Lock, "l")
		c.Link.Blackhole(true)
		require.NoError(t, c.Healthy())
		_ = l.Unlock(t.Context())
		time.Sleep(5 * time.Second)
		err := c.Healthy()
		require.ErrorIs(t, err, natslock.ErrUnavailable)
		require.ErrorContains(t, err, `"lock.l" has gone unanswered`)
		c.Link.Heal()
		kit.Unlock(t, kit.Must(t, c.Lock, "after"))
		require.NoError(t, c.Healthy())
	})
}

// TestRenewalLag checks that an unanswered renewal counts as late from the moment it was due until
// the next one is confirmed, whatever else the client holds.
func TestRenewalLag(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		require.Zero(t, c.Stats().RenewalLag)
		fixed := kit.Must(t, c.Lock, "fixed", natslock.NoRenew(), natslock.TTL(2*time.Minute))
		long := kit.Must(t, c.Lock, "long", natslock.TTL(time.Minute))
		l := kit.Must(t, c.Lock, "l")
		time.Sleep(time.Minute)
		require.Zero(t, c.Stats().RenewalLag.Round(100*time.Millisecond))
		due := time.Now().Add(l.Remaining() - 9*time.Second) // 14 s after the last write, when its validity ends
		c.Link.Blackhole(true)
		time.Sleep(8 * time.Second)
		require.InDelta(t, time.Since(due), c.Stats().RenewalLag, float64(200*time.Millisecond))
		c.Link.Heal()
		time.Sleep(2 * time.Second)
		require.Zero(t, c.Stats().RenewalLag)
		for _, held := range []*natslock.Lock{fixed, long, l} {
			kit.Unlock(t, held)
		}
		require.NoError(t, c.Close(t.Context()))
		require.Zero(t, c.Stats().RenewalLag)
	})
}

// TestHealthyClosed checks that a closed client reports that it is closed, even if its connection
// was closed first.
func TestHealthyClosed(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		nc := s.Connect()
		c := kit.NewClient(t, nc)
		kit.Unlock(t, kit.Must(t, c.Lock, "l"))
		nc.Close()
		require.ErrorIs(t, c.Healthy(), natslock.ErrUnavailable)
		require.NoError(t, c.Close(t.Context()))
		require.ErrorIs(t, c.Healthy(), natslock.ErrClosed)
	})
}

// TestHealthyNamesLate checks that the error of an unhealthy client names one lock and counts the
// others.
func TestHealthyNamesLate(t *testing.T) {
	for locks, text := range map[int]string{1: `the renewal of lock "l0" is overdue`, 2: `the renewal of lock "l0" is overdue, as are those of 1 more`} {
		testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
			c := kit.Join(t, s)
			for i := range locks {
				kit.Must(t, c.Lock, fmt.Sprint("l", i))
			}
			c.Link.Blackhole(true)
			time.Sleep(12 * time.Second)
			err := c.Healthy()
			require.ErrorIs(t, err, natslock.ErrUnavailable)
			require.Regexp(t, strings.ReplaceAll(text, "l0", "l[01]"), err.Error())
			require.Equal(t, locks > 1, strings.Contains(err.Error(), " more"), err.Error())
		})
	}
}

func TestInspectStats(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b := kit.Join(t, s), kit.Join(t, s)
		require.Equal(t, natslock.Stats{}, a.Stats())
		l := kit.Must(t, a.Lock, "l")
		l2 := kit.Must(t, a.Lock, "m", natslock.NoRenew(), natslock.TTL(3*time.Second))
		w := b.Await(t, "l")
		require.Equal(t, natslock.Stats{Held: 2, Granted: 2}, a.Stats())
		require.Equal(t, natslock.Stats{Waiting: 1}, b.Stats())
		w.Cancel(nil)
		w.Failed(t)
		require.Equal(t, natslock.Stats{GaveUp: 1}, b.Stats())
		<-l2.Context().Done()
		synctest.Wait()
		require.Equal(t, natslock.Stats{Held: 1, Granted: 2, Renewed: 1, Lost: 1}, a.Stats())
		kit.Break(t, b.Client, l, "")
		synctest.Wait()
		require.Equal(t, natslock.Stats{Granted: 2, Renewed: 1, Lost: 1, Broken: 1}, a.Stats())
		_ = l.Unlock(t.Context())
		_ = l2.Unlock(t.Context())
		kit.Unlock(t, kit.Must(t, a.Lock, "n"))
		require.Equal(t, natslock.Stats{Granted: 3, Renewed: 1, Released: 1, Lost: 1, Broken: 1}, a.Stats(), "an Unlock of what is lost releases nothing")
	})
}

func TestInspectHealthy(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		require.NoError(t, c.Healthy())
		kit.Must(t, c.Lock, "l")
		require.NoError(t, c.Healthy())
		c.Link.Cut()
		synctest.Wait()
		require.ErrorIs(t, c.Healthy(), natslock.ErrUnavailable)
		c.Link.Heal()
		time.Sleep(time.Second)
		require.NoError(t, c.Healthy())
		c.Link.Blackhole(true) // nats.go still believes it is connected
		time.Sleep(time.Second)
		require.NoError(t, c.Healthy())
		time.Sleep(12 * time.Second)
		err := c.Healthy()
		require.ErrorIs(t, err, natslock.ErrUnavailable)
		require.ErrorContains(t, err, `"l"`)
		c.Link.Blackhole(false)
		time.Sleep(5 * time.Second)
		require.NoError(t, c.Healthy())
	})
}
