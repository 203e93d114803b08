package cluster_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// TestStoreRolledBack restores an earlier copy of a server's store directory. The sequences restart
// from there, so tokens repeat. A client that has been granted higher tokens since then refuses
// every lock and says why. A new client cannot know. It is granted tokens that other holders have
// had before, and only a resource that remembers them refuses it. Re-creating the bucket resolves
// this.
func TestStoreRolledBack(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "store")
	backup := filepath.Join(t.TempDir(), "backup")
	s := testutil.RunServer(t, testutil.WithStoreDir(dir))
	old := kit.NewClient(t, s.Connect(), natslock.WithTTL(5*time.Second))
	x := which{Name: "x", Kind: admin.KindMutex}
	// The protected resource is elsewhere and is not rolled back.
	highest := uint64(0)
	accepts := func(l *natslock.Lock) bool {
		ok := l.Token() >= highest
		highest = max(highest, l.Token())
		return ok
	}
	cycle := func(c *natslock.Client) uint64 {
		l := mustTake(t, c, x)
		require.True(t, accepts(l))
		require.NoError(t, l.Unlock(t.Context()))
		return l.Token()
	}
	copied := cycle(old)
	within := mustTake(t, old, which{Name: "in the copy", Kind: admin.KindMutex})
	require.True(t, accepts(within))
	s.Stop()
	require.NoError(t, os.CopyFS(backup, os.DirFS(dir)))
	s.Restart()
	require.NoError(t, within.Extend(t.Context(), 0))
	for range 20 {
		cycle(old)
	}
	var held []*natslock.Lock
	for _, w := range oneOfEach {
		l := mustTake(t, old, w)
		require.True(t, accepts(l))
		held = append(held, l)
	}

	s.Stop()
	require.NoError(t, os.RemoveAll(dir))
	require.NoError(t, os.CopyFS(dir, os.DirFS(backup)))
	s.Restart()
	for _, l := range append(held, within) {
		kit.Receive(t, l.Context().Done(), "the end of what was held")
		require.ErrorIs(t, context.Cause(l.Context()), natslock.ErrLost)
		require.ErrorIs(t, l.Err(), natslock.ErrLost)
		require.ErrorIs(t, l.Unlock(t.Context()), natslock.ErrLost)
	}
	for _, w := range append(oneOfEach[:3:3], x) {
		_, err := w.take(t.Context(), old)
		require.ErrorIs(t, err, natslock.ErrUnavailable, "%v", w)
		require.ErrorContains(t, err, "backwards", "%v", w)
	}
	// Use another name, because the client deletes the records of the refused grants in the
	// background.
	_, err := old.TryLock(t.Context(), "y")
	require.ErrorContains(t, err, "backwards")

	newcomer := kit.NewClient(t, s.Connect())
	l := mustTake(t, newcomer, x)
	require.Positive(t, l.Remaining(), "it cannot know")
	require.Greater(t, l.Token(), copied)
	require.Less(t, l.Token(), highest, "a token of before")
	require.False(t, accepts(l), "the resource knows better")
	require.NoError(t, l.Unlock(t.Context()))

	js, err := jetstream.New(s.Connect())
	require.NoError(t, err)
	require.NoError(t, js.DeleteStream(t.Context(), kit.StreamName))
	before := highest
	var remade *natslock.Client
	kit.Eventually(t, "the bucket can be made", func() bool {
		remade, err = natslock.New(t.Context(), s.Connect())
		return err == nil
	})
	t.Cleanup(func() { _ = remade.Close(context.Background()) })
	require.Greater(t, cycle(remade), before)
	require.Greater(t, cycle(old), before, "it goes on as well")
}
