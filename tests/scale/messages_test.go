package scale_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/rwlock"
	"github.com/natslock/locks/semaphore"
	"github.com/natslock/locks/testutil"
)

// TestMessagesUncontended checks that taking a free lock sends a single message, a publish, and
// that releasing it sends one more.
func TestMessagesUncontended(t *testing.T) {
	type acquire func(ctx context.Context, name string, opts ...natslock.LockOption) (*natslock.Lock, error)
	s := testutil.RunServer(t)
	p := kit.NewTap(t, s.Connect(), ">")
	for name, pick := range map[string]func(*natslock.Client) acquire{
		"Lock":    func(c *natslock.Client) acquire { return c.Lock },
		"TryLock": func(c *natslock.Client) acquire { return c.TryLock },
	} {
		t.Run(name, func(t *testing.T) {
			c := kit.Join(t, s)
			take := pick(c.Client)
			out := c.NC.Stats().OutMsgs
			sent := func() int {
				n := c.NC.Stats().OutMsgs
				defer func() { out = n }()
				return int(n - out)
			}
			for i := range 5 { // each lock is new to the bucket
				l, err := take(t.Context(), fmt.Sprint(name, i))
				require.NoError(t, err)
				require.Equal(t, 1, sent())
				msgs := p.Take(t, c.NC)
				require.Len(t, msgs, 1)
				require.Equal(t, kit.Subjects+"lock."+l.Name(), msgs[0].Subject)
				require.Equal(t, "0", msgs[0].Header.Get("Nats-Expected-Last-Subject-Sequence"))
				require.Equal(t, "15s", msgs[0].Header.Get("Nats-TTL"))
				require.Empty(t, msgs[0].Header.Get("Nats-Msg-Id"))
				require.Empty(t, msgs[0].Header.Get("Nats-Rollup"))

				kit.Unlock(t, l)
				require.Equal(t, 1, sent())
				msgs = p.Take(t, c.NC)
				require.Len(t, msgs, 1)
				require.Equal(t, kit.Subjects+"lock."+l.Name(), msgs[0].Subject)
				require.Equal(t, fmt.Sprint(record.TokenRevision(l.Token())), msgs[0].Header.Get("Nats-Expected-Last-Subject-Sequence"))
				require.Equal(t, "DEL", msgs[0].Header.Get("KV-Operation"))
				require.Equal(t, "1s", msgs[0].Header.Get("Nats-TTL"))
			}
		})
	}
}

// TestMessagesHotPath checks that a client that repeatedly takes a lock at its own tombstone reads
// the queue only once per 100 ms. In a bubble the work takes no time, so the number of reads is
// exact.
func TestMessagesHotPath(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		kit.Unlock(t, kit.Must(t, c.Lock, "l"))
		kit.Unlock(t, kit.Must(t, c.Lock, "l"))
		for range 3 {
			out := c.NC.Stats().OutMsgs
			for range 100 {
				kit.Unlock(t, kit.Must(t, c.Lock, "l"))
			}
			require.EqualValues(t, 200, c.NC.Stats().OutMsgs-out)
			time.Sleep(150 * time.Millisecond)
			out = c.NC.Stats().OutMsgs
			kit.Unlock(t, kit.Must(t, c.Lock, "l"))
			require.EqualValues(t, 3, c.NC.Stats().OutMsgs-out, "one look")
		}
		// Once its tombstone has expired, the lock is like a new one.
		time.Sleep(2 * time.Second)
		out := c.NC.Stats().OutMsgs
		kit.Unlock(t, kit.Must(t, c.Lock, "l"))
		require.EqualValues(t, 2, c.NC.Stats().OutMsgs-out)
	})
}

// TestMessagesHeld checks that a held lock sends one message per renewal, due every third of the
// TTL, and receives two: the acknowledgment and the client's own watch notification.
func TestMessagesHeld(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		l := kit.Must(t, c.Lock, "l")
		time.Sleep(20 * time.Second) // long enough for the watch to begin
		stats, renewed := c.NC.Stats(), c.Stats().Renewed
		time.Sleep(2 * time.Minute)
		now, n := c.NC.Stats(), c.Stats().Renewed-renewed
		require.InDelta(t, 24, n, 1, "12 in a minute")
		require.Equal(t, n, now.OutMsgs-stats.OutMsgs)
		require.Equal(t, 2*n, now.InMsgs-stats.InMsgs)
		kit.Unlock(t, l)
	})
}

// TestMessagesTryLockBusy checks that TryLock on a held lock writes nothing to the bucket and does
// not wait.
func TestMessagesTryLockBusy(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		holder, c := kit.Join(t, s), kit.Join(t, s)
		r := kit.NewRaw(t, s.Connect())
		l := kit.Must(t, holder.Lock, "l")
		p := kit.NewTap(t, s.Connect(), ">")
		last := r.Stream().CachedInfo().State.LastSeq
		begun := time.Now()
		for range 10 {
			_, err := c.TryLock(t.Context(), "l")
			require.ErrorIs(t, err, natslock.ErrLocked)
		}
		require.Zero(t, time.Since(begun))
		require.Len(t, p.Take(t, c.NC), 10, "one attempt each")
		require.Equal(t, last, r.Stream().CachedInfo().State.LastSeq, "nothing was stored")
		require.Zero(t, c.NC.NumSubscriptions()-holder.NC.NumSubscriptions())
		kit.Unlock(t, l)
		kept, err := c.TryLock(t.Context(), "l")
		require.NoError(t, err, "at the tombstone of another")
		kit.Keep(t, kept)
	})
}

// TestMessagesTryLockAlternating checks that TryLock gets a free lock even if other clients have
// held it since this client left its own tombstone.
func TestMessagesTryLockAlternating(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		members := []*kit.Member{kit.Join(t, s), kit.Join(t, s), kit.Join(t, s)}
		for i := range 60 {
			m := members[i%3]
			l, err := m.TryLock(t.Context(), "l")
			require.NoErrorf(t, err, "%d", i)
			kit.Unlock(t, l)
			time.Sleep(time.Duration(i) * 7 * time.Millisecond)
		}
	})
}

// TestMessagesWaiting checks that while nothing happens a waiter sends a renewal and a read every
// 5 s, 24 messages a minute, wherever it stands in the queue. A holder sends only its renewals.
func TestMessagesWaiting(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		holder, c := kit.Join(t, s, natslock.WithTTL(time.Hour)), kit.Join(t, s)
		kit.Must(t, holder.Lock, "l")
		const n = 10
		var waiters []*kit.Member
		for range n {
			w := kit.Join(t, s)
			w.Await(t, "l")
			waiters = append(waiters, w)
		}
		time.Sleep(10 * time.Second)
		p := kit.NewTap(t, s.Connect(), ">")
		var sent []uint64
		for _, w := range waiters {
			sent = append(sent, w.NC.Stats().OutMsgs)
		}
		time.Sleep(10 * time.Minute)
		require.InDelta(t, 12*10*n, len(p.Take(t, c.NC)), 40, "renewals of places")
		for i, w := range waiters {
			require.LessOrEqual(t, int(w.NC.Stats().OutMsgs-sent[i]), 24*10, "waiter %d", i)
		}
		other := kit.Must(t, c.Lock, "held")
		time.Sleep(time.Minute)
		out := c.NC.Stats().OutMsgs
		time.Sleep(10 * time.Minute)
		require.InDelta(t, 12*10, int(c.NC.Stats().OutMsgs-out), 3, "a holder")
		kit.Unlock(t, other)
		synctest.Wait()
	})
}

// TestMessagesLongQueue checks that a client that joins a long queue for the first time reads only
// the end of the queue.
func TestMessagesLongQueue(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		holder, c := kit.Join(t, s), kit.Join(t, s)
		l := kit.Must(t, holder.Lock, "l")
		for _, w := range kit.Crowd(t, s, 150) {
			w.Await(t, "l")
		}
		in := c.NC.Stats().InMsgs
		c.Await(t, "l")
		synctest.Wait()
		require.Less(t, int(c.NC.Stats().InMsgs-in), 20)
		kit.Unlock(t, l)
	})
}

// TestMessagesCrowd checks that clients that arrive simultaneously read what they need instead of
// the whole queue, so the messages per client do not grow with the number of clients. The same goes
// for semaphores and for readers and writers.
func TestMessagesCrowd(t *testing.T) {
	for name, takes := range map[string]func(c *natslock.Client, i int) (*natslock.Lock, error){
		"mutex": func(c *natslock.Client, i int) (*natslock.Lock, error) { return c.Lock(context.Background(), "l") },
		"semaphore": func(c *natslock.Client, i int) (*natslock.Lock, error) {
			return semaphore.New(c, 5).Acquire(context.Background(), "l")
		},
		"readers and writers": func(c *natslock.Client, i int) (*natslock.Lock, error) {
			if i%10 == 0 {
				return rwlock.New(c).Lock(context.Background(), "l")
			}
			return rwlock.New(c).RLock(context.Background(), "l")
		},
	} {
		t.Run(name, func(t *testing.T) {
			perClient := map[int]float64{}
			for _, n := range []int{50, 200} {
				testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
					members := kit.Crowd(t, s, n)
					var before uint64
					for _, m := range members {
						before += m.NC.Stats().InMsgs
					}
					var wg sync.WaitGroup
					for i, m := range members {
						wg.Go(func() {
							l, err := takes(m.Client, i)
							if assert.NoError(t, err) {
								time.Sleep(time.Millisecond)
								assert.NoError(t, l.Unlock(context.Background()))
							}
						})
					}
					wg.Wait()
					in := -before
					for _, m := range members {
						in += m.NC.Stats().InMsgs
					}
					perClient[n] = float64(in) / float64(n)
				})
			}
			t.Logf("messages for each client: %.1f of 50, %.1f of 200", perClient[50], perClient[200])
			require.Less(t, perClient[200], 2*perClient[50])
			require.Less(t, perClient[200], 250.0)
		})
	}
}

// TestMessagesGivingUp checks that an acquire that gave up or was refused leaves no subscription
// behind once its attempts have been answered.
func TestMessagesGivingUp(t *testing.T) {
	s := testutil.RunServer(t)
	holder, c := kit.Join(t, s), kit.Join(t, s)
	holds := kit.Must(t, holder.Lock, "l")
	kit.Unlock(t, kit.Must(t, c.Lock, "other")) // sets up the client's permanent subscriptions
	before := c.NC.NumSubscriptions()
	var wg sync.WaitGroup
	var refused, gaveUp atomic.Int64
	for i := range 8 {
		wg.Go(func() {
			for j := range 50 {
				// The timeouts range from before the first reply to well into the queue.
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(j%10)*time.Duration(i+1)*50*time.Microsecond)
				acquire := c.Lock
				if j%2 == 0 {
					acquire = c.TryLock
				}
				_, err := acquire(ctx, "l")
				cancel()
				if errors.Is(err, natslock.ErrLocked) {
					refused.Add(1)
				} else {
					gaveUp.Add(1)
				}
				assert.Error(t, err)
			}
		})
	}
	wg.Wait()
	t.Logf("%d were refused, %d gave up", refused.Load(), gaveUp.Load())
	require.Positive(t, gaveUp.Load())
	kit.Eventually(t, "no subscription is left", func() bool { return c.NC.NumSubscriptions() <= before })
	require.Zero(t, c.Stats().Waiting)
	kit.Unlock(t, holds)
}

// TestMessagesGivingUpUnanswered checks that an acquire whose attempt got no reply leaves no
// subscription either, once its record has been found and deleted or a later tombstone keeps the
// attempt from being applied.
func TestMessagesGivingUpUnanswered(t *testing.T) {
	for name, tc := range map[string]struct {
		stage string
		fate  faults.Fate
	}{
		"applied":       {"wait take", faults.LoseAnswer},
		"never applied": {"lock take", faults.Drop}, // a claim at the tombstone that the client itself left
	} {
		t.Run(name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				c, f := kit.JoinFaulty(t, s)
				other := kit.Join(t, s)
				l := kit.Must(t, c.Lock, "l")
				before := c.NC.NumSubscriptions()
				kit.Unlock(t, l)
				if tc.stage == "wait take" {
					kit.Must(t, other.Lock, "l")
				}
				f.OnSend(kit.At(tc.stage, tc.fate))
				ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				defer cancel()
				_, err := c.Lock(ctx, "l")
				require.ErrorIs(t, err, natslock.ErrTimeout)
				f.OnSend(nil)
				time.Sleep(2 * time.Second)
				require.LessOrEqual(t, c.NC.NumSubscriptions(), before)
			})
		})
	}
}

// TestMessagesCounters has 50 clients, each on its own connection, increment counters under five
// locks.
func TestMessagesCounters(t *testing.T) {
	s := testutil.RunServer(t)
	const clients, names, rounds = 50, 5, 20
	var (
		counters [names]int // guarded only by the locks, as the race detector checks
		tokens   [names]uint64
		wg       sync.WaitGroup
		conns    []*nats.Conn
	)
	for i := range clients {
		nc := s.Connect()
		conns = append(conns, nc)
		c := kit.NewClient(t, nc, natslock.WithTTL(time.Minute))
		wg.Go(func() {
			for j := range rounds {
				k := (i + j) % names
				err := c.Do(context.Background(), fmt.Sprint("counter.", k), func(_ context.Context, l *natslock.Lock) error {
					counters[k]++
					if l.Token() <= tokens[k] {
						t.Errorf("token %d after %d", l.Token(), tokens[k])
					}
					tokens[k] = l.Token()
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	kit.ReceiveIn(t, 2*kit.Patience, done, "all to count")
	for k := range names {
		require.Equal(t, clients*rounds/names, counters[k])
	}
	var sent uint64
	for _, nc := range conns {
		sent += nc.Stats().OutMsgs
	}
	t.Logf("%.1f messages sent per acquire and release", float64(sent)/(clients*rounds))
	require.Less(t, sent, uint64(20*clients*rounds))
}

// TestMessagesContended checks that contenders with empty critical sections do not pay for the
// clients that held the lock within the last second: the queue has keys for waiters, not for former
// holders.
func TestMessagesContended(t *testing.T) {
	s := testutil.RunServer(t)
	const clients, rounds = 4, 100
	messages := func(members []*kit.Member) (n uint64) {
		for _, c := range members {
			st := c.NC.Stats()
			n += st.InMsgs + st.OutMsgs
		}
		return n
	}
	var members []*kit.Member
	var wg sync.WaitGroup
	for range clients {
		members = append(members, kit.Join(t, s))
	}
	before := messages(members)
	for _, c := range members {
		wg.Go(func() {
			for range rounds {
				l, err := c.Lock(t.Context(), "l")
				if !assert.NoError(t, err) || !assert.NoError(t, l.Unlock(t.Context())) {
					return
				}
			}
		})
	}
	wg.Wait()
	each := float64(messages(members)-before) / (clients * rounds)
	t.Logf("%.0f messages for each grant", each)
	require.Less(t, each, 60.0)
	r := kit.NewRaw(t, s.Connect())
	info, err := r.Stream().Info(t.Context(), jetstream.WithSubjectFilter("$KV.natslock.wait.l.*"))
	require.NoError(t, err)
	require.LessOrEqual(t, len(info.State.Subjects), 2*clients, "an answer may be on its way")
}

// TestMessagesAfterAnother checks that taking a lock released by another client within the last
// second costs, besides the attempts, one read of the lock and its queue.
func TestMessagesAfterAnother(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b, c := kit.Join(t, s), kit.Join(t, s), kit.Join(t, s)
		sent := func(m *kit.Member, take func() error) int {
			t.Helper()
			before := m.NC.Stats().OutMsgs
			if err := take(); err != nil {
				require.ErrorIs(t, err, natslock.ErrLocked)
			}
			return int(m.NC.Stats().OutMsgs - before)
		}
		var held *natslock.Lock
		lock := func(m *kit.Member) func() error {
			return func() (err error) { held, err = m.Lock(t.Context(), "l"); return err }
		}
		try := func(m *kit.Member) func() error {
			return func() error {
				l, err := m.TryLock(t.Context(), "l")
				if err == nil {
					held = l
				}
				return err
			}
		}
		require.Equal(t, 1, sent(a, lock(a)))
		kit.Unlock(t, held)
		require.Equal(t, 3, sent(b, lock(b)), "a newcomer: refused, a look, granted")
		kit.Unlock(t, held)
		for range 3 {
			time.Sleep(150 * time.Millisecond)
			require.Equal(t, 2, sent(a, lock(a)), "it has had it itself: a look, granted")
			kit.Unlock(t, held)
			time.Sleep(150 * time.Millisecond)
			require.Equal(t, 2, sent(b, try(b)))
			require.Equal(t, 2, sent(c, try(c)), "busy: refused, a look")
			require.Equal(t, 1, sent(a, try(a)), "busy, and it has had it: a look")
			kit.Unlock(t, held)
		}
	})
}
