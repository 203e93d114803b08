package kit

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// Break breaks a mutex the way an operator would.
func Break(t testing.TB, c *natslock.Client, l *natslock.Lock, reason string) {
	t.Helper()
	require.NoError(t, admin.New(c).Break(context.Background(), admin.BreakRequest{Kind: admin.KindMutex, Name: l.Name(), ID: l.ID(), Reason: reason}))
}

// UnlockAll unlocks l, and then each of waits in turn once it is granted. It returns the locks
// that were granted.
func UnlockAll(t *testing.T, l *natslock.Lock, waits ...*Waiting) (locks []*natslock.Lock) {
	t.Helper()
	token := l.Token()
	Unlock(t, l)
	for i, w := range waits {
		l := w.Granted(t)
		synctest.Wait()
		for _, later := range waits[i+1:] {
			require.False(t, later.Over(), "more than one is inside")
		}
		require.Greater(t, l.Token(), token)
		token = l.Token()
		Unlock(t, l)
		locks = append(locks, l)
	}
	return locks
}

// WantNothing requires the bucket to be empty except for tombstones.
func WantNothing(t *testing.T, s *testutil.Server) {
	t.Helper()
	synctest.Wait()
	require.Empty(t, NewRaw(t, s.Connect()).Live(">"))
}

// HandOff hands l over, and returns the handle as another process would read it.
func HandOff(t testing.TB, l *natslock.Lock) natslock.Handle {
	t.Helper()
	h, err := l.Handoff(context.Background())
	require.NoError(t, err)
	text, err := h.MarshalText()
	require.NoError(t, err)
	var read natslock.Handle
	require.NoError(t, read.UnmarshalText(text))
	require.Equal(t, h, read)
	return read
}

// Inspect returns the state of a mutex.
func Inspect(t testing.TB, c *natslock.Client, name string) admin.Info {
	t.Helper()
	info, err := admin.New(c).Inspect(context.Background(), admin.KindMutex, name)
	require.NoError(t, err)
	return info
}

// WantLost requires every method to report the lock as lost.
func WantLost(t testing.TB, l *natslock.Lock, cause error) {
	t.Helper()
	require.ErrorIs(t, l.Err(), natslock.ErrLost)
	require.Zero(t, l.Remaining())
	require.ErrorIs(t, l.Err(), cause)
	require.ErrorIs(t, context.Cause(l.Context()), cause)
	require.Error(t, l.Context().Err())
	require.ErrorIs(t, l.Unlock(context.Background()), cause)
	require.ErrorIs(t, l.Unlock(context.Background()), cause, "again")
	require.NotErrorIs(t, l.Err(), natslock.ErrEnded)
}

// WantEnded requires every method to report the lock as held until its planned end.
func WantEnded(t testing.TB, l *natslock.Lock) {
	t.Helper()
	require.ErrorIs(t, l.Err(), natslock.ErrEnded)
	require.Zero(t, l.Remaining())
	for _, err := range []error{l.Err(), context.Cause(l.Context()), l.Unlock(context.Background()), l.Unlock(context.Background())} {
		require.ErrorIs(t, err, natslock.ErrEnded)
		require.NotErrorIs(t, err, natslock.ErrLost)
	}
	require.Error(t, l.Context().Err())
}

// WantHeld requires every method to report the lock as held.
func WantHeld(t testing.TB, l *natslock.Lock) {
	t.Helper()
	require.Positive(t, l.Remaining())
	require.True(t, ValidUntil(l).After(time.Now()))
	require.NoError(t, l.Err())
	require.NoError(t, l.Context().Err())
}
