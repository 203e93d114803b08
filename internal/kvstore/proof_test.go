package kvstore_test

import (
	"errors"
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/testutil"
)

var proofs = flag.Int("proofs", 300, "how many subscriptions TestRefusalProvesSubscription makes")

// A subscription is in place once a write sent after it is refused: whatever the leader
// stores from then on is delivered. The watchers are connected to followers and the
// writer to the leader. Of 400 subscriptions "proven" by reading from the leader
// (STREAM.MSG.GET), 14 missed the next change; "proven" by the stream info, 8; by a
// direct get, 8.
func TestRefusalProvesSubscription(t *testing.T) {
	tier.Proof(t)
	cl := testutil.RunCluster(t, 3)
	first := open(t, cl.Connect(), kvstore.Config{Replicas: 3})
	leader := cl.Index(cl.WaitStreamLeader(t, "KV_"+first.Bucket()))
	writer := open(t, cl.ConnectTo(leader), kvstore.Config{})
	for i := range *proofs {
		watcher := open(t, cl.ConnectTo((leader+1+i%2)%3), kvstore.Config{})
		key := fmt.Sprintf("%d.%d", time.Now().UnixNano(), i)
		notified := make(chan uint64, 1)
		_, err := watcher.Watch(key, func(ev kvstore.Event) { notified <- ev.Record.Revision })
		require.NoError(t, err)
		a := sendUntilAnswered(t, watcher, kvstore.Write{Key: key, Expect: kvstore.NoRevision, Delete: true})
		conflict, refused := errors.AsType[*kvstore.ConflictError](a.Err)
		require.True(t, refused, "%v", a.Err)
		require.Zero(t, conflict.Last)
		stored := sendUntilAnswered(t, writer, kvstore.Write{Key: key, Value: []byte("v"), TTL: ttl})
		require.NoError(t, stored.Err)
		select {
		case got := <-notified:
			require.Equal(t, stored.Revision, got)
		case <-time.After(10 * time.Second): // far more than a delivery takes
			t.Fatalf("subscription %d missed a change", i)
		}
		a = sendUntilAnswered(t, watcher, kvstore.Write{Key: key, Expect: kvstore.NoRevision, Delete: true})
		conflict, refused = errors.AsType[*kvstore.ConflictError](a.Err)
		require.True(t, refused, "%v", a.Err)
		require.Equal(t, stored.Revision, conflict.Last, "it names what there is")
		watcher.Close()
	}
}

// sendUntilAnswered repeats w for as long as it meets another write in flight.
func sendUntilAnswered(t *testing.T, s *kvstore.Store, w kvstore.Write) kvstore.Answer {
	t.Helper()
	for {
		ch := make(chan kvstore.Answer, 1)
		_, err := s.Send(w, func(a kvstore.Answer) { ch <- a })
		require.NoError(t, err)
		select {
		case a := <-ch:
			if !errors.Is(a.Err, kvstore.ErrInFlight) {
				return a
			}
		case <-time.After(10 * time.Second):
			t.Fatal("no answer to a write")
		}
	}
}
