package acquire

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
)

// What a client remembers of the names that it has used has a bound. The last one counts.
func TestKindsAreBounded(t *testing.T) {
	var k kinds
	for i := range maxKinds + 10 {
		require.NoError(t, k.check(record.Mutex, fmt.Sprint(i)))
	}
	require.Len(t, k.m, maxKinds)
	require.ErrorIs(t, k.check(record.RW, fmt.Sprint(maxKinds+9)), record.ErrInvalidName)
}

// A place that has gone is remembered for as long as an older list may show it, and not for
// ever: a queue that is hot has a new one with each lock.
func TestDeparturesAreForgotten(t *testing.T) {
	o := &others{}
	now := clock.Instant(1)
	for i := range 100 {
		now = now.Add(bucket.TombstoneLife / 4)
		o.left(fmt.Sprint("wait.l.", i), uint64(i+1), now)
	}
	require.Contains(t, o.gone, "wait.l.99")
	require.Contains(t, o.gone, "wait.l.92", "a tombstone ago, and as long again")
	require.LessOrEqual(t, len(o.gone), 16, "of the last seconds")
}
