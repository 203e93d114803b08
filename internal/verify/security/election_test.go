package security_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/election"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
)

// TestRoleUserElection has users with exactly the printed permissions campaign, lead and
// observe. An observer that may read but not write sees the same.
func TestRoleUserElection(t *testing.T) {
	t.Parallel()
	a := open(t)
	a.as("admin")
	first, second, o := a.as("orders"), a.as("orders"), a.as("observer")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	elect := func(p *person, value string) *election.Election {
		return election.New(p.Client, "orders.1", election.Value([]byte(value)))
	}
	term, err := elect(first, "first").Campaign(ctx)
	require.NoError(t, err)
	elected := make(chan *election.Term, 1)
	go func() {
		if t, err := elect(second, "second").Campaign(ctx); err == nil {
			elected <- t
		}
	}()
	kit.Eventually(t, "the second waits", func() bool { return second.Stats().Waiting == 1 })
	l, err := elect(second, "").Leader(ctx)
	require.NoError(t, err)
	require.Equal(t, "first", string(l.Value))
	for _, p := range []*person{o, second} {
		for l, err := range elect(p, "").Observe(ctx) {
			require.NoError(t, err)
			if string(l.Value) == "proclaimed" {
				break
			}
			require.NoError(t, term.Proclaim(ctx, []byte("proclaimed")))
		}
		require.NoError(t, term.Proclaim(ctx, []byte("first")))
	}
	require.NoError(t, term.Resign(ctx))
	require.NoError(t, (<-elected).Resign(ctx))
	_, err = elect(o, "").Leader(ctx)
	require.ErrorIs(t, err, election.ErrNoLeader)
	_, err = elect(o, "").Campaign(ctx)
	require.ErrorIs(t, err, natslock.ErrPermission)
	for _, p := range []*person{first, second} {
		for _, what := range p.complaints() { // the user carries on without these reads
			require.Regexp(t, `Publish to "\$JS.API.(DIRECT.GET|STREAM.MSG.GET).KV_natslock"`, what)
		}
	}
}
