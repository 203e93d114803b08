package security_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	lockadmin "github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/partition"
	"github.com/natslock/locks/testutil"
)

const groupCount = 8

// joined has a person run as a worker until leave is called. The error of Run arrives on ended.
func joined(t *testing.T, p *person, group, id string) (g *partition.Group, leave context.CancelFunc, ended <-chan error) {
	ctx, leave := context.WithCancel(t.Context())
	g = partition.New(p.Client, group, groupCount, partition.ID(id))
	end := make(chan error, 1)
	running := new(sync.WaitGroup)
	running.Go(func() {
		end <- g.Run(ctx, func(ctx context.Context, p *partition.Partition) error {
			select {
			case <-p.Leaving():
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
	})
	t.Cleanup(func() {
		leave()
		running.Wait()
	})
	return g, leave, end
}

// shared has two workers join a group one after the other and share it, after which the second one leaves.
func shared(t *testing.T, group string, first, second *person, meanwhile func()) {
	g, _, _ := joined(t, first, group, "first")
	kit.Eventually(t, "the first one owns all", func() bool { return len(g.Owned()) == groupCount })
	g2, leave, ended := joined(t, second, group, "second")
	kit.Eventually(t, "each owns its half", func() bool { return len(g.Owned()) == groupCount/2 && len(g2.Owned()) == groupCount/2 })
	meanwhile()
	leave()
	require.ErrorIs(t, <-ended, context.Canceled)
	kit.Eventually(t, "the first one owns all again", func() bool { return len(g.Owned()) == groupCount })
	require.Zero(t, g.Stats().Failed+g.Stats().Lost+g2.Stats().Failed+g2.Stats().Lost)
}

// TestRoleUserPartitions has two users with exactly the printed permissions share partitions, hand them over and take
// them back. An observer that may read but not write sees the group but cannot join it.
func TestRoleUserPartitions(t *testing.T) {
	t.Parallel()
	a := open(t)
	a.as("admin")
	first, second, o := a.as("orders"), a.as("orders"), a.as("observer")
	shared(t, "orders.fleet", first, second, func() {
		for _, p := range []*person{o, second} {
			state, err := partition.Inspect(t.Context(), p.Client, "orders.fleet")
			require.NoError(t, err)
			require.Len(t, state.Members, 2)
			for _, place := range state.Partitions {
				require.Equal(t, place.Planned, place.Member)
			}
		}
		_, _, ended := joined(t, o, "orders.fleet", "observer")
		require.ErrorIs(t, <-ended, natslock.ErrPermission)
	})
	for _, p := range []*person{first, second} {
		for _, what := range p.complaints() { // the user carries on without these reads
			require.Regexp(t, `Publish to "\$JS.API.(DIRECT.GET|STREAM.MSG.GET).KV_natslock"`, what)
		}
	}
}

// TestGroupUser checks that a worker needs those permissions of a user of GROUP.> that mutexes need. If its inbox or a
// permission to publish is missing, Run returns ErrPermission or the bucket does not open. If the subscription to the
// queues is missing, nothing is returned: the worker does not learn that another one waits, and gives nothing up.
func TestGroupUser(t *testing.T) {
	t.Parallel()
	set, err := lockadmin.Permissions(lockadmin.Access{OwnOnly: true, Pattern: "fleet.>", Role: lockadmin.RoleUser, InboxPrefix: "_INBOX_fleet"})
	require.NoError(t, err)
	mutexes := func(all []lockadmin.Permission) (subjects []string) {
		for _, p := range all {
			if !slices.ContainsFunc([]string{".rw.", ".sem.", ".read.", ".rwait.", ".swait."}, func(kind string) bool { return strings.Contains(p.Subject, kind) }) {
				subjects = append(subjects, p.Subject)
			}
		}
		return subjects
	}
	fleet := &server.User{Username: "fleet", Password: password, Permissions: &server.Permissions{
		Publish: &server.SubjectPermission{Allow: mutexes(set.Publish)}, Subscribe: &server.SubjectPermission{Allow: mutexes(set.Subscribe)}}}
	needed := append(slices.Clone(fleet.Permissions.Publish.Allow), "_INBOX_fleet.>")
	a := &account{t: t, s: testutil.RunServer(t, testutil.WithConfig(func(o *server.Options) {
		o.Users = append(o.Users, &server.User{Username: all, Password: password}, fleet)
		for _, p := range needed {
			o.Users = append(o.Users, without(fleet, p))
		}
	}))}
	a.as(all) // creates the bucket
	first := a.as("fleet")
	shared(t, "fleet", first, a.as("fleet"), func() {})
	require.Len(t, needed, 6)
	for _, p := range needed {
		t.Log("without ", p)
		u, err := a.try(lacking("fleet", p))
		if err == nil {
			_, leave, ended := joined(t, u, "fleet", "lacking")
			err = <-ended
			leave()
		}
		require.ErrorIs(t, err, natslock.ErrPermission)
	}
}
