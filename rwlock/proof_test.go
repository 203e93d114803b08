package rwlock_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
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

// liar sits between a writer and the store and alters the replies about readers.
type liar struct {
	kvstore.KV
	mu    sync.Mutex
	asked int
	state func(n int, st *kvstore.State) error
	get   func(key string, min uint64) error
}

func (l *liar) State(ctx context.Context, pattern string) (kvstore.State, error) {
	st, err := l.KV.State(ctx, pattern)
	if err != nil || !strings.HasPrefix(pattern, "read.") || l.state == nil {
		return st, err
	}
	l.mu.Lock()
	l.asked++
	n := l.asked
	l.mu.Unlock()
	err = l.state(n, &st)
	return st, err
}

func (l *liar) Get(ctx context.Context, key string, min uint64) (kvstore.Record, error) {
	if l.get != nil {
		if err := l.get(key, min); err != nil {
			return kvstore.Record{}, err
		}
	}
	return l.KV.Get(ctx, key, min)
}

// liedTo creates a client whose store lies behind a liar and a fault injector.
func liedTo(t *testing.T, s *testutil.Server, l *liar, opts ...natslock.Option) *peer {
	t.Helper()
	return newPeerOver(t, s.Connect(), 1, func(kv kvstore.KV) kvstore.KV {
		l.KV = kv
		return l
	}, opts...)
}

// ofReaders fails reads of readers' records.
func ofReaders(err error) func(string, uint64) error {
	return func(key string, _ uint64) error {
		if strings.HasPrefix(key, "read.") {
			return err
		}
		return nil
	}
}

// TestNoProof makes the writer ask again and again. Every reply seems to say that no reader is
// inside, but has one flaw that keeps it from proving that. The writer must not get the lock while
// the reader is inside, and gets it in the end through a true reply.
func TestNoProof(t *testing.T) {
	const ttl = 5 * time.Second // the margin is 500 ms
	for _, tc := range []struct {
		name  string
		state func(gate uint64, st *kvstore.State) error
		get   func(key string, min uint64) error
	}{
		{name: "older than the gate by one", state: func(gate uint64, st *kvstore.State) error {
			st.Keys, st.LastRevision = nil, gate-1
			return nil
		}},
		{name: "without a leader", state: func(_ uint64, st *kvstore.State) error {
			st.Keys, st.Complete = nil, false
			return nil
		}},
		{name: "an error", state: func(_ uint64, st *kvstore.State) error {
			st.Keys = nil
			return fmt.Errorf("%w: test", kvstore.ErrUnavailable)
		}},
		{name: "late, of several replicas", state: func(_ uint64, st *kvstore.State) error {
			st.Keys, st.Replicas = nil, 3
			time.Sleep(410 * time.Millisecond)
			return nil
		}},
		{name: "listed, and not found by a replica that lags", get: ofReaders(kvstore.ErrNotFound)},
		{name: "listed, and not to be read", get: ofReaders(fmt.Errorf("%w: test", kvstore.ErrUnavailable))},
	} {
		t.Run(tc.name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				a := newPeer(t, s.Connect(), 1, natslock.WithTTL(ttl))
				r, err := a.RLock(t.Context(), "x")
				require.NoError(t, err)
				var truth atomic.Bool
				liar := &liar{get: tc.get}
				b := liedTo(t, s, liar, natslock.WithTTL(ttl))
				store := kit.OpenStore(t, s.Connect())
				if tc.state != nil {
					liar.state = func(n int, st *kvstore.State) error {
						if truth.Load() || n > 4 {
							return nil
						}
						gate, err := store.Get(context.Background(), "rw.x", 0)
						if err != nil {
							return err
						}
						return tc.state(gate.Revision, st)
					}
				}
				grants := make(chan grant, 1)
				b.write("w", grants)
				for range 12 {
					nobody(t, grants, "on a worthless proof")
				}
				truth.Store(true)
				kit.Unlock(t, r)
				g := <-grants
				require.NoError(t, g.err)
				kit.Unlock(t, g.l)
			})
		})
	}
}

// TestTwoAnswers checks that on several replicas a proof takes two replies with a gate write
// between them. Both must arrive within 800 ms of when the gate write that the first reply includes
// was sent, whatever the TTL. The reader is long gone, so the test measures which replies the
// writer accepts.
func TestTwoAnswers(t *testing.T) {
	const ms = time.Millisecond
	for _, tc := range []struct {
		late  []time.Duration // of the first replies
		asked int
	}{
		{nil, 2},
		{[]time.Duration{790 * ms}, 2},
		{[]time.Duration{390 * ms, 400 * ms}, 2},
		{[]time.Duration{810 * ms}, 3},    // with the second and third replies
		{[]time.Duration{0, 810 * ms}, 4}, // the third reply comes too late after the gate write that the second one includes
		{[]time.Duration{790 * ms, 20 * ms}, 3},
		{[]time.Duration{790 * ms, 20 * ms, 790 * ms}, 4},
	} {
		for _, ttl := range []time.Duration{3 * time.Second, 24 * time.Hour} {
			t.Run(fmt.Sprintf("%v %v", ttl, tc.late), func(t *testing.T) {
				testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
					liar := &liar{state: func(n int, st *kvstore.State) error {
						st.Replicas = 3
						if n <= len(tc.late) {
							time.Sleep(tc.late[n-1])
						}
						return nil
					}}
					b := liedTo(t, s, liar, natslock.WithTTL(ttl))
					writes := 0
					b.f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
						if kit.Stage(w) == "rw renew" {
							writes++
						}
						return faults.Pass
					})
					l, err := b.Lock(t.Context(), "x")
					require.NoError(t, err)
					require.Equal(t, tc.asked, liar.asked)
					require.GreaterOrEqual(t, writes, tc.asked-1, "a gate write between any two")
					kit.Unlock(t, l)
				})
			})
		}
	}
}

// TestDeposedLeader is the model's counterexample to a proof that relies on the writer's own
// margin. The leader is deposed as soon as it has acknowledged the gate. It keeps replying in time
// from the records that it has, less those that have expired by its own clock, while the reader
// renews elsewhere.
func TestDeposedLeader(t *testing.T) {
	for _, tc := range []struct {
		reader, writer time.Duration
		gate           time.Duration // time from the last reader's write that the deposed leader has until the writer arrives
	}{
		{12 * time.Second, 24 * time.Hour, time.Second}, // a margin of 86 s
		{time.Second, 10 * time.Second, 320 * time.Millisecond},
	} {
		t.Run(fmt.Sprintf("%v %v", tc.reader, tc.writer), func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				a := newPeer(t, s.Connect(), 1, natslock.WithTTL(tc.reader), natslock.WithTuning(natslock.Tuning{WatchAfter: -1}))
				store := kit.OpenStore(t, s.Connect())
				r, err := a.RLock(t.Context(), "x")
				require.NoError(t, err)
				var truth atomic.Bool
				lies := 0
				var deposed struct {
					revision uint64
					key      string
					end      time.Time
				}
				liar := &liar{state: func(n int, st *kvstore.State) error {
					st.Replicas = 3
					if truth.Load() {
						return nil
					}
					if n == 1 {
						rec, err := store.Get(context.Background(), st.Keys[0], 0)
						if err != nil {
							return err
						}
						deposed.revision, deposed.key, deposed.end = st.LastRevision, rec.Key, rec.Time.Add(rec.TTL)
					}
					if left := time.Until(deposed.end); left > 0 && left < 300*time.Millisecond {
						time.Sleep(left) // asked just before, or replies just after
					}
					st.LastRevision, st.Keys = deposed.revision, []string{deposed.key}
					if !time.Now().Before(deposed.end) {
						st.Keys = nil
						lies++
					}
					return nil
				}}
				b := liedTo(t, s, liar, natslock.WithTTL(tc.writer), natslock.WithTuning(natslock.Tuning{WatchAfter: -1}))
				time.Sleep(tc.gate)
				grants := make(chan grant, 1)
				b.write("w", grants)
				for range 20 {
					nobody(t, grants, "on the word of a deposed leader")
				}
				require.Positive(t, lies, "it was not asked at the time")
				require.Positive(t, r.Remaining())
				truth.Store(true)
				kit.Unlock(t, r)
				g := <-grants
				require.NoError(t, g.err)
				kit.Unlock(t, g.l)
			})
		})
	}
}

// TestSlowLink covers a link on which two writes and their replies never fit into the time allowed
// for a proof. The error must say so, and the gate must not stay.
func TestSlowLink(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		var delay atomic.Int64
		liar := &liar{state: func(_ int, st *kvstore.State) error {
			st.Replicas = 3
			time.Sleep(time.Duration(delay.Load()))
			return nil
		}}
		b := liedTo(t, s, liar, natslock.WithTTL(10*time.Second))
		for _, take := range []func(context.Context, string, ...natslock.LockOption) (*natslock.Lock, error){b.Lock, b.TryLock} {
			delay.Store(int64(410 * time.Millisecond))
			begun := time.Now()
			_, err := take(t.Context(), "x")
			require.ErrorIs(t, err, natslock.ErrUnavailable)
			require.ErrorContains(t, err, "too slow")
			require.ErrorContains(t, err, "800ms")
			require.Less(t, time.Since(begun), 6*time.Second)
			synctest.Wait()
			require.Empty(t, kit.KeysLeft(t, s.Connect()))
			delay.Store(int64(390 * time.Millisecond))
			l, err := take(t.Context(), "x")
			require.NoError(t, err)
			kit.Unlock(t, l)
		}
	})
}

// TestCutOffIsNotSlow leaves a writer's gate writes unacknowledged while a server keeps answering
// its reads. No link is slow in that case, so the writer keeps waiting.
func TestCutOffIsNotSlow(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a := newPeer(t, s.Connect(), 1, natslock.WithTTL(5*time.Second))
		r, err := a.RLock(t.Context(), "x")
		require.NoError(t, err)
		liar := &liar{}
		b := liedTo(t, s, liar, natslock.WithTTL(time.Minute))
		var cut atomic.Bool
		liar.state = func(_ int, st *kvstore.State) error {
			st.Replicas = 3
			if cut.Load() {
				st.Keys = nil
			}
			return nil
		}
		b.f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
			if cut.Load() && kit.Stage(w) == "rw renew" {
				return faults.Drop
			}
			return faults.Pass
		})
		grants := make(chan grant, 1)
		// The first reply is in time but shows a reader.
		b.write("w", grants)
		nobody(t, grants, "over a reader")
		cut.Store(true)
		for range 40 {
			nobody(t, grants, "on answers that no gate write came between")
		}
		cut.Store(false)
		kit.Unlock(t, r)
		g := <-grants
		require.NoError(t, g.err)
		kit.Unlock(t, g.l)
	})
}

// TestBehindIsNotSlow covers a deposed leader that returns and replies immediately, but lacks the
// newest gate writes and perhaps knows of no leader. However often it does so, the link must not
// count as slow, and the writer must not flood it with requests.
func TestBehindIsNotSlow(t *testing.T) {
	for what, behind := range map[string]func(*kvstore.State){
		"older than the gate": func(st *kvstore.State) { st.LastRevision = 1 },
		"without a leader":    func(st *kvstore.State) { st.Complete = false },
	} {
		t.Run(what, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				liar := &liar{state: func(n int, st *kvstore.State) error {
					st.Replicas = 3
					if n <= 20 {
						behind(st)
					}
					return nil
				}}
				b := liedTo(t, s, liar, natslock.WithTTL(5*time.Second))
				begun := time.Now()
				l, err := b.Lock(t.Context(), "x")
				require.NoError(t, err)
				require.Greater(t, liar.asked, 20)
				require.Greater(t, time.Since(begun), 20*time.Second, "asked in a tight loop")
				kit.Unlock(t, l)

				liar.asked = 0
				_, err = b.TryLock(t.Context(), "x")
				require.ErrorIs(t, err, natslock.ErrUnavailable)
				require.ErrorContains(t, err, "no answer")
				require.Less(t, liar.asked, 10)
			})
		})
	}
}

// TestBrokenReaderIsListed breaks a reader and drops the notifications. Only the reader's
// tombstone, or the end of its record, proves that it is gone.
func TestBrokenReaderIsListed(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b := newPeer(t, s.Connect(), 1, natslock.WithTuning(natslock.Tuning{WatchAfter: -1})), newPeer(t, s.Connect(), 2)
		r, err := a.RLock(t.Context(), "x")
		require.NoError(t, err)
		require.NoError(t, admin.New(b.c).Break(t.Context(), admin.BreakRequest{Kind: admin.KindRW, Name: "x", ID: r.ID(), Reason: "test"}))
		broken := time.Now()
		require.Positive(t, r.Remaining(), "it has not noticed yet")
		_, err = b.TryLock(t.Context(), "x")
		require.ErrorIs(t, err, natslock.ErrLocked)
		l, err := b.Lock(t.Context(), "x")
		require.NoError(t, err)
		require.ErrorIs(t, r.Err(), natslock.ErrLost)
		require.GreaterOrEqual(t, time.Since(broken), 15*time.Second)
		kit.Unlock(t, l)
	})
}

// lagging is a replica that stays behind. It keeps showing a reader's record as it first saw it,
// unless the reply must include a later revision.
type lagging struct {
	kvstore.KV
	mu   sync.Mutex
	seen map[string]kvstore.Record
}

func (l *lagging) Get(ctx context.Context, key string, min uint64) (kvstore.Record, error) {
	r, err := l.KV.Get(ctx, key, min)
	if err != nil || !strings.HasPrefix(key, "read.") {
		return r, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch old, known := l.seen[key]; {
	case !known:
		l.seen[key] = r
	case min <= old.Revision:
		return old, nil
	}
	return r, nil
}

// TestDrainByLaggingReplica notifies a writer that the last reader has left. The writer then reads
// the record from a replica that the deletion has not reached, and must not keep waiting.
func TestDrainByLaggingReplica(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a := newPeer(t, s.Connect(), 1)
		b := newPeerOver(t, s.Connect(), 2, func(kv kvstore.KV) kvstore.KV {
			return &lagging{KV: kv, seen: make(map[string]kvstore.Record)}
		})
		r, err := a.RLock(t.Context(), "x")
		require.NoError(t, err)
		grants := make(chan grant, 1)
		b.write("writer", grants)
		nobody(t, grants, "beside a reader")
		left := time.Now()
		kit.Unlock(t, r)
		g := <-grants
		require.NoError(t, g.err)
		require.Less(t, g.at.Sub(left), 100*time.Millisecond)
		kit.Unlock(t, g.l)
	})
}
