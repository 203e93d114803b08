package record

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Each grant of a revision has a token of its own, and all of them are below those of
// the next revision.
func TestToken(t *testing.T) {
	require.EqualValues(t, 6400, Token(100, 0))
	last := uint64(0)
	for _, revision := range []uint64{1, 2, 3, 34_000_000_000_000, 34_000_000_000_001, 140_000_000_000_000} {
		for n := range GrantsPerRevision {
			token := Token(revision, n)
			require.Greater(t, token, last, "grant %d of revision %d", n, revision)
			require.Equal(t, revision, TokenRevision(token))
			last = token
		}
	}
	require.Less(t, last, uint64(1<<53))
}
