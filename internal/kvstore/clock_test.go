package kvstore

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// The estimate of the server's clock does not fall behind when the local wall clock is
// set back, or when the monotonic clock stops while the machine is suspended.
func TestNowAfterClockStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c serverClock
		require.Equal(t, time.Now(), c.now())
		server := time.Now().Add(time.Minute).UTC().Round(0)
		c.read(server)
		time.Sleep(10 * time.Second)
		require.WithinDuration(t, server.Add(10*time.Second), c.now(), 0)

		back := *c.last.Load()
		back.wall = back.wall.Add(time.Hour) // it was an hour ahead at the time
		c.last.Store(&back)
		require.WithinDuration(t, server.Add(10*time.Second), c.now(), 0)

		suspended := *c.last.Load()
		suspended.wall = suspended.local.Round(0)
		suspended.local = suspended.local.Add(10 * time.Second) // it has stood still since
		c.last.Store(&suspended)
		require.WithinDuration(t, server.Add(10*time.Second), c.now(), 0)
	})
}
