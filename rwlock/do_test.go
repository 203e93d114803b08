package rwlock_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/rwlock"
	"github.com/natslock/locks/testutil"
)

type doFunc = func(context.Context, string, func(context.Context, *natslock.Lock) error, ...natslock.LockOption) error

// TestTryDo checks that TryDo and TryRDo either run their function under the lock or return
// immediately without running it.
func TestTryDo(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b := newPeer(t, s.Connect(), 1), newPeer(t, s.Connect(), 2)
		failed := errors.New("the work has failed")
		for _, c := range []struct {
			do, beside, excluded doFunc // beside runs while do holds the lock
		}{
			{a.TryDo, nil, b.TryDo}, {a.TryDo, nil, b.TryRDo}, {a.TryRDo, b.TryRDo, b.TryDo},
		} {
			ran := 0
			err := c.do(t.Context(), "x", func(ctx context.Context, l *natslock.Lock) error {
				ran++
				require.Positive(t, l.Remaining())
				require.NoError(t, ctx.Err())
				if c.beside != nil {
					require.NoError(t, c.beside(ctx, "x", func(context.Context, *natslock.Lock) error { ran++; return nil }))
				}
				require.ErrorIs(t, c.excluded(ctx, "x", func(context.Context, *natslock.Lock) error { ran = -1; return nil }), natslock.ErrLocked)
				return failed
			})
			require.ErrorIs(t, err, failed)
			require.NotErrorIs(t, err, natslock.ErrLost)
			if c.beside == nil {
				require.Equal(t, 1, ran)
			} else {
				require.Equal(t, 2, ran)
			}
			kit.Unlock(t, kit.Must(t, b.Lock, "x"))
		}
	})
}

// TestZeroRWLock checks that an RWLock without a client returns an error that says so.
func TestZeroRWLock(t *testing.T) {
	ctx := t.Context()
	refused := func(err error) {
		t.Helper()
		require.ErrorIs(t, err, natslock.ErrInvalid)
	}
	run := func(context.Context, *natslock.Lock) error { panic("no lock was granted") }
	for _, rw := range []*rwlock.RWLock{nil, {}, rwlock.New(nil), rwlock.New(&natslock.Client{})} {
		for _, acquire := range []acquireFunc{rw.Lock, rw.TryLock, rw.RLock, rw.TryRLock} {
			l, err := acquire(ctx, "x")
			require.Nil(t, l)
			require.ErrorContains(t, err, "was not created by New")
			refused(err)
		}
		for _, do := range []doFunc{rw.Do, rw.TryDo, rw.RDo, rw.TryRDo} {
			refused(do(ctx, "x", run))
			refused(do(ctx, "x", nil))
		}
	}
}
