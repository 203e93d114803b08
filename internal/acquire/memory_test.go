package acquire

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

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
