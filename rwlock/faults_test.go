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

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/history"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/rwlock"
	"github.com/natslock/locks/testutil"
)

// pace checks that nobody is kept out for much longer than a lease while nobody is inside. It
// measures from the last release or grant to the next grant.
type pace struct {
	mu    sync.Mutex
	last  time.Time // of a release or a grant; zero until the first release
	worst time.Duration
	who   string
}

func (p *pace) released() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = time.Now()
}

func (p *pace) granted(who string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last.IsZero() {
		return
	}
	if d := time.Since(p.last); d > p.worst {
		p.worst, p.who = d, who
	}
	p.last = time.Now()
}

// TestFaultAtEveryStep repeats one scenario with a fault in a different write each time. A reads
// three times, the second time within the first lease and the third time with a lease of its own. W
// takes the gate and drains. B reads and V writes, both from the queue. A leaves after some
// renewals, W and B after a few more. Whatever happens, no writer is inside together with another
// client, every client gets in, and nothing is left at the end.
func TestFaultAtEveryStep(t *testing.T) { faultAtSteps(t, kit.WithMemoryBucket) }

// TestFaultAtEveryStepServer runs the same scenario on a server.
func TestFaultAtEveryStepServer(t *testing.T) {
	tier.Proof(t)
	faultAtSteps(t, kit.WithServerBucket)
}

func faultAtSteps(t *testing.T, in func(*testing.T, func(*testing.T, kit.FaultyBucket))) {
	for _, step := range []struct {
		who   string
		stage string
		first int // which writes of the stage are faulty
		last  int
	}{
		{"A", "read take", 1, 1},
		{"A", "read take", 2, 2},
		{"A", "read take", 1, 4},
		{"A", "read renew", 1, 1},
		{"A", "read renew", 3, 6},
		{"A", "read renew", 1, 1000},
		{"A", "read delete", 1, 1},
		{"A", "read delete", 2, 2},
		{"A", "read delete", 1, 4},
		{"W", "rw take", 1, 1},
		{"W", "rw take", 1, 3},
		{"W", "rw renew", 1, 1},
		{"W", "rw renew", 3, 5},
		{"W", "rw renew", 1, 1000},
		{"W", "rw delete", 1, 1},
		{"W", "rw delete", 1, 3},
		{"B", "rwait take", 1, 1},
		{"B", "rwait take", 1, 3},
		{"B", "rwait renew", 1, 2},
		{"B", "rwait renew", 1, 1000},
		{"B", "rwait delete", 1, 1},
		{"B", "read take", 1, 1},
		{"B", "read take", 2, 3},
		{"B", "read delete", 1, 1},
		{"V", "rwait take", 1, 1},
		{"V", "rwait take", 1, 3},
		{"V", "rwait renew", 1, 1000},
		{"V", "rwait delete", 1, 1},
		{"V", "rw take", 1, 1},
		{"V", "rw take", 2, 3},
	} {
		t.Run(fmt.Sprintf("%s %s %d-%d", step.who, step.stage, step.first, step.last), func(t *testing.T) {
			in(t, func(t *testing.T, bucket kit.FaultyBucket) {
				u := history.NewRecorder()
				bucket.Tap(t, u)
				var all sync.WaitGroup
				for _, f := range kit.Fates { // each with its own clients and lock
					peers := map[string]*peer{}
					for i, who := range []string{"A", "W", "B", "V"} {
						c, f := bucket.Client(t, uint64(i), natslock.WithTTL(faultTTL), natslock.WithOwner(who))
						peers[who] = &peer{RWLock: rwlock.New(c), c: c, f: f}
					}
					target := peers[step.who].f
					target.OnSend(kit.Between(step.stage, step.first, step.last, f.Fate))
					all.Go(func() {
						faultStory(t, f.Name, peers)
						n := target.Counts()
						assert.Positive(t, n.Sends-n.Passed, "%s was never injected", f.Name)
					})
				}
				all.Wait()
				u.Check(t)
				assert.Empty(t, bucket.KeysLeft(t), "left in the bucket")
			})
		})
	}
}

const faultTTL = 5 * time.Second

func faultStory(t *testing.T, name string, peers map[string]*peer) {
	u, p := history.NewRecorder(), &pace{}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	letGo := func(who string, l *natslock.Lock) {
		lost := l.Err() != nil
		p.released()
		switch err := l.Unlock(context.Background()); {
		case lost:
			assert.ErrorIs(t, err, natslock.ErrLost, "%s: %s", name, who)
		case err != nil:
			// The lock was held to the end, but the server did not confirm the release.
			assert.ErrorIs(t, err, natslock.ErrUnavailable, "%s: %s", name, who)
		}
	}
	var wg sync.WaitGroup
	begin := func(who string, writes bool, hold time.Duration) {
		wg.Go(func() {
			take := peers[who].RLock
			if writes {
				take = peers[who].Lock
			}
			l, err := take(ctx, name, natslock.Detached())
			if !assert.NoError(t, err, "%s: %s", name, who) {
				return
			}
			u.Granted(admin.KindRW, modeOf(writes), l)
			p.granted(who)
			select {
			case <-time.After(hold):
			case <-l.Context().Done():
			}
			letGo(who, l)
		})
	}
	var own []*natslock.Lock
	for _, opts := range [][]natslock.LockOption{nil, nil, {natslock.TTL(faultTTL - time.Second)}} {
		l, err := peers["A"].RLock(ctx, name, opts...)
		if !assert.NoError(t, err, "%s: A", name) {
			return
		}
		u.Granted(admin.KindRW, admin.Shared, l)
		own = append(own, l)
	}
	time.Sleep(time.Second)
	begin("W", true, 6*time.Second)
	time.Sleep(time.Second)
	begin("B", false, 2*time.Second)
	time.Sleep(time.Second)
	begin("V", true, 2*time.Second)
	time.Sleep(8 * time.Second)
	for _, l := range own {
		letGo("A", l)
	}
	wg.Wait()
	assert.Less(t, p.worst, faultTTL+1500*time.Millisecond, "%s: %s waited longer than a lease and a bit", name, p.who)

	time.Sleep(2 * time.Minute) // until late writes have landed and been deleted
	for who, p := range peers {
		l, err := p.TryLock(t.Context(), name)
		if !assert.NoError(t, err, "%s: %s is blocked by an orphan", name, who) {
			continue
		}
		u.Granted(admin.KindRW, admin.Exclusive, l)
		assert.NoError(t, l.Unlock(context.Background()))
		l, err = p.TryRLock(t.Context(), name)
		if !assert.NoError(t, err, "%s: %s is blocked by an orphan", name, who) {
			continue
		}
		u.Granted(admin.KindRW, admin.Shared, l)
		assert.NoError(t, l.Unlock(context.Background()))
		assert.NoError(t, p.c.Close(t.Context()))
	}
	assert.Empty(t, history.Check(u.History(), history.Options{}), name)
}

// TestFailedReadIsRepeatedSoon fails the read that a waiter does after being notified of a release.
// No second notification comes, so the waiter must read again before its timers fire.
func TestFailedReadIsRepeatedSoon(t *testing.T) {
	for _, holds := range []admin.Mode{admin.Shared, admin.Exclusive} {
		t.Run(holds.String(), func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				holder, waiter := newPeer(t, s.Connect(), 1), newPeer(t, s.Connect(), 2)
				take := holder.RLock
				if holds == admin.Exclusive {
					take = holder.Lock
				}
				h, err := take(t.Context(), "x")
				require.NoError(t, err)
				grants := make(chan grant, 1)
				waiter.write("w", grants)
				time.Sleep(7 * time.Second) // the early reads are over, and no late one is due yet
				synctest.Wait()
				waiter.f.FailReads(func(op faults.ReadOp, _ string) error {
					if waiter.f.Counts().ReadsFailed == 0 {
						return kvstore.ErrUnavailable
					}
					return nil
				})
				begun := time.Now()
				kit.Unlock(t, h)
				g := <-grants
				require.NoError(t, g.err)
				require.Equal(t, 1, waiter.f.Counts().ReadsFailed)
				require.Less(t, time.Since(begun), 100*time.Millisecond)
				kit.Unlock(t, g.l)
			})
		})
	}
}

// TestRepeatedJoin leaves a join unanswered, so the client repeats it under a new ID. The record of
// the first join may land at any time. It must not affect the reader that was granted, or stay and
// hold up a writer for an hour.
func TestRepeatedJoin(t *testing.T) {
	for _, f := range []struct {
		name string
		fate faults.Fate
	}{
		{"applied at once", faults.LoseAnswer},
		{"applied when the second is in", faults.Delay(3 * time.Second).Silent()},
		{"applied and answered when the second is in", faults.Delay(3 * time.Second)},
	} {
		t.Run(f.name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				a, b := newPeer(t, s.Connect(), 1, natslock.WithTTL(time.Hour)), newPeer(t, s.Connect(), 2, natslock.WithTTL(time.Hour))
				u := history.NewRecorder()
				u.Tap(t, s.Connect())
				a.f.OnSend(func(n int, w kvstore.Write) faults.Fate {
					if n == 1 {
						return f.fate
					}
					return faults.Pass
				})
				r, err := a.RLock(t.Context(), "x")
				require.NoError(t, err)
				time.Sleep(4 * time.Second)
				require.Len(t, kit.KeysLeft(t, s.Connect()), 1, "the first join's record stays")
				require.Equal(t, 2, u.History().Counts()["joins"], "two ids")
				require.NoError(t, r.Extend(t.Context(), 0), "the first join's record is in its place")
				grants := make(chan grant, 1)
				b.write("w", grants)
				nobody(t, grants, "over a reader")
				kit.Unlock(t, r)
				begun := time.Now()
				g := <-grants
				require.NoError(t, g.err)
				require.Less(t, time.Since(begun), 50*time.Millisecond)
				kit.Unlock(t, g.l)
			})
		})
	}
}

// TestRepeatedJoinUnread leaves a join unanswered whose record the client cannot read at first, as
// if the server were away. The client must read again and delete the record.
func TestRepeatedJoinUnread(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a := newPeer(t, s.Connect(), 1, natslock.WithTTL(time.Hour))
		a.f.OnSend(func(n int, _ kvstore.Write) faults.Fate {
			if n == 1 {
				return faults.LoseAnswer
			}
			return faults.Pass
		})
		begun := time.Now()
		var unread atomic.Int64
		a.f.FailReads(func(op faults.ReadOp, _ string) error {
			if op == faults.ReadGet && time.Since(begun) < 5*time.Second {
				unread.Add(1)
				return kvstore.ErrUnavailable
			}
			return nil
		})
		r, err := a.RLock(t.Context(), "x")
		require.NoError(t, err)
		time.Sleep(10 * time.Second)
		require.Positive(t, unread.Load())
		require.Len(t, kit.KeysLeft(t, s.Connect()), 1, "the first join's record stays")
		kit.Unlock(t, r)
		require.Empty(t, kit.KeysLeft(t, s.Connect()))
	})
}

// TestDeposedLeaderRefuses covers a server that was cut off and, when it returns, may briefly
// refuse writes because by its own clock it has removed records that their holders have renewed
// elsewhere. A "not found" from a server that is behind means neither that a lease is lost nor that
// a release has failed.
func TestDeposedLeaderRefuses(t *testing.T) {
	for _, writes := range []bool{false, true} {
		t.Run(fmt.Sprintf("writes %v", writes), func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				behind := &liar{get: func(_ string, min uint64) error {
					if min == 0 {
						return kvstore.ErrNotFound
					}
					return nil
				}}
				a := liedTo(t, s, behind, natslock.WithTTL(6*time.Second))
				take := a.RLock
				if writes {
					take = a.Lock
				}
				l, err := take(t.Context(), "x")
				require.NoError(t, err)
				refused := map[string]int{}
				a.f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
					_, what, _ := strings.Cut(kit.Stage(w), " ")
					if refused[what]++; refused[what] == 1 {
						return faults.Refuse(&kvstore.ConflictError{Key: w.Key, Expected: w.Expect})
					}
					return faults.Pass
				})
				time.Sleep(20 * time.Second)
				require.NoError(t, l.Err())
				require.NoError(t, l.Unlock(t.Context()))
				require.Empty(t, kit.KeysLeft(t, s.Connect()))
				require.Greater(t, refused["renew"], 1)
				require.Equal(t, 2, refused["delete"])

				// If the record really is gone, the lease is lost.
				a.f.OnSend(nil)
				l, err = take(t.Context(), "x")
				require.NoError(t, err)
				store := kit.OpenStore(t, s.Connect())
				list, err := store.List(t.Context(), ">", 0)
				require.NoError(t, err)
				require.Len(t, list.Records, 1)
				_, err = store.Delete(t.Context(), list.Records[0].Key, list.Records[0].Revision)
				require.NoError(t, err)
				gone := time.Now()
				<-l.Context().Done()
				require.ErrorIs(t, context.Cause(l.Context()), natslock.ErrLost)
				require.Less(t, time.Since(gone), 2500*time.Millisecond)
				require.ErrorIs(t, l.Unlock(t.Context()), natslock.ErrLost)
			})
		})
	}
}
