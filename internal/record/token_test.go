package record

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
)

// Each grant of a revision has its own token, and all of these are below the tokens of
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

// A record without a token is an acquisition record, whose own revision counts. Only
// places have tickets.
func TestTokenOrTicket(t *testing.T) {
	for _, c := range []struct {
		key  string
		want uint64
	}{
		{"lock.a", 448}, {"rw.a", 448}, {"read.a.ID", 448}, {"wait.a.ID", 7}, {"rwait.a.ID", 7},
		{"sem.a.3", 448}, {"swait.a.ID", 7},
		{"lock.wait.a", 448}, {"read.wait.a", 448},
	} {
		e := Entry{Record: kvstore.Record{Key: c.key, Revision: 7}}
		require.Equal(t, c.want, e.TokenOrTicket(), c.key)
		e.Unreadable = true
		e.Body.Token = 5 // nobody's
		require.Equal(t, c.want, e.TokenOrTicket(), "%s, unreadable", c.key)
		e.Unreadable = false
		require.EqualValues(t, 5, e.TokenOrTicket(), "%s, renewed", c.key)
	}
	require.Zero(t, Entry{}.TokenOrTicket(), "no record")
}
