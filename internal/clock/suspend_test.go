package clock_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/call"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/cohort"
	"github.com/natslock/locks/internal/keeper"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/testutil"
)

// TestSuspended suspends the machine past the end of a lease, or keeps the renewer's
// goroutine from running for as long: the clock has advanced, but no timer has fired. A
// call made before the renewer runs must still see the end.
func TestSuspended(t *testing.T) {
	const ttl = 10 * time.Second // valid for 9 s, renewed after 3.3 s
	for _, tc := range []struct {
		name string
		at   time.Duration
		nap  time.Duration
		then func(t *testing.T, l cohort.Holding)
	}{
		{"state", 1500 * time.Millisecond, 8 * time.Second, func(t *testing.T, l cohort.Holding) {
			state, left, cause := l.Status()
			require.Equal(t, session.Lost, state)
			require.Zero(t, left)
			require.ErrorIs(t, cause, session.ErrLost)
			require.ErrorIs(t, context.Cause(l.Context()), session.ErrLost)
		}},
		{"release", 1500 * time.Millisecond, 8 * time.Second, func(t *testing.T, l cohort.Holding) {
			require.ErrorIs(t, l.Release(t.Context()), session.ErrLost)
		}},
		// The renewal sent at 3.3 s, or slightly earlier, would last until 12.3 s.
		{"confirmation", 3500 * time.Millisecond, 6 * time.Second, func(t *testing.T, l cohort.Holding) {
			time.Sleep(300 * time.Millisecond)
			state, _, cause := l.Status()
			require.Equal(t, session.Lost, state)
			require.ErrorIs(t, cause, session.ErrLost)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				f := faults.New(open(t, s.Connect()), 1)
				renewed := 0
				f.OnSend(func(n int, w kvstore.Write) faults.Fate {
					if n == 2 && !w.Delete {
						renewed++
						return faults.DelayAnswer(400 * time.Millisecond)
					}
					return faults.Pass
				})
				var asleep atomic.Int64
				e := newClient(t, f, session.Config{TTL: ttl, WatchAfter: -1}, func() clock.Instant {
					return clock.Now().Add(time.Duration(asleep.Load()))
				})
				l, err := e.Acquire(t.Context(), call.Request{Name: "x"})
				require.NoError(t, err)
				time.Sleep(tc.at)
				state, _, _ := l.Status()
				require.Equal(t, session.Held, state)
				asleep.Add(int64(tc.nap))
				tc.then(t, l)
				require.Equal(t, tc.at > 3*time.Second, renewed == 1)
				ended, cancel := context.WithCancel(context.Background())
				cancel()
				e.Close(ended)
			})
		})
	}
}

// If the machine is suspended between the grant of a lease and its first admission, nobody
// is admitted.
func TestSuspendedBeforeAdmission(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		var asleep atomic.Int64
		b := bucket.New(open(t, s.Connect()), "", func() clock.Instant {
			return clock.Now().Add(time.Duration(asleep.Load()))
		})
		held := session.New(b, session.Config{TTL: 10 * time.Second, WatchAfter: -1})
		admit := func(nap time.Duration) (*session.Holder, error) {
			body := b.Body(record.StatusHeld, nil)
			body.ID = "id"
			l := held.Hold(keeper.Granted{
				Name: "x", Key: "lock.x", Revision: 1, Body: body,
				Terms: clock.NewTerms(10 * time.Second), Sent: b.Instant(),
			}, time.Time{})
			synctest.Wait() // the renewer sleeps
			asleep.Add(int64(nap))
			h := new(session.Holder)
			admitted, err := l.Admit(h, session.Admission{Parent: t.Context()})
			require.Equal(t, err == nil, admitted)
			return h, err
		}
		h, err := admit(time.Second)
		require.NoError(t, err)
		require.NoError(t, h.Context().Err())
		_, err = admit(9500 * time.Millisecond)
		require.ErrorIs(t, err, session.ErrLost)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		held.Close(ended)
	})
}

// TestSuspendedIdle checks that a machine suspended past the end of an idle lease does not
// use that lease again.
func TestSuspendedIdle(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		var asleep atomic.Int64
		e := newClient(t, open(t, s.Connect()), session.Config{TTL: 10 * time.Second, WatchAfter: -1}, func() clock.Instant {
			return clock.Now().Add(time.Duration(asleep.Load()))
		})
		var claims []uint64
		for _, nap := range []time.Duration{0, time.Second, 9 * time.Second} {
			time.Sleep(100 * time.Millisecond)
			asleep.Add(int64(nap))
			l, err := e.Acquire(t.Context(), call.Request{Name: "x", Linger: time.Hour})
			require.NoError(t, err)
			state, left, _ := l.Status()
			require.Equal(t, session.Held, state)
			require.Positive(t, left)
			claims = append(claims, record.TokenRevision(l.Token()))
			require.NoError(t, l.Release(t.Context()))
		}
		require.Equal(t, claims[0], claims[1], "the same claim")
		require.Greater(t, claims[2], claims[1])
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		e.Close(ended)
	})
}
