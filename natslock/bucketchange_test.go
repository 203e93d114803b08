package natslock_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// A bucket that was re-created is another one, fit or not: a lease that is not renewed ends
// even where the bucket is repaired before it is verified again.
func TestBucketMadeAgainUnfit(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := join(t, s)
		r := newRaw(t, s.Connect())
		mustLock(t, c.Client, "renewed") // whose next renewal finds no record
		fixed := mustLock(t, c.Client, "l", natslock.NoRenew(), natslock.TTL(10*time.Minute))
		time.Sleep(3 * time.Second)
		require.NoError(t, r.js.DeleteStream(t.Context(), streamName))
		time.Sleep(time.Millisecond) // of the bubble: the server has removed the files
		sc, err := kvstore.Config{}.StreamConfig()
		require.NoError(t, err)
		sc.Metadata["natslock.protocol"] = "4"
		_, err = r.js.CreateStream(t.Context(), sc)
		require.NoError(t, err)
		kit.ReceiveIn(t, 6*time.Second, fixed.Context().Done(), "the end of the lease")
		wantLost(t, fixed, natslock.ErrLost)
		require.ErrorIs(t, c.Healthy(), kvstore.ErrBucketConfig)

		r.reconfigure(func(c *jetstream.StreamConfig) { c.Metadata["natslock.protocol"] = "3" })
		time.Sleep(6 * time.Second)
		require.NoError(t, c.Healthy())
		other := join(t, s)
		l := mustLock(t, other.Client, "l")
		require.ErrorIs(t, func() error { _, err := c.TryLock(t.Context(), "l"); return err }(), natslock.ErrLocked)
		kit.Unlock(t, l)
	})
}

// Direct gets are switched off under clients that contend: they go on, and read from the
// leader, and the client says so. They read directly again when that is switched on.
func TestDirectGetsOff(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		var log journal
		a, b, c := join(t, s), join(t, s, log.option()), join(t, s)
		r := newRaw(t, s.Connect())
		l := mustLock(t, a.Client, "l")
		first := b.await(t, "l")
		second := c.await(t, "l")
		time.Sleep(3 * time.Second)
		r.reconfigure(func(c *jetstream.StreamConfig) { c.AllowDirect = false })
		begun := time.Now()
		kit.Unlock(t, l)
		l = first.Granted(t)
		_, err := c.TryLock(t.Context(), "l")
		require.ErrorIs(t, err, natslock.ErrLocked)
		kit.Unlock(t, l)
		kit.Unlock(t, second.Granted(t))
		require.Less(t, time.Since(begun), time.Second)
		time.Sleep(time.Second)
		require.Contains(t, log.String(), "allow_direct")
		require.NoError(t, b.Healthy())
		l = mustLock(t, a.Client, "l")
		next := b.await(t, "l")
		time.Sleep(time.Second)
		kit.Unlock(t, l)
		kit.Unlock(t, next.Granted(t))

		r.reconfigure(func(c *jetstream.StreamConfig) { c.AllowDirect = true })
		l = mustLock(t, a.Client, "l")
		next = b.await(t, "l") // its list asks the leader, whose answer has the settings
		time.Sleep(time.Second)
		asked := tapOf(t, s.Connect(), "$JS.API.DIRECT.GET.>")
		time.Sleep(6 * time.Second)
		require.NotEmpty(t, asked.take(t, b.nc), "no direct get after they are on")
		kit.Unlock(t, l)
		kit.Unlock(t, next.Granted(t))
	})
}

// A tool that applies StreamConfig again gives the notifications another id. The client
// follows, and says so.
func TestRepublishChanged(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		var log journal
		a, b, viewer := join(t, s), join(t, s, log.option()), join(t, s)
		r := newRaw(t, s.Connect())
		f := follow(t, viewer, ">")
		l := mustLock(t, a.Client, "l", natslock.TTL(24*time.Hour))
		f.next(admin.EventGranted)
		w := b.await(t, "l")
		f.next(admin.EventQueued)
		time.Sleep(3 * time.Second)
		applied, err := kvstore.Config{}.StreamConfig()
		require.NoError(t, err)
		r.reconfigure(func(c *jetstream.StreamConfig) { c.RePublish, c.Metadata = applied.RePublish, applied.Metadata })
		changed := time.Now()
		f.next(admin.EventWatching) // the events of a while are missing
		require.LessOrEqual(t, time.Since(changed), 11*time.Second)
		for w.Over() || len(log.String()) == 0 {
			time.Sleep(time.Second)
			require.Less(t, time.Since(changed), 6*time.Minute)
		}
		require.Contains(t, log.String(), "republish")
		time.Sleep(time.Second)
		released := time.Now()
		kit.Unlock(t, l)
		l = w.Granted(t)
		require.Less(t, w.At.Sub(released), 100*time.Millisecond, "by a notification")
		kit.Unlock(t, l)
	})
}

// A bucket gets two more replicas under clients that contend: a TryLock after an Unlock is
// never refused by a replica that lags.
func TestReplicasAddedOnCluster(t *testing.T) {
	tier.Proof(t)
	cluster := testutil.RunCluster(t, 3)
	var clients []*natslock.Client
	for i := range 3 {
		clients = append(clients, kit.NewClient(t, cluster.ConnectTo(i)))
	}
	r := newRaw(t, cluster.Connect())
	for i := range 2000 {
		switch i {
		case 200:
			r.reconfigure(func(c *jetstream.StreamConfig) { c.Replicas = 3 })
		case 300:
			time.Sleep(3 * time.Second) // they have joined
		}
		kit.Unlock(t, mustLock(t, clients[i%3], "l"))
		l, err := clients[(i+1)%3].TryLock(t.Context(), "l")
		require.NotErrorIsf(t, err, natslock.ErrLocked, "%d", i)
		if err == nil { // else the leader is moving
			kit.Unlock(t, l)
		}
	}
}
