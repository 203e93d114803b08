package natslock_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// On a connection that was closed for good, nothing waits for a confirmation that cannot come.
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
