package bucket

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
)

// TestVacanciesFade checks that a hot queue does not keep all the places of its busiest
// moment, because they would crowd out what is known about locks.
func TestVacanciesFade(t *testing.T) {
	now := clock.Instant(1)
	r := &Recent{}
	for i := range recentMax {
		r.Left(now, fmt.Sprintf("wait.hot.%d", i), true, uint64(i+1))
	}
	for i := range 20 { // one waiter keeps queueing
		now = now.Add(100 * time.Millisecond)
		key, tombstone := r.Vacancy(now, "wait.hot.")
		require.NotEmpty(t, key)
		require.NotZero(t, tombstone)
		r.Left(now, key, true, uint64(10_000+i))
	}
	require.Equal(t, 1, r.vacant)
	r.Left(now, "lock.other", false, 99_999)
	require.EqualValues(t, 99_999, r.Known(now, "lock.other").Tombstone)
	now = now.Add(record.TombstoneLife)
	key, _ := r.Vacancy(now, "wait.hot.")
	require.Empty(t, key)
	require.Zero(t, r.vacant)
	require.Empty(t, r.places)
}

// A client that leaves very many locks at once forgets none that it may need a moment
// later, and remembers new ones once the old ones have expired. An older tombstone never
// replaces a newer one, because a claim that expects it would be refused.
func TestRecentIsBounded(t *testing.T) {
	now := clock.Instant(1)
	r := &Recent{}
	r.Left(now, "wait.l.a", true, 1)
	for i := range recentMax - 1 {
		r.Left(now, fmt.Sprintf("lock.%d", i), false, uint64(i+2))
	}
	r.Left(now, "lock.more", false, 10_000)
	r.Left(now, "wait.l.b", true, 10_001)
	require.Zero(t, r.Known(now, "lock.more"), "full: a read will do")
	require.Len(t, r.m, recentMax-1)
	require.Equal(t, 1, r.vacant)
	require.EqualValues(t, 2, r.Known(now, "lock.0").Tombstone)

	r.Left(now, "lock.0", false, 10_002)
	require.EqualValues(t, 10_002, r.Known(now, "lock.0").Tombstone, "known already")
	r.Left(now, "lock.0", false, 10_001)
	require.EqualValues(t, 10_002, r.Known(now, "lock.0").Tombstone)

	now = now.Add(record.TombstoneLife + time.Millisecond)
	r.Left(now, "lock.new", false, 10_003)
	require.EqualValues(t, 10_003, r.Known(now, "lock.new").Tombstone)
	require.Len(t, r.m, 1, "the others have expired")
	require.Zero(t, r.vacant)
}
