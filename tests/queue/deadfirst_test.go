package queue_test

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
	"github.com/natslock/locks/rwlock"
	"github.com/natslock/locks/semaphore"
	"github.com/natslock/locks/testutil"
)

// onePause limits how long one dead waiter at the head of a queue may delay a free lock.
const onePause = 1500 * time.Millisecond

// sort is a kind of lock together with the ways to take it.
type sort struct {
	name string
	all  int // maximum number of simultaneous holders
	take func(ctx context.Context, c *natslock.Client) (*natslock.Lock, error)
	dead func(ctx context.Context, c *natslock.Client) (*natslock.Lock, error) // how the clients that will die take it
}

func sorts() []sort {
	mutex := func(ctx context.Context, c *natslock.Client) (*natslock.Lock, error) { return c.Lock(ctx, "l") }
	write := func(ctx context.Context, c *natslock.Client) (*natslock.Lock, error) {
		return rwlock.New(c).Lock(ctx, "l")
	}
	read := func(ctx context.Context, c *natslock.Client) (*natslock.Lock, error) {
		return rwlock.New(c).RLock(ctx, "l")
	}
	three := func(ctx context.Context, c *natslock.Client) (*natslock.Lock, error) {
		return semaphore.New(c, 3).Acquire(ctx, "l")
	}
	return []sort{
		{"mutex", 1, mutex, mutex},
		{"writers behind writers", 1, write, write},
		{"writers behind readers", 1, write, read},
		{"readers behind writers", 100, read, write},
		{"semaphore", 3, three, three},
	}
}

// hold takes the whole lock, so that later clients queue.
func (x sort) hold(t *testing.T, c *natslock.Client) (release func()) {
	t.Helper()
	take, n := x.dead, 1
	if x.all == 3 {
		n = 3
	}
	if x.all == 1 {
		take = x.take
	}
	var held []*natslock.Lock
	for range n {
		l, err := take(t.Context(), c)
		require.NoError(t, err)
		held = append(held, l)
	}
	return func() {
		for _, l := range held {
			require.NoError(t, l.Unlock(context.Background()))
		}
	}
}

// dies has a client queue for the lock and then cuts its connection.
func (x sort) dies(t *testing.T, bucket *kvstore.Memory) {
	t.Helper()
	m, line := kit.JoinInMemory(t, bucket)
	mark := m.Events.Len()
	go func() {
		l, err := x.dead(context.WithoutCancel(t.Context()), m.Client)
		if err == nil {
			_ = l.Unlock(context.Background())
		}
	}()
	m.Events.WaitFrom(t, mark, admin.EventQueued, "l")
	time.Sleep(time.Second)
	line.Cut()
}

// cycles counts the grants of clients that repeatedly hold the lock for 10 ms, and records the
// pauses in which no client got it.
type cycles struct {
	mu     sync.Mutex
	grants int
	last   time.Time
	pauses []time.Duration // those longer than 100 ms
}

func (x *cycles) count() {
	x.mu.Lock()
	defer x.mu.Unlock()
	now := time.Now()
	if d := now.Sub(x.last); d > 100*time.Millisecond {
		x.pauses = append(x.pauses, d)
	}
	x.grants++
	x.last = now
}

// run keeps clients taking the lock for d or, if trouble is not nil, until trouble returns.
func (x sort) run(t *testing.T, bucket *kvstore.Memory, clients int, d time.Duration, begin, trouble func()) *cycles {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	seen := &cycles{}
	var wg sync.WaitGroup
	for range clients {
		m, _ := kit.JoinInMemory(t, bucket)
		wg.Go(func() {
			for ctx.Err() == nil {
				l, err := x.take(ctx, m.Client)
				if err != nil {
					if ctx.Err() == nil {
						t.Error(err)
					}
					return
				}
				seen.count()
				time.Sleep(10 * time.Millisecond)
				if err := l.Unlock(context.Background()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	synctest.Wait()
	time.Sleep(100 * time.Millisecond)
	seen.mu.Lock()
	seen.last = time.Now()
	seen.mu.Unlock()
	begin()
	if trouble == nil {
		time.Sleep(d)
	} else {
		trouble()
	}
	cancel()
	wg.Wait()
	return seen
}

func TestDeadFirst(t *testing.T) {
	for _, x := range sorts() {
		for _, dead := range []int{1, 5} {
			t.Run(fmt.Sprint(x.name, " ", dead), func(t *testing.T) {
				t.Parallel()
				kit.InMemory(t, func(t *testing.T, bucket *kvstore.Memory) {
					holder, _ := kit.JoinInMemory(t, bucket)
					release := x.hold(t, holder.Client)
					for range dead {
						x.dies(t, bucket)
					}
					span := time.Duration(2*dead+3) * time.Second
					seen := x.run(t, bucket, 3, span, release, nil)
					t.Logf("%d grants in %v, pauses %v", seen.grants, span, seen.pauses)
					rate := 100 // grants per second without dead waiters
					if x.all > 1 {
						rate = 300
					}
					require.GreaterOrEqual(t, float64(seen.grants), 0.95*float64(rate)*(span.Seconds()-onePause.Seconds()*float64(dead)))
					require.LessOrEqual(t, len(seen.pauses), dead)
					for _, p := range seen.pauses {
						require.LessOrEqual(t, p, onePause)
					}
				})
			})
		}
	}
}

// TestDeadFirstWithTheirHolder has the holder die together with all waiters but the last. The last
// one knows when the lease ends and looks at the lock then, although no notification comes and its
// predecessor is not yet overdue.
func TestDeadFirstWithTheirHolder(t *testing.T) {
	for _, x := range sorts() {
		for _, dead := range []int{1, 3, 17} {
			t.Run(fmt.Sprint(x.name, " ", dead), func(t *testing.T) {
				t.Parallel()
				kit.InMemory(t, func(t *testing.T, bucket *kvstore.Memory) {
					var ends time.Time // end of the lease
					tap := bucket.Open()
					t.Cleanup(tap.Close)
					watch, err := tap.Watch(">", func(ev kvstore.Event) { ends = ev.Record.Time.Add(ev.Record.TTL) })
					require.NoError(t, err)
					holder, line := kit.JoinInMemory(t, bucket)
					x.hold(t, holder.Client)
					lines := []*kit.Line{line}
					wait := func(take func(context.Context, *natslock.Client) (*natslock.Lock, error), m *kit.Member) {
						go func() {
							if l, err := take(context.WithoutCancel(t.Context()), m.Client); err == nil {
								_ = l.Unlock(context.Background())
							}
						}()
						m.Events.Wait(t, admin.EventQueued, "l")
						time.Sleep(50 * time.Millisecond)
					}
					time.Sleep(3 * time.Second) // so that the places outlive the lease
					watch.Stop()
					for range dead {
						m, line := kit.JoinInMemory(t, bucket)
						lines = append(lines, line)
						wait(x.dead, m)
					}
					m, _ := kit.JoinInMemory(t, bucket)
					wait(x.take, m)
					for _, line := range lines {
						line.Cut()
					}
					m.Events.Wait(t, admin.EventGranted, "l")
					late := time.Since(ends)
					t.Log("free for", late)
					require.Positive(t, late)
					require.LessOrEqual(t, late, onePause+200*time.Millisecond, "the pause, and its place's rank")
					synctest.Wait()
				})
			})
		}
	}
}

// TestDeadFirstOfThoseThatWaitLong checks that the pause begins when the lock becomes free, not at
// a waiter's next timed read: after a long wait the timers are seconds apart. A waiter behind
// several dead ones watches the lock as soon as its predecessor has missed a renewal.
func TestDeadFirstOfThoseThatWaitLong(t *testing.T) {
	for _, x := range sorts() {
		for _, dead := range []int{1, 3} {
			t.Run(fmt.Sprint(x.name, " ", dead), func(t *testing.T) {
				t.Parallel()
				kit.InMemory(t, func(t *testing.T, bucket *kvstore.Memory) {
					holder, _ := kit.JoinInMemory(t, bucket)
					release := x.hold(t, holder.Client)
					for range dead {
						x.dies(t, bucket)
					}
					m, _ := kit.JoinInMemory(t, bucket)
					granted := make(chan time.Time, 1)
					go func() {
						l, err := x.take(t.Context(), m.Client)
						granted <- time.Now()
						if err != nil {
							t.Error(err)
							return
						}
						_ = l.Unlock(context.Background())
					}()
					m.Events.Wait(t, admin.EventQueued, "l")
					time.Sleep(7 * time.Second) // a place lives for 15 s
					free := time.Now()
					release()
					require.LessOrEqual(t, kit.Receive(t, granted, "a grant").Sub(free), onePause)
					synctest.Wait()
				})
			})
		}
	}
}

// TestDeadFirstOfCrowd kills the head of a crowd that arrived all at once. The waiters behind it
// know only the places directly ahead of their own, so the next one looks for the head only after
// its timer has shown the lock free.
func TestDeadFirstOfCrowd(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		holder := kit.QuietHolder(t, s)
		const n = 60
		granted := make(chan int, n)
		byOwner := map[string]*kit.Member{}
		var wg sync.WaitGroup
		for i := range n {
			owner := fmt.Sprint("pod-", i)
			m := kit.Join(t, s, natslock.WithOwner(owner))
			byOwner[owner] = m
			wg.Go(func() {
				l, err := m.Lock(t.Context(), "l", natslock.MaxWait(10*time.Minute))
				if err == nil {
					granted <- i
					_ = l.Unlock(context.Background())
				}
			})
		}
		synctest.Wait()
		info, err := admin.New(kit.Join(t, s).Client).Inspect(t.Context(), admin.KindMutex, "l")
		require.NoError(t, err)
		require.Len(t, info.Queue, n)
		dead := byOwner[info.Queue[0].Owner]
		dead.Link.Cut()
		time.Sleep(time.Second)
		free := time.Now()
		kit.Unlock(t, holder)
		kit.Receive(t, granted, "a grant")
		require.Less(t, time.Since(free), 8*time.Second, "a third of its place's TTL, and the pause")
		for range n - 2 {
			kit.Receive(t, granted, "a grant")
		}
		dead.Link.Heal()
		wg.Wait()
	})
}

// TestDeadFirstInBusyBucket has other clients write to the bucket while two clients queue, which
// looks as if many had queued. The two must find out that the queue is short, so that a dead head
// costs only one pause.
func TestDeadFirstInBusyBucket(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		holder := kit.QuietHolder(t, s)
		dead, slow := kit.JoinFaulty(t, s)
		c, slower := kit.JoinFaulty(t, s)
		slow.OnSend(kit.At("wait take", faults.Delay(200*time.Millisecond)))
		slower.OnSend(kit.At("wait take", faults.Delay(210*time.Millisecond)))
		first, w := dead.Begin(t, "l"), c.Begin(t, "l")
		time.Sleep(100 * time.Millisecond)
		r := kit.NewRaw(t, s.Connect())
		for i := range 40 {
			r.Put(fmt.Sprint("lock.other", i), []byte("x"), time.Minute)
		}
		time.Sleep(2 * time.Second)
		dead.Link.Cut()
		free := time.Now()
		kit.Unlock(t, holder)
		kit.Unlock(t, w.Granted(t))
		require.Less(t, time.Since(free), onePause)
		dead.Link.Heal()
		kit.Unlock(t, first.Granted(t))
	})
}

// TestDeadFirstInCrashLoop has a replica queue and die every ten seconds. Among readers that come
// and go a writer would find the gate free and not queue, so in that case another writer holds the
// lock first.
func TestDeadFirstInCrashLoop(t *testing.T) {
	for _, x := range sorts() {
		t.Run(x.name, func(t *testing.T) {
			half := func(trouble func(t *testing.T, bucket *kvstore.Memory)) (seen *cycles) {
				kit.InMemory(t, func(t *testing.T, bucket *kvstore.Memory) {
					holder, _ := kit.JoinInMemory(t, bucket)
					release := x.hold(t, holder.Client)
					clients := 3
					if x.all == 3 { // more clients than permits
						clients = 5
					}
					seen = x.run(t, bucket, clients, 0, release, func() {
						for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Second) {
							if x.all < 100 {
								trouble(t, bucket)
								continue
							}
							release := x.hold(t, holder.Client)
							trouble(t, bucket)
							time.Sleep(10 * time.Millisecond)
							release()
						}
					})
				})
				return seen
			}
			calm := half(func(*testing.T, *kvstore.Memory) {})
			seen := half(func(t *testing.T, bucket *kvstore.Memory) {
				m, line := kit.JoinInMemory(t, bucket)
				go func() {
					if l, err := x.dead(context.WithoutCancel(t.Context()), m.Client); err == nil {
						_ = l.Unlock(context.Background())
					}
				}()
				m.Events.Wait(t, admin.EventQueued, "l")
				line.Cut()
			})
			t.Logf("%d grants in 20 s, %d without deaths, pauses %v", seen.grants, calm.grants, seen.pauses)
			require.GreaterOrEqual(t, seen.grants, calm.grants*8/10)
			require.Len(t, seen.pauses, 2)
			for _, p := range seen.pauses {
				require.LessOrEqual(t, p, onePause)
			}
		})
	}
}

// slowly joins a client whose writes and reads each take a round trip.
func slowly(t *testing.T, bucket *kvstore.Memory, roundTrip time.Duration) *natslock.Client {
	t.Helper()
	c, f := kit.FaultyInMemory(t, bucket, 1)
	f.OnSend(func(int, kvstore.Write) faults.Fate { return faults.Delay(roundTrip) })
	f.FailReads(func(faults.ReadOp, string) error { time.Sleep(roundTrip); return nil })
	return c
}

// oldPlaces shows one client's place as it was when first read, like a replica that lags or lies.
// Everything else is current.
type oldPlaces struct {
	kvstore.KV
	mu  sync.Mutex
	of  string
	old kvstore.Record
}

func (o *oldPlaces) List(ctx context.Context, pattern string, min uint64, opts ...kvstore.ListOption) (kvstore.Listing, error) {
	l, err := o.KV.List(ctx, pattern, min, opts...)
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, r := range l.Records {
		if r.Key == o.of && o.old.Revision == 0 {
			o.old = r
		}
		if r.Key == o.of {
			l.Records[i] = o.old
		}
	}
	return l, err
}

// TestRenewedPlaceIsKept checks that a waiter granted the lock out of turn deletes the head's place
// only at the revision it read, so an owner that has renewed the place in the meantime keeps it.
func TestRenewedPlaceIsKept(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		r := kit.NewRaw(t, s.Connect())
		stuck, f := kit.JoinFaulty(t, s)
		lies := &oldPlaces{}
		c := kit.Join(t, s, faults.WrapStore(func(kv kvstore.KV) kvstore.KV {
			lies.KV = kv
			return lies
		}))
		holder := kit.QuietHolder(t, s)
		first := stuck.Await(t, "l")
		lies.mu.Lock()
		lies.of = r.Live("wait.l.*")[0]
		lies.mu.Unlock()
		w := c.Await(t, "l")
		time.Sleep(7 * time.Second) // long enough for the place's first renewal
		f.OnSend(kit.At("lock take", faults.Drop))
		lies.mu.Lock()
		require.NotZero(t, lies.old.Revision)
		require.Greater(t, r.Get(lies.of).Sequence, lies.old.Revision)
		lies.mu.Unlock()
		free := time.Now()
		kit.Unlock(t, holder)
		l := w.Granted(t)
		require.Less(t, w.At.Sub(free), onePause)
		synctest.Wait()
		require.Contains(t, r.Live("wait.l.*"), lies.of)
		f.OnSend(nil)
		kit.Unlock(t, l)
		kit.Unlock(t, first.Granted(t))
	})
}

// TestNoEvictionWithoutGrant checks that a waiter deletes no place without a grant. Stale reads
// make it consider the lock free and unchanged, but its claim is refused.
func TestNoEvictionWithoutGrant(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		r := kit.NewRaw(t, s.Connect())
		a, first := kit.Join(t, s), kit.Join(t, s)
		lies := &oldLock{}
		c := kit.Join(t, s, faults.WrapStore(func(kv kvstore.KV) kvstore.KV {
			lies.KV = kv
			return lies
		}))
		kit.Unlock(t, kit.Must(t, a.Lock, "l"))
		holder := kit.Must(t, a.Lock, "l")
		w := first.Await(t, "l")
		places := r.Live("wait.l.*")
		last := c.Await(t, "l")
		lies.mu.Lock()
		lies.lies = true
		lies.mu.Unlock()
		time.Sleep(time.Minute)
		require.Contains(t, r.Live("wait.l.*"), places[0])
		require.False(t, last.Over())
		lies.mu.Lock()
		require.Positive(t, lies.told)
		lies.lies = false
		lies.mu.Unlock()
		kit.Unlock(t, holder)
		kit.Unlock(t, w.Granted(t))
		kit.Unlock(t, last.Granted(t))
	})
}

// TestWindowAfterFailedRead checks that a failed read restarts the period for which a waiter must
// see the lock free.
func TestWindowAfterFailedRead(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		stuck := kit.Join(t, s)
		c, f := kit.JoinFaulty(t, s)
		holder := kit.QuietHolder(t, s)
		first := stuck.Await(t, "l")
		w := c.Await(t, "l")
		time.Sleep(3 * time.Second)
		var looks atomic.Int32
		f.FailReads(func(op faults.ReadOp, what string) error {
			if op != faults.ReadList || !strings.HasPrefix(what, "wait.l.") {
				return nil
			}
			if looks.Add(1)%2 == 0 {
				return kvstore.ErrUnavailable
			}
			return nil
		})
		stuck.Link.Blackhole(true)
		kit.Unlock(t, holder)
		time.Sleep(5 * time.Second)
		require.Greater(t, int(looks.Load()), 6)
		require.False(t, w.Over(), "it has seen the lock free for 0.6 s at most")
		f.FailReads(nil)
		kit.Unlock(t, w.Granted(t))
		stuck.Link.Blackhole(false)
		kit.Unlock(t, first.Granted(t))
	})
}

// TestMessagesSecondWaiter checks that in a moving queue only the first two waiters watch the lock.
// The second is notified of each claim and release but claims nothing.
func TestMessagesSecondWaiter(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		members := kit.Crowd(t, s, 7)
		holder := kit.Must(t, members[0].Lock, "l")
		var queue []*kit.Waiting
		for _, m := range members[1:] {
			queue = append(queue, m.Await(t, "l"))
		}
		time.Sleep(5500 * time.Millisecond) // they have settled, and their next timers are some way off
		r := kit.NewRaw(t, s.Connect())
		last := r.Get("lock.l")
		next := r.Put("lock.l", []byte("another's"), time.Minute)
		require.Greater(t, next, last.Sequence)
		synctest.Wait()
		var in, out []uint64
		for _, m := range members {
			in, out = append(in, m.NC.Stats().InMsgs), append(out, m.NC.Stats().OutMsgs)
		}
		r.Put("lock.l", []byte("another's"), time.Minute)
		synctest.Wait()
		for i, m := range members[1:] {
			got, sent := m.NC.Stats().InMsgs-in[i+1], m.NC.Stats().OutMsgs-out[i+1]
			require.Zero(t, sent, "waiter %d", i)
			if i < 2 {
				require.EqualValues(t, 1, got, "waiter %d", i)
			} else {
				require.Zero(t, got, "waiter %d", i)
			}
		}
		r.Remove("lock.l")
		_ = holder.Unlock(t.Context()) // its lock is lost
		for _, w := range queue {
			kit.Unlock(t, w.Granted(t))
		}
	})
}

// oldLock shows a lock as free, as it was before it was taken.
type oldLock struct {
	kvstore.KV
	mu   sync.Mutex
	lies bool
	told int
}

func (o *oldLock) List(ctx context.Context, pattern string, min uint64, opts ...kvstore.ListOption) (kvstore.Listing, error) {
	l, err := o.KV.List(ctx, pattern, min, opts...)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.lies {
		l.Beside = kvstore.Record{}
		o.told++
	}
	return l, err
}

// TestFullOfPlaces has more clients want a lock than the bucket has room for, before any of them
// knows how full the bucket is. The lock must still pass from one client to the next. If a
// single-server bucket accepted a new place whenever a holder left, there would be no room for a
// waiter's claim.
func TestFullOfPlaces(t *testing.T) {
	for _, x := range sorts() {
		rounds := 1
		if x.name == "mutex" { // chance decides which refused write is retried first
			rounds = 4
		}
		for round := range rounds {
			t.Run(fmt.Sprint(x.name, " ", round), func(t *testing.T) { testutil.Bubble(t, x.fullOfPlaces) })
		}
	}
}

func (x sort) fullOfPlaces(t *testing.T, s *testutil.Server) {
	const waiters = 60
	kit.Join(t, s, natslock.WithBucketConfig(kvstore.Config{MaxBytes: 16 << 10})) // creates the bucket
	clients := make([]*natslock.Client, waiters)
	for i := range clients {
		clients[i] = kit.NewClient(t, s.Connect())
	}
	release := x.hold(t, clients[0])
	served := make(chan error, waiters)
	for _, c := range clients {
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			l, err := x.take(ctx, c)
			if err == nil {
				err = l.Unlock(t.Context())
			}
			served <- err
		}()
	}
	time.Sleep(time.Second) // until every place that fits exists
	release()
	for range waiters {
		require.NoError(t, <-served)
	}
}
