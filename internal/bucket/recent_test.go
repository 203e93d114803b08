package bucket

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/clock"
)

// TestVacanciesFade: a queue that is hot does not keep the places of its busiest
// moment, which would crowd out what is known of locks.
func TestVacanciesFade(t *testing.T) {
	now := clock.Instant(1)
	r := &Recent{}
	for i := range recentMax {
		r.Left(now, fmt.Sprintf("wait.hot.%d", i), true, uint64(i+1))
	}
	for i := range 20 { // one waiter goes on queuing
		now = now.Add(100 * time.Millisecond)
		key, tombstone := r.Vacancy(now, "wait.hot.")
		require.NotEmpty(t, key)
		require.NotZero(t, tombstone)
		r.Left(now, key, true, uint64(10_000+i))
	}
	require.Equal(t, 1, r.vacant)
	r.Left(now, "lock.other", false, 99_999)
	require.EqualValues(t, 99_999, r.Known(now, "lock.other").Tombstone)
	now = now.Add(TombstoneLife)
	key, _ := r.Vacancy(now, "wait.hot.")
	require.Empty(t, key)
	require.Zero(t, r.vacant)
	require.Empty(t, r.places)
}
