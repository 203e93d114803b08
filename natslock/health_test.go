package natslock_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// A client that holds nothing any more has learnt from its release that nothing is
// stored.
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

// A renewal without an answer is late from the moment on at which it was due, whatever else is
// held, until the next one is confirmed.
func TestRenewalLag(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		require.Zero(t, c.Stats().RenewalLag)
		fixed := kit.Must(t, c.Lock, "fixed", natslock.NoRenew(), natslock.TTL(2*time.Minute))
		long := kit.Must(t, c.Lock, "long", natslock.TTL(time.Minute))
		l := kit.Must(t, c.Lock, "l")
		time.Sleep(time.Minute)
		require.Zero(t, c.Stats().RenewalLag.Round(100*time.Millisecond))
		due := time.Now().Add(l.Remaining() - 9*time.Second) // 14 s after the last write, its validity ends
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

// A closed client says so, even where its connection was closed before.
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

// An unhealthy client names a lock, and counts the others.
func TestHealthyNamesLate(t *testing.T) {
	for locks, text := range map[int]string{1: `the renewal of lock "l0" is overdue`, 2: `the renewal of lock "l0" is overdue, and of 1 more`} {
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

// A client is healthy again after its bucket was re-created.
func TestHealthyAfterRemake(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		nc, link := s.ConnectLink(nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond))
		c, _ := kit.Faulty(t, nc, 1)
		l, err := c.Lock(t.Context(), "x")
		require.NoError(t, err)
		link.Cut()
		kit.RemakeBucket(t, s.Connect(), record.TokenRevision(l.Token())+1000)
		link.Heal()
		<-l.Context().Done()
		require.ErrorIs(t, l.Unlock(t.Context()), natslock.ErrLost)
		time.Sleep(time.Second)
		require.NoError(t, c.Healthy())
		l, err = c.Lock(t.Context(), "x")
		require.NoError(t, err)
		require.NoError(t, l.Unlock(t.Context()))
	})
}
