package faults_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// TestHandleBucketDeleted checks that the locks of a deleted bucket end.
func TestHandleBucketDeleted(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, other := kit.Join(t, s), kit.Join(t, s)
		r := kit.NewRaw(t, s.Connect())
		l := kit.Must(t, c.Lock, "l")
		fixed := kit.Must(t, c.Lock, "fixed", natslock.NoRenew(), natslock.TTL(time.Hour))
		w := other.Await(t, "l")
		time.Sleep(2 * time.Second)
		require.NoError(t, r.JS.DeleteStream(t.Context(), kit.StreamName))
		deleted := time.Now()
		<-l.Context().Done()
		require.LessOrEqual(t, time.Since(deleted), 15*time.Second)
		kit.WantLost(t, l, natslock.ErrLost)
		require.ErrorIs(t, w.Failed(t), natslock.ErrUnavailable)
		require.ErrorContains(t, w.Err, "bucket")
		require.Less(t, w.At.Sub(deleted), time.Minute, "a waiter does not search for its queue forever")
		time.Sleep(6 * time.Minute)
		kit.WantLost(t, fixed, natslock.ErrLost)
		require.ErrorIs(t, c.Healthy(), kvstore.ErrNotFound)
		_, err := c.TryLock(t.Context(), "l")
		require.ErrorIs(t, err, natslock.ErrUnavailable)
	})
}

func TestHandleBucketMadeAgain(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		r := kit.NewRaw(t, s.Connect())
		l := kit.Must(t, c.Lock, "l", natslock.TTL(time.Hour))
		fixed := kit.Must(t, c.Lock, "fixed", natslock.NoRenew(), natslock.TTL(time.Hour))
		time.Sleep(2 * time.Second)
		require.NoError(t, r.JS.DeleteStream(t.Context(), kit.StreamName))
		other := rejoin(t, s)
		next := kit.Must(t, other.Lock, "l")
		require.Greater(t, next.Token(), l.Token(), "tokens go on")
		recent := kit.Must(t, c.Lock, "recent")
		time.Sleep(6 * time.Minute) // the client verifies the bucket every 5 minutes
		kit.WantLost(t, l, natslock.ErrLost)
		kit.WantLost(t, fixed, natslock.ErrLost)
		kit.WantHeld(t, recent)
		time.Sleep(time.Minute)
		kit.WantHeld(t, next)

		// After a reconnect the client notices immediately.
		l = kit.Must(t, other.Lock, "fixed", natslock.NoRenew(), natslock.TTL(time.Hour))
		require.NoError(t, r.JS.DeleteStream(t.Context(), kit.StreamName))
		newest := rejoin(t, s)
		other.Link.Cut()
		other.Link.Heal()
		time.Sleep(time.Second)
		kit.WantLost(t, l, natslock.ErrLost)
		require.Greater(t, kit.Must(t, newest.Lock, "fixed").Token(), l.Token())
		require.NoError(t, other.Healthy())
		kit.Unlock(t, kit.Must(t, other.Lock, "again"))
	})
}

// TestHandleBucketOfAClockBehind checks that a lease is lost if its bucket is re-created with lower
// revisions, whether or not the new bucket has reached the lease's revision.
func TestHandleBucketOfAClockBehind(t *testing.T) {
	for _, grants := range []int{0, 20} {
		t.Run(fmt.Sprint(grants), func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				c := kit.Join(t, s)
				fixed := kit.Must(t, c.Lock, "fixed", natslock.NoRenew(), natslock.TTL(time.Hour))
				time.Sleep(2 * time.Second) // buckets are told apart by their creation times
				kit.RemakeBucket(t, s.Connect(), record.TokenRevision(fixed.Token())-10)
				other := kit.Join(t, s)
				for range grants {
					kit.Unlock(t, kit.Must(t, other.Lock, "other"))
				}
				c.Link.Cut()
				c.Link.Heal()
				time.Sleep(time.Second)
				kit.WantLost(t, fixed, natslock.ErrLost)
				kit.Unlock(t, kit.Must(t, other.Lock, "fixed"))
			})
		})
	}
}

// rejoin creates a client and a new bucket. The server may still be removing the old bucket's
// files.
func rejoin(t *testing.T, s *testutil.Server) *kit.Member {
	t.Helper()
	nc := s.Connect()
	kit.Eventually(t, "the bucket can be made", func() bool {
		c, err := natslock.New(t.Context(), nc)
		return err == nil && c.Close(t.Context()) == nil
	})
	return kit.Join(t, s)
}

// TestBucketMadeAgainUnfit checks that a re-created bucket is a different bucket, fit or not. A
// lease that is not renewed ends even if the bucket is repaired before it is verified again.
func TestBucketMadeAgainUnfit(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		r := kit.NewRaw(t, s.Connect())
		kit.Must(t, c.Lock, "renewed") // its next renewal finds no record
		fixed := kit.Must(t, c.Lock, "l", natslock.NoRenew(), natslock.TTL(10*time.Minute))
		time.Sleep(3 * time.Second)
		require.NoError(t, r.JS.DeleteStream(t.Context(), kit.StreamName))
		time.Sleep(time.Millisecond) // in a bubble this lets the server remove the files
		sc, err := kvstore.Config{}.StreamConfig()
		require.NoError(t, err)
		sc.Metadata["natslock.protocol"] = "4"
		_, err = r.JS.CreateStream(t.Context(), sc)
		require.NoError(t, err)
		kit.ReceiveIn(t, 6*time.Second, fixed.Context().Done(), "the end of the lease")
		kit.WantLost(t, fixed, natslock.ErrLost)
		require.ErrorIs(t, c.Healthy(), kvstore.ErrBucketConfig)

		r.Reconfigure(func(c *jetstream.StreamConfig) { c.Metadata["natslock.protocol"] = "3" })
		time.Sleep(6 * time.Second)
		require.NoError(t, c.Healthy())
		other := kit.Join(t, s)
		l := kit.Must(t, other.Lock, "l")
		require.ErrorIs(t, func() error { _, err := c.TryLock(t.Context(), "l"); return err }(), natslock.ErrLocked)
		kit.Unlock(t, l)
	})
}

// TestDirectGetsOff turns direct gets off while clients contend. The clients must continue by
// reading from the leader, log a warning, and return to direct gets once those are on again.
func TestDirectGetsOff(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		var log kit.Log
		a, b, c := kit.Join(t, s), kit.Join(t, s, log.Option()), kit.Join(t, s)
		r := kit.NewRaw(t, s.Connect())
		l := kit.Must(t, a.Lock, "l")
		first := b.Await(t, "l")
		second := c.Await(t, "l")
		time.Sleep(3 * time.Second)
		r.Reconfigure(func(c *jetstream.StreamConfig) { c.AllowDirect = false })
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
		l = kit.Must(t, a.Lock, "l")
		next := b.Await(t, "l")
		time.Sleep(time.Second)
		kit.Unlock(t, l)
		kit.Unlock(t, next.Granted(t))

		r.Reconfigure(func(c *jetstream.StreamConfig) { c.AllowDirect = true })
		l = kit.Must(t, a.Lock, "l")
		next = b.Await(t, "l") // its list goes to the leader, whose reply contains the settings
		time.Sleep(time.Second)
		asked := kit.NewTapOf(t, s.Connect(), "$JS.API.DIRECT.GET.>")
		time.Sleep(6 * time.Second)
		require.NotEmpty(t, asked.Take(t, b.NC), "no direct get after they are on")
		kit.Unlock(t, l)
		kit.Unlock(t, next.Granted(t))
	})
}

// TestRepublishChanged checks that clients follow and log a change of the notification ID, as made
// by a tool that applies StreamConfig again.
func TestRepublishChanged(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		var log kit.Log
		a, b, viewer := kit.Join(t, s), kit.Join(t, s, log.Option()), kit.Join(t, s)
		r := kit.NewRaw(t, s.Connect())
		f := kit.Follow(t, viewer, ">")
		l := kit.Must(t, a.Lock, "l", natslock.TTL(24*time.Hour))
		f.Next(admin.EventGranted)
		w := b.Await(t, "l")
		f.Next(admin.EventQueued)
		time.Sleep(3 * time.Second)
		applied, err := kvstore.Config{}.StreamConfig()
		require.NoError(t, err)
		r.Reconfigure(func(c *jetstream.StreamConfig) { c.RePublish, c.Metadata = applied.RePublish, applied.Metadata })
		changed := time.Now()
		f.Next(admin.EventWatching) // some events were missed
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
