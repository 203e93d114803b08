package main

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/script"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// TestScriptsLock checks that a lock that a script holds by its handle counts as a single hold,
// through any extensions, until it is released, expires or is broken.
func TestScriptsLock(t *testing.T) {
	t.Parallel()
	s := testutil.RunServer(t)
	c, _ := client(t, s)
	p := follow(t, s, "--pattern=job")
	left := func(ttl time.Duration) script.Handle {
		l, err := c.Lock(t.Context(), "job", natslock.TTL(ttl), natslock.NoRenew())
		require.NoError(t, err)
		h, _, err := script.Leave(l, ttl)
		require.NoError(t, err)
		return h
	}
	h := left(time.Hour)
	for range 3 {
		_, err := h.Extend(t.Context(), c, 0)
		require.NoError(t, err)
	}
	p.shows(`natslock_bucket_held{lock="job"} 1`, `natslock_bucket_grants_total{lock="job"} 1`)
	require.NoError(t, h.Release(t.Context(), c))
	p.shows(`natslock_bucket_held{lock="job"} 0`, `natslock_bucket_grants_total{lock="job"} 1`, `natslock_bucket_expiries_total{lock="job"} 0`)

	h = left(2 * time.Second)
	_, err := h.Extend(t.Context(), c, 0)
	require.NoError(t, err)
	p.shows(`natslock_bucket_held{lock="job"} 0`, `natslock_bucket_grants_total{lock="job"} 2`, `natslock_bucket_expiries_total{lock="job"} 1`)

	h = left(time.Hour)
	require.NoError(t, admin.New(c).Break(context.Background(), admin.BreakRequest{Name: "job", ID: h.ID, Reason: "test"}))
	require.ErrorIs(t, h.Release(t.Context(), c), natslock.ErrBroken)
	p.shows(`natslock_bucket_held{lock="job"} 0`, `natslock_bucket_grants_total{lock="job"} 3`, `natslock_bucket_breaks_total{lock="job"} 1`, `natslock_bucket_expiries_total{lock="job"} 1`)
}
