package rwlock_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// TestProofCountsFromTheGateWrite checks that a proof's age counts from when the gate write in its
// first reply was sent. Here the two replies are in time on their own, but not if the time that the
// write took is included.
func TestProofCountsFromTheGateWrite(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		liar := &liar{state: func(n int, st *kvstore.State) error {
			st.Replicas = 3
			if n <= 2 {
				time.Sleep(200 * time.Millisecond)
			}
			return nil
		}}
		b := liedTo(t, s, liar, natslock.WithTTL(5*time.Second))
		b.f.OnSend(kit.At("rw take", faults.DelayAnswer(500*time.Millisecond)))
		l, err := b.Lock(t.Context(), "x")
		require.NoError(t, err)
		require.Equal(t, 3, liar.asked)
		kit.Unlock(t, l)
	})
}

// blind is a store whose listings come from a replica that knows of no reader.
type blind struct{ kvstore.KV }

func (b blind) List(ctx context.Context, pattern string, min uint64, opts ...kvstore.ListOption) (kvstore.Listing, error) {
	l, err := b.KV.List(ctx, pattern, min, opts...)
	if strings.HasPrefix(pattern, "read.") {
		l.Records = nil
	}
	return l, err
}

// TestListIsNoProof checks that a listing does not let a writer in, because it may come from any
// replica.
func TestListIsNoProof(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a := newPeer(t, s.Connect(), 1)
		b := newPeerOver(t, s.Connect(), 2, func(kv kvstore.KV) kvstore.KV { return blind{kv} })
		r, err := a.RLock(t.Context(), "x")
		require.NoError(t, err)
		_, err = b.TryLock(t.Context(), "x")
		require.ErrorIs(t, err, natslock.ErrLocked)
		grants := make(chan grant, 1)
		b.write("w", grants)
		nobody(t, grants, "over a reader")
		kit.Unlock(t, r)
		g := <-grants
		require.NoError(t, g.err)
		kit.Unlock(t, g.l)
	})
}

// TestGateLostInTheDrain delivers the proof after the gate was lost. By then it is worthless,
// because readers may have joined again.
func TestGateLostInTheDrain(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		const ttl = 5 * time.Second
		liar := &liar{state: func(n int, _ *kvstore.State) error {
			if n == 1 {
				time.Sleep(ttl)
			}
			return nil
		}}
		b := liedTo(t, s, liar, natslock.WithTTL(ttl))
		begun := time.Now()
		b.f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
			if kit.Stage(w) == "rw renew" && time.Since(begun) < ttl {
				return faults.Drop
			}
			return faults.Pass
		})
		l, err := b.Lock(t.Context(), "x")
		require.NoError(t, err)
		require.Positive(t, l.Remaining())
		require.Positive(t, b.f.Counts().Dropped)
		kit.Unlock(t, l)
	})
}

// TestDrainUnnotified checks that a writer that gets no notification of the readers leaving reads
// by itself every few seconds.
func TestDrainUnnotified(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b := newPeer(t, s.Connect(), 1, natslock.WithTTL(time.Hour)), newPeer(t, s.Connect(), 2, natslock.WithTTL(time.Hour))
		b.f.DropAllEvents(true)
		r, err := a.RLock(t.Context(), "x")
		require.NoError(t, err)
		grants := make(chan grant, 1)
		b.write("w", grants)
		for range 10 {
			nobody(t, grants, "over a reader")
		}
		gone := time.Now()
		kit.Unlock(t, r)
		g := <-grants
		require.NoError(t, g.err)
		require.Less(t, g.at.Sub(gone), 4*time.Second)
		kit.Unlock(t, g.l)
	})
}

// TestOwnWriterEndsSharing checks that a client's readers admit nobody after a Lock by the client's
// own writer, even if no notification announces it.
func TestOwnWriterEndsSharing(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a := newPeer(t, s.Connect(), 1, natslock.WithTTL(time.Hour))
		a.f.DropAllEvents(true)
		r1, err := a.RLock(t.Context(), "x")
		require.NoError(t, err)
		r2, err := a.RLock(t.Context(), "x")
		require.NoError(t, err)
		guest, err := a.RLock(t.Context(), "x")
		require.NoError(t, err)
		require.Equal(t, claimOf(r1), claimOf(guest))
		grants := make(chan grant, 1)
		a.write("w", grants)
		synctest.Wait()
		_, err = a.TryRLock(t.Context(), "x")
		require.ErrorIs(t, err, natslock.ErrLocked, "shared past a writer")
		kit.Unlock(t, r1, r2, guest)
		g := <-grants
		require.NoError(t, g.err)
		kit.Unlock(t, g.l)
	})
}

// TestWriterBehindSlowReader has two readers and a writer wait, of which the second reader is
// quicker than the first. That it got in does not put its successor, the writer, first in line.
func TestWriterBehindSlowReader(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b, c, d := newPeer(t, s.Connect(), 1), newPeer(t, s.Connect(), 2), newPeer(t, s.Connect(), 3), newPeer(t, s.Connect(), 4)
		holder, err := d.Lock(t.Context(), "x")
		require.NoError(t, err)
		grants := make(chan grant, 3)
		a.read("slow reader", grants)
		nobody(t, grants, "beside a writer")
		b.read("reader", grants)
		nobody(t, grants, "beside a writer")
		c.write("writer", grants)
		nobody(t, grants, "beside a writer")
		a.f.OnSend(kit.At("read take", faults.Delay(500*time.Millisecond)))
		var gate atomic.Int32
		c.f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
			if kit.Stage(w) == "rw take" {
				gate.Add(1)
			}
			return faults.Pass
		})
		kit.Unlock(t, holder)
		g := <-grants
		require.Equal(t, "reader", g.who)
		require.NoError(t, g.err)
		synctest.Wait()
		require.Zero(t, gate.Load(), "the writer has tried to pass a reader")
		slow := <-grants
		require.Equal(t, "slow reader", slow.who)
		kit.Unlock(t, g.l, slow.l)
		g = <-grants
		require.NoError(t, g.err)
		kit.Unlock(t, g.l)
	})
}

// TestDrainBucketRemade checks that a writer that waits for a reader while the bucket is re-created
// has lost its gate, and queues behind the writers in the new bucket.
func TestDrainBucketRemade(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b := newPeer(t, s.Connect(), 1, natslock.WithTTL(time.Hour)), newPeer(t, s.Connect(), 2)
		r, err := b.RLock(t.Context(), "x", natslock.NoRenew())
		require.NoError(t, err)
		grants := make(chan grant, 1)
		a.write("a", grants)
		kit.Eventually(t, "the gate stands", func() bool {
			info, err := admin.New(b.c).Inspect(t.Context(), admin.KindRW, "x")
			return err == nil && info.Holder != nil
		})
		time.Sleep(2 * time.Second) // buckets are told apart by their time of creation
		kit.RemakeBucket(t, s.Connect(), 0)
		l := kit.Must(t, newPeer(t, s.Connect(), 3).Lock, "x")
		time.Sleep(time.Minute)
		require.Empty(t, grants)
		kit.Unlock(t, l)
		g := kit.Receive(t, grants, "the writer")
		require.NoError(t, g.err)
		require.Greater(t, g.l.Token(), l.Token())
		kit.Unlock(t, g.l)
		require.ErrorIs(t, r.Unlock(t.Context()), natslock.ErrLost)
	})
}
