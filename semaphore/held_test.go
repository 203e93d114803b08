package semaphore_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/semaphore"
	"github.com/natslock/locks/testutil"
)

// TestContended checks that every permit holder that calls Contended is notified when another
// client waits, and not before. The subscriptions end with the permits.
func TestContended(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b := join(t, s), join(t, s)
		ours, theirs := semaphore.New(a.Client, 2), semaphore.New(b.Client, 2)
		first, second := must(t, ours, "s"), must(t, ours, "s")
		for _, l := range []*natslock.Lock{first, second} {
			select {
			case <-l.Contended():
				t.Fatal("notified although nobody waits")
			default:
			}
		}
		w := b.await(t, theirs, "s")
		kit.Receive(t, first.Contended(), "the first hint")
		kit.Receive(t, second.Contended(), "the second hint")
		kit.Unlock(t, first)
		kit.Unlock(t, w.Granted(t), second)
		require.Empty(t, kit.KeysLeft(t, b.nc))
		again := must(t, ours, "s")
		select {
		case <-again.Contended():
			t.Fatal("notified although nobody waits any more")
		default:
		}
		kit.Unlock(t, again)
	})
}

// TestHandoffRefused checks that a permit cannot be handed over, and that its holder keeps it.
func TestHandoffRefused(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		l := must(t, semaphore.New(join(t, s).Client, 2), "s")
		_, err := l.Handoff(t.Context())
		require.ErrorIs(t, err, natslock.ErrInvalid)
		require.ErrorContains(t, err, "semaphore permit")
		require.NoError(t, l.Err())
		kit.Unlock(t, l)
	})
}
