package lease

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestVacanciesFade: a queue that is hot does not keep the places of its busiest
// moment, which would crowd out what is known of locks.
func TestVacanciesFade(t *testing.T) {
	now := Instant(1)
	e := New(Config{Clock: func() Instant { return now }})
	for i := range recentMax {
		e.left(spec{key: fmt.Sprintf("wait.hot.%d", i)}, uint64(i+1))
	}
	for i := range 20 { // one waiter goes on queuing
		now = now.Add(100 * time.Millisecond)
		key, tombstone := e.vacancy("wait.hot.")
		require.NotEmpty(t, key)
		require.NotZero(t, tombstone)
		e.left(spec{key: key}, uint64(10_000+i))
	}
	require.Equal(t, 1, e.recent.vacant)
	e.left(spec{key: "lock.other", lock: true}, 99_999)
	require.EqualValues(t, 99_999, e.again("lock.other").tombstone)
	now = now.Add(tombstoneLife)
	key, _ := e.vacancy("wait.hot.")
	require.Empty(t, key)
	require.Zero(t, e.recent.vacant)
	require.Empty(t, e.recent.places)
}
