package admin_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

func TestMain(m *testing.M) { kit.LeakCheck(m) }

// TestZero checks that an Admin without a client refuses everything before any I/O.
func TestZero(t *testing.T) {
	var none *admin.Admin
	ctx := context.Background()
	for _, a := range []*admin.Admin{none, {}, admin.New(nil), admin.New(&natslock.Client{})} {
		_, err := a.Inspect(ctx, admin.KindMutex, "x")
		require.ErrorIs(t, err, natslock.ErrInvalid)
		require.ErrorIs(t, a.Break(ctx, admin.BreakRequest{Name: "x", ID: "id"}), natslock.ErrInvalid)
		_, _, err = a.RemoveOverdue(ctx, ">", 1)
		require.ErrorIs(t, err, natslock.ErrInvalid)
		n := 0
		for _, err := range a.List(ctx, ">") {
			require.ErrorIs(t, err, natslock.ErrInvalid)
			n++
		}
		for _, err := range a.Watch(ctx, ">") {
			require.ErrorIs(t, err, natslock.ErrInvalid)
			n++
		}
		require.Equal(t, 2, n)
	}
	_, err := natslock.New(ctx, nil, admin.WithObserver(nil))
	require.ErrorContains(t, err, "invalid option: WithObserver: nil")
}
