package rwlock_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// traffic counts the messages that a connection has received and sent.
type traffic struct{ in, out uint64 }

func trafficOf(nc *nats.Conn) traffic {
	s := nc.Stats()
	return traffic{s.InMsgs, s.OutMsgs}
}

// since waits until all is quiet and returns the traffic since before.
func (before traffic) since(nc *nats.Conn) traffic {
	synctest.Wait()
	now := trafficOf(nc)
	return traffic{now.in - before.in, now.out - before.out}
}

// TestMessagesUncontended checks that a reader costs one publish and its reply to join, and the
// same again to leave. A writer takes the gate, asks once who is reading, and leaves.
func TestMessagesUncontended(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a := newPeer(t, s.Connect(), 1)
		rl, err := a.RLock(t.Context(), "warm")
		require.NoError(t, err) // the first write also subscribes for replies
		kit.Unlock(t, rl)
		synctest.Wait()
		for i := range 3 {
			name := fmt.Sprint(i)
			before := trafficOf(a.nc)
			l, err := a.RLock(t.Context(), name)
			require.NoError(t, err)
			require.Equal(t, traffic{1, 1}, before.since(a.nc), "RLock")
			before = trafficOf(a.nc)
			kit.Unlock(t, l)
			require.Equal(t, traffic{1, 1}, before.since(a.nc), "Unlock of a reader")

			before = trafficOf(a.nc)
			l, err = a.Lock(t.Context(), "written "+name) // a name that nobody has just released
			require.NoError(t, err)
			require.Equal(t, traffic{2, 2}, before.since(a.nc), "Lock: the gate, and who reads")
			before = trafficOf(a.nc)
			kit.Unlock(t, l)
			require.Equal(t, traffic{1, 1}, before.since(a.nc), "Unlock of a writer")
		}
	})
}

// TestMessagesOfOneAmongMany checks that one more reader costs itself two messages each way, and
// the readers already inside nothing, no matter how many they are.
func TestMessagesOfOneAmongMany(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		joiner := newPeer(t, s.Connect(), 0, natslock.WithTTL(time.Hour))
		var readers []*peer
		var locks []*natslock.Lock
		for _, n := range []int{1, 10, 100} {
			for len(readers) < n {
				p := newPeer(t, s.Connect(), 1, natslock.WithTTL(time.Hour))
				l, err := p.RLock(t.Context(), "x")
				require.NoError(t, err)
				readers, locks = append(readers, p), append(locks, l)
			}
			time.Sleep(3 * time.Second) // they are watching their own records by now
			synctest.Wait()
			var before []traffic
			for _, p := range readers {
				before = append(before, trafficOf(p.nc))
			}
			own := trafficOf(joiner.nc)
			const rounds = 5
			for range rounds {
				l, err := joiner.RLock(t.Context(), "x")
				require.NoError(t, err)
				kit.Unlock(t, l)
			}
			require.Equal(t, traffic{2 * rounds, 2 * rounds}, own.since(joiner.nc), "beside %d readers", n)
			for i, p := range readers {
				require.Equal(t, traffic{}, before[i].since(p.nc), "reader %d of %d", i, n)
			}
		}
		kit.Unlock(t, locks...)
	})
}

// TestGoroutines checks that the read locks of one client, whether shared or with separate leases,
// need no goroutines of their own.
func TestGoroutines(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a := newPeer(t, s.Connect(), 1)
		var locks []*natslock.Lock
		take := func(n int) int {
			for i := range n {
				var opts []natslock.LockOption
				if i%2 == 0 {
					opts = append(opts, natslock.TTL(time.Minute))
				}
				l, err := a.RLock(t.Context(), "x", opts...)
				require.NoError(t, err)
				locks = append(locks, l)
			}
			time.Sleep(3 * time.Second)
			synctest.Wait()
			return kit.Goroutines("locks/internal/") + kit.Goroutines("nats%2ego.") // those of the server come and go
		}
		take(10)
		few := take(10) // the client has subscribed for these
		many := take(990)
		require.LessOrEqual(t, many, few, "goroutines of 10 and of 1000 readers")
		time.Sleep(5 * time.Minute)
		for _, l := range locks {
			require.Positive(t, l.Remaining())
		}
		kit.Unlock(t, locks...)
		require.Empty(t, kit.KeysLeft(t, s.Connect()))
	})
}
