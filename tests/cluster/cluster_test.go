package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/verify/history"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

var r3 = natslock.WithReplicas(3)

// patient lets a release outlast an election. By default Unlock reports after 5 s that it has not
// been confirmed.
var patient = natslock.WithTuning(natslock.Tuning{ReleaseTimeout: kit.Patience})

// runCluster starts three servers. Tests with clusters run in parallel, because they spend most of
// their time waiting for elections.
func runCluster(t *testing.T) *testutil.Cluster {
	t.Helper()
	if testing.Short() {
		t.Skip("a cluster takes seconds; -short was given")
	}
	t.Parallel()
	return testutil.RunCluster(t, 3)
}

// TestRollingRestart restarts all three servers one after another while clients contend for mutexes
// and a reader-writer lock. No update and no lease with the default TTL may be lost.
func TestRollingRestart(t *testing.T) {
	tier.Proof(t)
	cl := runCluster(t)
	keeper := kit.NewClient(t, cl.Connect(), r3, patient)
	var kept []*natslock.Lock
	var tokens []uint64
	for _, w := range oneOfEach {
		l := mustTake(t, keeper, w)
		kept, tokens = append(kept, l), append(tokens, l.Token())
	}
	ld := startLoad(t, 3, func() *nats.Conn { return cl.Connect() }, r3, patient)
	for i := range 3 {
		ld.more(10)
		cl.Restart(i)
	}
	ld.more(10)
	ld.stop()
	for i, l := range kept {
		require.NoError(t, l.Err())
		require.NoError(t, l.Extend(t.Context(), 0))
		require.Equal(t, tokens[i], l.Token())
		require.NoError(t, l.Unlock(t.Context()))
	}
	require.Zero(t, keeper.Stats().Lost)
	nothingLeft(t, cl.Connect())
}

func nothingLeft(t *testing.T, nc *nats.Conn) {
	t.Helper()
	store := kit.OpenStore(t, nc)
	kit.Eventually(t, "nothing is left", func() bool {
		l, err := store.List(t.Context(), ">", 0)
		return err == nil && len(l.Records) == 0
	})
}

// TestSuccessorStopped kills a follower, which must not change anything, and then has the leader
// step down while only two servers are left.
func TestSuccessorStopped(t *testing.T) {
	tier.Proof(t)
	cl := runCluster(t)
	keeper := kit.NewClient(t, cl.Connect(), r3, patient)
	var kept []*natslock.Lock
	for _, w := range oneOfEach {
		kept = append(kept, mustTake(t, keeper, w))
	}
	ld := startLoad(t, 3, func() *nats.Conn { return cl.Connect() }, r3, patient)
	ld.more(5)
	leader := cl.Index(cl.WaitStreamLeader(t, kit.StreamName))
	follower := (leader + 1) % 3
	cl.Kill(follower)
	ld.more(10)
	require.Equal(t, leader, cl.Index(cl.StreamLeader(kit.StreamName)))
	cl.StepDown(t, kit.StreamName)
	ld.more(10)
	cl.Restart(follower)
	ld.more(10)
	ld.stop()
	for _, l := range kept {
		require.NoError(t, l.Err())
		require.NoError(t, l.Unlock(t.Context()))
	}
	require.Zero(t, keeper.Stats().Lost)
	nothingLeft(t, cl.Connect())
}

// TestLeaderPartitioned cuts the stream's leader off from the other servers but not from its
// clients. The old leader keeps replying, with stale records, and accepts publishes that come to
// nothing. Its holders must lose their locks in time and its clients must be granted nothing, while
// the locks work as usual on the other side.
func TestLeaderPartitioned(t *testing.T) {
	tier.Proof(t)
	const ttl = 10 * time.Second // an election may take 9 s, but the next holder waits only for the lease
	cl := runCluster(t)
	kit.NewClient(t, cl.Connect(), r3)
	// Every 10 s from its election on, a leader checks whether it lost its followers at least 10 s
	// ago. A new leader therefore carries on for almost 20 s.
	cl.StepDown(t, kit.StreamName)
	leader := cl.WaitStreamLeader(t, kit.StreamName)
	old := cl.Index(leader)
	inside := kit.NewClient(t, cl.ConnectTo(old), r3, natslock.WithTTL(ttl), patient)
	insider, across := kit.OpenStore(t, cl.ConnectTo(old)), kit.OpenStore(t, cl.ConnectTo((old+1)%3))
	outside := kit.NewClient(t, cl.ConnectTo((old+1)%3), r3, natslock.WithTTL(ttl), patient)
	long := kit.NewClient(t, cl.ConnectTo((old+2)%3), r3, natslock.WithTTL(time.Minute), patient)
	ref := history.NewRecorder()

	var held []*natslock.Lock
	var waits []*kit.Waiting
	for _, w := range oneOfEach {
		l := mustTake(t, inside, w)
		ref.Granted(w.Kind, w.Mode, l)
		held = append(held, l)
		waits = append(waits, await(t, outside, w.against()))
	}
	// A client on the other side releases this lock once this side is cut off.
	gone := which{Name: "gone", Kind: admin.KindMutex}
	lg := mustTake(t, long, gone)
	ref.Granted(gone.Kind, gone.Mode, lg)
	cl.Isolate(old)
	cut := time.Now()

	// The old leader still believes it leads, so it accepts the claim but never acknowledges it.
	claim := make(chan error, 1)
	fresh := which{Name: "fresh", Kind: admin.KindMutex}
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_, err := fresh.take(ctx, inside)
		claim <- err
	}()
	require.ErrorIs(t, kit.Receive(t, claim, "the claim"), natslock.ErrTimeout)
	require.Same(t, leader, cl.StreamLeader(kit.StreamName), "it still believes to lead")

	// Its replies become stale as soon as the other side makes progress.
	kit.Eventually(t, "another leader takes writes", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		_, err := across.Create(ctx, "mark.x", nil, time.Minute)
		return err == nil || errors.Is(err, kvstore.ErrExists)
	})
	require.NoError(t, lg.Unlock(t.Context()))
	fl := mustTake(t, outside, fresh)
	ref.Granted(fresh.Kind, fresh.Mode, fl)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	state, err := insider.State(ctx, "lock.*")
	require.NoError(t, err, "%v after the cut it has given up already", time.Since(cut))
	require.Contains(t, state.Keys, "lock.gone")
	require.NotContains(t, state.Keys, "lock.fresh")
	require.Less(t, state.LastRevision, record.TokenRevision(fl.Token()))
	r, err := insider.Get(ctx, "lock.gone", 0)
	require.NoError(t, err)
	require.False(t, r.Deleted, "released %v after the cut", time.Since(cut))
	for _, w := range []which{gone, fresh} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err := w.take(ctx, inside)
		cancel()
		require.Error(t, err, "%v: granted by a leader without a quorum", w)
	}
	t.Logf("stale up to %v after the cut", time.Since(cut))

	for i, l := range held {
		next := waits[i].Granted(t)
		ref.Granted(oneOfEach[i].Kind, admin.Exclusive, next)
		require.ErrorIs(t, l.Err(), natslock.ErrLost)
		require.Greater(t, next.Token(), l.Token())
		kit.Receive(t, l.Context().Done(), "the end of a lock")
		require.ErrorIs(t, context.Cause(l.Context()), natslock.ErrLost)
	}

	cl.Rejoin(old)
	require.Positive(t, fl.Remaining())
	require.NoError(t, fl.Extend(t.Context(), 0))
	l := mustTake(t, inside, gone)
	ref.Granted(gone.Kind, gone.Mode, l)
	require.Greater(t, l.Token(), lg.Token())
	require.NoError(t, l.Unlock(t.Context()))
	require.NoError(t, fl.Unlock(t.Context()))
	l = mustTake(t, inside, fresh)
	ref.Granted(fresh.Kind, fresh.Mode, l)
	require.Greater(t, l.Token(), fl.Token())
	require.NoError(t, l.Unlock(t.Context()))
	ref.Check(t)
}

// TestPublishComesBack separates the stream's leader from its followers for some seconds, so that
// it accepts publishes without acknowledging them. If it still leads when the followers return, it
// stores the publishes after their senders have given up. A client that is still alive deletes its
// record, or adopts it if it is still waiting. The record of a client that is gone keeps others out
// for its TTL. No record may let two clients in.
func TestPublishComesBack(t *testing.T) {
	tier.Proof(t)
	const ttl = 4 * time.Second
	cl := runCluster(t)
	opts := func(owner string) []natslock.Option {
		lease := ttl
		if owner == "there" {
			lease = 10 * kit.Patience // nobody has to wait for this lease
		}
		// A release waits for the election that may follow the cut.
		return []natslock.Option{r3, natslock.WithTTL(lease), natslock.WithOwner(owner), patient}
	}
	alive := kit.NewClient(t, cl.Connect(), opts("alive")...)
	wire := tap(t, kit.OpenStore(t, cl.Connect()))
	ref := history.NewRecorder()
	owners := []string{"there", "crashed", "waits"}

	// The followers may elect a leader of their own before they return. The publishes then come to
	// nothing, and the test cuts the followers off once more.
	back := map[string]int{}
	for round := 0; round < 5 && (back["there"] == 0 || back["crashed"] == 0 || back["waits"] == 0); round++ {
		old := cl.Index(cl.WaitStreamLeader(t, kit.StreamName))
		clients := map[string]*natslock.Client{}
		var crash func()
		for _, owner := range owners {
			nc := cl.ConnectTo(old)
			clients[owner] = kit.NewClient(t, nc, opts(owner)...)
			if owner == "crashed" {
				crash = nc.Close
			}
		}
		name := func(owner string, w which) which {
			w.Name = fmt.Sprint(owner, round, w.Name)
			return w
		}
		cl.Isolate((old + 1) % 3)
		cl.Isolate((old + 2) % 3)
		cut := time.Now()
		var wg sync.WaitGroup
		var waits []*kit.Waiting
		for _, w := range oneOfEach {
			for _, owner := range owners[:2] {
				wg.Go(func() {
					ctx, cancel := context.WithTimeout(context.Background(), 700*time.Millisecond)
					defer cancel()
					_, err := name(owner, w).take(ctx, clients[owner])
					assert.ErrorIs(t, err, natslock.ErrTimeout, "granted without a quorum")
				})
			}
			waits = append(waits, begin(t, clients["waits"], name("waits", w)))
		}
		wg.Wait()
		crash()
		for _, w := range waits {
			require.False(t, w.Over(), "granted without a quorum")
		}
		cl.Rejoin((old + 1) % 3)
		cl.Rejoin((old + 2) % 3)
		cl.WaitStreamLeader(t, kit.StreamName)
		var adopted []*natslock.Lock
		for i, w := range oneOfEach {
			l := waits[i].Granted(t)
			ref.Granted(w.Kind, w.Mode, l)
			adopted = append(adopted, l)
		}
		for _, w := range oneOfEach {
			for _, owner := range owners[:2] {
				w := name(owner, w).against()
				l := mustTake(t, alive, w)
				ref.Granted(w.Kind, w.Mode, l)
				require.NoError(t, l.Unlock(t.Context()))
			}
		}
		for _, owner := range owners {
			for _, w := range oneOfEach {
				w := name(owner, w)
				key, _ := strings.CutSuffix(w.key(), "*")
				back[owner] += wire.from(owner, key)
			}
		}
		for _, l := range adopted { // a later attempt may have been granted and lost again by now
			if err := l.Extend(t.Context(), 0); err != nil {
				require.ErrorIs(t, err, natslock.ErrLost)
			}
			_ = l.Unlock(t.Context())
		}
		require.Zero(t, clients["there"].Stats().Granted)
		t.Logf("round %d: %v records came back, all of it in %v", round, back, time.Since(cut))
	}
	require.Positive(t, back["there"], "no publish has come back: nothing was tested")
	require.Positive(t, back["crashed"])
	require.Positive(t, back["waits"])
	ref.Check(t)
}
