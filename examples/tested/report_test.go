package tested_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/examples/tested"
	"github.com/natslock/locks/locktest"
	"github.com/natslock/locks/natslock"
)

func start(t *testing.T) *locktest.Locker {
	locks := locktest.New()
	t.Cleanup(locks.Close)
	return locks
}

func TestMade(t *testing.T) {
	said, err := tested.Report(t.Context(), start(t), "monday", func(context.Context) error { return nil })
	require.NoError(t, err)
	require.Equal(t, "made", said)
}

func TestHeld(t *testing.T) {
	locks := start(t)
	defer locks.Hold("report.monday")()
	said, err := tested.Report(t.Context(), locks, "monday")
	require.NoError(t, err)
	require.Equal(t, "left to others", said)
}

func TestAway(t *testing.T) {
	locks := start(t)
	locks.Fail(errors.Join(errors.New("no responders"), natslock.ErrUnavailable))
	said, err := tested.Report(t.Context(), locks, "monday")
	require.NoError(t, err)
	require.Equal(t, "later", said)
}

func TestLost(t *testing.T) {
	locks := start(t)
	second := false
	_, err := tested.Report(t.Context(), locks, "monday", func(ctx context.Context) error {
		locks.Lose("report.monday")
		return ctx.Err() // a step that stops in time
	}, func(context.Context) error { second = true; return nil })
	require.ErrorIs(t, err, natslock.ErrLost)
	require.False(t, second)
}
