package semaphore_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/semaphore"
	"github.com/natslock/locks/testutil"
)

// tap counts the messages published on a subject.
func tap(t testing.TB, nc *nats.Conn, subject string) (take func() int) {
	t.Helper()
	sub, err := nc.SubscribeSync(subject)
	require.NoError(t, err)
	require.NoError(t, nc.Flush())
	return func() int {
		require.NoError(t, nc.Flush())
		n, _, err := sub.Pending()
		require.NoError(t, err)
		for range n {
			_, err := sub.NextMsg(time.Second)
			require.NoError(t, err)
		}
		return n
	}
}

// TestMessagesFree checks that a free permit costs one read and one write, and its release one
// write.
func TestMessagesFree(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		p := join(t, s)
		sem := semaphore.New(p.Client, 8)
		kit.Unlock(t, must(t, sem, "s"))
		for range 10 {
			out := p.nc.Stats().OutMsgs
			l := must(t, sem, "s")
			require.EqualValues(t, 2, p.nc.Stats().OutMsgs-out)
			kit.Unlock(t, l)
			require.EqualValues(t, 3, p.nc.Stats().OutMsgs-out)
		}
	})
}

// TestMessagesWaiting checks that a waiter costs one renewal of its place and one read every 5 s,
// like a mutex waiter: 24 messages a minute.
func TestMessagesWaiting(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		h := join(t, s, natslock.WithTTL(time.Hour))
		sem := semaphore.New(h.Client, 40)
		for range 40 {
			must(t, sem, "s")
		}
		var waiters []*peer
		for range 5 {
			p := join(t, s)
			p.await(t, semaphore.New(p.Client, 40), "s")
			waiters = append(waiters, p)
		}
		time.Sleep(10 * time.Second)
		var sent []uint64
		for _, w := range waiters {
			sent = append(sent, w.nc.Stats().OutMsgs)
		}
		time.Sleep(10 * time.Minute)
		for i, w := range waiters {
			require.LessOrEqual(t, int(w.nc.Stats().OutMsgs-sent[i]), 24*10, "waiter %d", i)
		}
	})
}

// TestMessagesOneIsWoken checks that returning a permit wakes one waiter, whose grant wakes the
// next, however many are waiting.
func TestMessagesOneIsWoken(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		h := join(t, s)
		sem := semaphore.New(h.Client, 3)
		held := []*natslock.Lock{must(t, sem, "s"), must(t, sem, "s"), must(t, sem, "s")}
		var peers []*peer
		var queue []*kit.Waiting
		for range 20 {
			p := join(t, s)
			queue = append(queue, p.await(t, semaphore.New(p.Client, 3), "s"))
			peers = append(peers, p)
		}
		time.Sleep(1500 * time.Millisecond) // let them settle
		writes := tap(t, s.Connect(), "$KV.natslock.>")
		for i, w := range queue {
			before := make([]uint64, len(peers))
			for j, p := range peers {
				before[j] = p.nc.Stats().OutMsgs
			}
			writes()
			kit.Unlock(t, held[i])
			held = append(held, w.Granted(t))
			synctest.Wait()
			// These are the release, the claim, the place's tombstone, and the proof of the next waiter's
			// subscription.
			require.LessOrEqual(t, writes(), 4, "hand-over %d", i)
			woken := 0
			for j, p := range peers {
				if n := p.nc.Stats().OutMsgs - before[j]; n > 0 && j != i-3 { // this peer has just released
					woken++
					require.Contains(t, []int{i, i + 1}, j, "hand-over %d", i)
				}
			}
			require.LessOrEqual(t, woken, 2)
		}
		kit.Unlock(t, held[20:]...)
	})
}
