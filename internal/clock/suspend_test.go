package clock_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/acquire"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/session"
	"github.com/natslock/locks/kvstore"
	"github.com/natslock/locks/testutil"
)

// TestSuspended lets the machine sleep past the end of a lease, or lets the
// renewer's goroutine not run for as long: its clock has gone on, its timers have
// not. A call that comes before the renewer sees the end all the same.
func TestSuspended(t *testing.T) {
	const ttl = 10 * time.Second // valid for 9 s, renewed after 3.3 s
	for _, tc := range []struct {
		name string
		at   time.Duration
		nap  time.Duration
		then func(t *testing.T, l *session.Lease)
	}{
		{"state", 1500 * time.Millisecond, 8 * time.Second, func(t *testing.T, l *session.Lease) {
			state, left, cause := l.Status()
			require.Equal(t, session.Lost, state)
			require.Zero(t, left)
			require.ErrorIs(t, cause, session.ErrLost)
			require.ErrorIs(t, context.Cause(l.Context()), session.ErrLost)
		}},
		{"release", 1500 * time.Millisecond, 8 * time.Second, func(t *testing.T, l *session.Lease) {
			require.ErrorIs(t, l.Release(), session.ErrLost)
		}},
		// The renewal sent after 3.3 s, or a little less, would last until 12.3 s.
		{"confirmation", 3500 * time.Millisecond, 6 * time.Second, func(t *testing.T, l *session.Lease) {
			time.Sleep(300 * time.Millisecond)
			state, _, cause := l.Status()
			require.Equal(t, session.Lost, state)
			require.ErrorIs(t, cause, session.ErrLost)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				f := testutil.NewFaults(open(t, s.Connect()), 1)
				renewed := 0
				f.OnSend(func(n int, w kvstore.Write) testutil.Fate {
					if n == 2 && !w.Delete {
						renewed++
						return testutil.DelayAnswer(400 * time.Millisecond)
					}
					return testutil.Pass
				})
				var asleep atomic.Int64
				e := newClient(t, f, session.Config{TTL: ttl, WatchAfter: -1}, func() clock.Instant {
					return clock.Now().Add(time.Duration(asleep.Load()))
				})
				l, err := e.Acquire(t.Context(), acquire.Request{Name: "x"})
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
