package rwlock_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// TestGateGoneUnnotified covers a goroutine that cannot join its client's readers because of a
// waiting writer, which then gives up. The end of the gate is not notified, or comes while the
// client is cut off. The goroutine must not wait for the gate's TTL.
func TestGateGoneUnnotified(t *testing.T) {
	for _, how := range []string{"lost", "reconnect"} {
		t.Run(how, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				nc, link := s.ConnectLink()
				a, b := newPeer(t, nc, 1), newPeer(t, s.Connect(), 2, natslock.WithTTL(time.Hour))
				l, err := a.RLock(t.Context(), "x")
				require.NoError(t, err)
				gaveUp := make(chan error, 1)
				go func() {
					_, err := b.Lock(t.Context(), "x", natslock.MaxWait(3*time.Second))
					gaveUp <- err
				}()
				time.Sleep(time.Second)
				grants := make(chan grant, 1)
				a.read("r", grants)
				time.Sleep(time.Second)
				synctest.Wait()
				if how == "lost" {
					a.f.DropAllEvents(true)
				} else {
					link.Cut()
				}
				require.Error(t, kit.Receive(t, gaveUp, "the writer gives up"))
				time.Sleep(time.Second)
				if how == "lost" {
					a.f.DropAllEvents(false)
				} else {
					link.Heal()
				}
				begun := time.Now()
				kit.Unlock(t, granted(t, grants, 1)...)
				require.Less(t, time.Since(begun), 10*time.Second)
				kit.Unlock(t, l)
			})
		})
	}
}
