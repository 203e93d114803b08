package rwlock_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/history"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

const streamName = "KV_natslock"

var r3 = natslock.WithReplicas(3)

// TestClusterOutage kills the server that leads the stream while a writer drains a reader, and in a
// second cluster isolates it instead. Both cases consist mostly of waiting, so they run in parallel
// with each other but with no other test.
func TestClusterOutage(t *testing.T) {
	tier.Proof(t)
	for name, outage := range map[string]func(*testing.T) (vacuous string){"killed": leaderKilled, "isolated": leaderIsolated} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for try := 1; ; try++ {
				vacuous := outage(t)
				if vacuous == "" {
					return
				}
				t.Log("nothing was tested: " + vacuous)
				require.Less(t, try, 3, vacuous)
			}
		})
	}
}

// late reports why a lease with this much time left could not be renewed if the election was to
// blame: a split vote is repeated only seconds later. It returns "" if the election was not to
// blame.
func late(election, left time.Duration) string {
	if election < left-2*time.Second {
		return ""
	}
	return fmt.Sprintf("the election took %v, and the reader's lease had %v left", election, left)
}

// leaderKilled checks that at the default TTL nothing is lost, and that the writer gets in when the
// reader leaves.
func leaderKilled(t *testing.T) (vacuous string) {
	cl := testutil.RunCluster(t, 3)
	a, b, c := newPeer(t, cl.Connect(), 1, r3), newPeer(t, cl.Connect(), 2, r3), newPeer(t, cl.Connect(), 3, r3)
	u := history.NewRecorder()
	u.Tap(t, cl.Connect())
	u.Lossy()
	r, err := a.RLock(t.Context(), "x")
	require.NoError(t, err)
	u.Granted(admin.KindRW, admin.Shared, r)
	grants := make(chan grant, 2)
	b.write("b", grants)
	kit.Eventually(t, "the gate stands", func() bool {
		info, err := admin.New(a.c).Inspect(t.Context(), admin.KindRW, "x")
		return err == nil && info.Holder != nil
	})
	c.read("c", grants)
	kit.Eventually(t, "a reader is queued", func() bool { return c.c.Stats().Waiting == 1 })
	left := r.Remaining()
	cl.Kill(cl.Index(cl.StreamLeader(streamName)))
	killed, extended := time.Now(), make(chan error, 1)
	go func() { extended <- r.Extend(t.Context(), 0) }()
	cl.WaitStreamLeader(t, streamName)
	election := time.Since(killed)
	err = <-extended
	if why := late(election, left); err != nil && why != "" {
		for range 2 {
			g := kit.Receive(t, grants, "a grant after the lease")
			require.NoError(t, g.err)
			kit.Unlock(t, g.l)
		}
		return why
	}
	require.NoError(t, err, "confirmed by the next leader")
	require.NoError(t, r.Err())
	require.Empty(t, grants)
	kit.Unlock(t, r)
	released := time.Now()
	g := kit.Receive(t, grants, "the writer")
	require.NoError(t, g.err)
	require.Equal(t, "b", g.who)
	u.Granted(admin.KindRW, admin.Exclusive, g.l)
	require.Less(t, time.Since(released), 16*time.Second)
	kit.Unlock(t, g.l)
	g = kit.Receive(t, grants, "the reader")
	require.NoError(t, g.err)
	u.Granted(admin.KindRW, admin.Shared, g.l)
	kit.Unlock(t, g.l)
	u.Check(t)
	return ""
}

// leaderIsolated replays the model checker's counterexample. A writer connected to the stream's
// leader drains a reader, and then that server is cut off from the others. They elect a new leader,
// with which the reader renews its lease. The old leader still believes it is leading, removes the
// reader by its own clock, and tells the writer that no reader is left. The writer must not believe
// it, however long its own lease and therefore its margin.
func leaderIsolated(t *testing.T) (vacuous string) {
	const ttl = 12 * time.Second // long enough for the reader to survive an election of up to 9 s
	cl := testutil.RunCluster(t, 3)
	newPeer(t, cl.Connect(), 0, r3) // creates the bucket
	// From its election on, a leader checks every 10 s whether it lost its followers more than 10 s
	// ago. A new leader can therefore carry on for almost 20 s.
	cl.StepDown(t, streamName)
	began := time.Now()
	old := cl.Index(cl.WaitStreamLeader(t, streamName))
	r := newPeer(t, cl.ConnectTo((old+1)%3), 1, r3, natslock.WithTTL(ttl))
	w := newPeer(t, cl.ConnectTo(old), 2, r3, natslock.WithTTL(24*time.Hour))
	beside := kit.OpenStore(t, cl.ConnectTo(old))
	u := history.NewRecorder()
	u.Tap(t, cl.ConnectTo((old+2)%3))
	u.Lossy()
	rl, err := r.RLock(t.Context(), "x")
	require.NoError(t, err)
	u.Granted(admin.KindRW, admin.Shared, rl)
	grants := make(chan grant, 1)
	w.write("w", grants)
	var gate uint64
	kit.Eventually(t, "the gate stands", func() bool {
		info, err := admin.New(w.c).Inspect(t.Context(), admin.KindRW, "x")
		if err != nil || info.Holder == nil {
			return false
		}
		gate = info.Holder.Revision
		return true
	})
	require.NoError(t, rl.Extend(t.Context(), 0))
	extended := time.Now()
	require.Equal(t, old, cl.Index(cl.StreamLeader(streamName)))
	left, prepared := rl.Remaining(), time.Since(began)
	cl.Isolate(old)
	isolated, election := time.Now(), time.Duration(0)
	believed := func() bool { return cl.Servers()[old].Server().JetStreamIsStreamLeader("$G", streamName) }
	led := time.Duration(0) // how long the old leader believed it was leading after the reader's renewal

	// The lie: a leader that knows about the gate replies that there is no reader.
	lies := 0
	for time.Since(extended) < 40*time.Second && lies < 20 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		st, err := beside.State(ctx, "read.x.*")
		cancel()
		if err == nil && len(st.Keys) == 0 && st.Complete && st.LastRevision >= gate {
			lies++
		}
		select {
		case g := <-grants:
			t.Fatalf("the writer got in (%v) %v after the reader's last renewal known to the old leader; the reader: %v, %v left", g.err, time.Since(extended), rl.Err(), rl.Remaining())
		case <-time.After(100 * time.Millisecond):
		}
		if believed() {
			led = time.Since(extended)
		}
		if election == 0 && cl.Index(cl.StreamLeader(streamName)) != old {
			election = time.Since(isolated)
		}
	}
	if election == 0 {
		election = time.Since(isolated)
	}
	why := late(election, left)
	switch {
	case led < ttl+3*time.Second:
		why = fmt.Sprintf("the old leader stepped down %v after the reader's renewal", led)
	case prepared > 3*time.Second:
		why = fmt.Sprintf("the leader was %v old when it was cut off", prepared)
	}
	if why != "" && (lies < 20 || rl.Remaining() == 0) {
		cl.Rejoin(old)
		_ = rl.Unlock(t.Context())
		g := kit.Receive(t, grants, "the writer")
		require.NoError(t, g.err)
		kit.Unlock(t, g.l)
		return why
	}
	require.Equal(t, 20, lies, "the old leader told the truth: nothing was tested")
	require.Positive(t, rl.Remaining(), "the reader renews with the majority")
	require.Greater(t, time.Since(extended), ttl)
	t.Logf("the old leader lied from some %v after it was cut off", time.Since(extended)-2*time.Second)

	// For a moment, all clients can now reach two leaders. The old one no longer has the reader's
	// record, and refuses its renewals and its release. That proves nothing, because the old leader
	// is behind.
	cl.Rejoin(old)
	require.NoError(t, rl.Extend(t.Context(), 0))
	require.Positive(t, rl.Remaining())
	select {
	case g := <-grants:
		t.Fatalf("the writer got in, or not (%v), over the reader with %v left", g.err, rl.Remaining())
	default:
	}
	kit.Unlock(t, rl)
	released := time.Now()
	g := kit.Receive(t, grants, "the writer")
	require.NoError(t, g.err)
	u.Granted(admin.KindRW, admin.Exclusive, g.l)
	require.Less(t, time.Since(released), 16*time.Second)
	require.Greater(t, g.l.Token(), rl.Token())
	kit.Unlock(t, g.l)
	u.Check(t)
	return ""
}
