package topologies_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/history"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

// mirror creates the documented mirror of the bucket.
func mirror(t *testing.T, nc *nats.Conn) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(documents, "mirror.json"))
	require.NoError(t, err)
	var cfg jetstream.StreamConfig
	require.NoError(t, json.Unmarshal(text, &cfg))
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	_, err = js.CreateStream(t.Context(), cfg)
	require.NoError(t, err)
}

// TestMirrorOfTheDead checks that no client believes a mirror that still has records that the
// bucket removed long ago, although the mirror answers about half of the reads. A client that gets
// such a reply logs a warning.
func TestMirrorOfTheDead(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	n := mirrored(t)
	p := n.places[0]
	dead := at(t, p)
	const locks = 5
	for i := range locks {
		kit.Must(t, dead.Lock, fmt.Sprint("dead", i), natslock.TTL(3*time.Second))
		kit.Must(t, dead.rw.RLock, fmt.Sprint("dead_rw", i), natslock.TTL(3*time.Second))
	}
	waiter := at(t, p, natslock.WithTTL(time.Second))
	w := waiter.await(t, waiter.Lock, "dead0")
	waiter.nc.Close() // leaves a dead place in the queue as well
	<-w.Done
	dead.nc.Close()

	u := at(t, p)
	ref := history.NewRecorder()
	l := kit.Must(t, u.Lock, "dead0")
	ref.Granted(admin.KindMutex, admin.Exclusive, l)
	kit.Unlock(t, l)
	store, err := p.open(u.nc)
	require.NoError(t, err)
	defer store.Close()
	kit.Eventually(t, "the bucket has removed the dead", func() bool {
		st, err := store.State(t.Context(), "*.>")
		require.NoError(t, err)
		return len(st.Keys) == 0
	})
	js, err := jetstream.New(u.nc)
	require.NoError(t, err)
	kept, err := js.Stream(t.Context(), "KV_natslock_mirror")
	require.NoError(t, err)
	_, err = kept.GetLastMsgForSubject(t.Context(), "$KV.natslock.lock.dead1")
	require.NoError(t, err, "the mirror has the dead holder")

	for range 20 {
		for i := range locks {
			info, err := admin.New(u.Client).Inspect(t.Context(), admin.KindMutex, fmt.Sprint("dead", i))
			require.NoError(t, err)
			require.Nil(t, info.Holder)
			require.Empty(t, info.Queue)
			info, err = admin.New(u.Client).Inspect(t.Context(), admin.KindRW, fmt.Sprint("dead_rw", i))
			require.NoError(t, err)
			require.Empty(t, info.Readers)
		}
	}
	require.Equal(t, 1, strings.Count(u.log.String(), "KV_natslock_mirror"))
	require.Contains(t, u.log.String(), "remove the mirror or its mirror_direct")
	for i := range locks {
		l := kit.Must(t, u.TryLock, fmt.Sprint("dead", i))
		ref.Granted(admin.KindMutex, admin.Exclusive, l)
		kit.Unlock(t, l)
		l = kit.Must(t, u.rw.TryLock, fmt.Sprint("dead_rw", i))
		kit.Unlock(t, l)
	}
	history.Verify(t, ref.History(), history.Options{Least: map[string]int{"grants": 1 + locks}})
}
