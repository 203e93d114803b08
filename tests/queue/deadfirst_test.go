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

// onePause is how long one dead waiter at the head of a queue may delay a free lock.
const onePause = 1500 * time.Millisecond

// sort is a kind of lock with a way to take it.
type sort struct {
	name string
	all  int // how many are inside at a time at most
	take func(ctx context.Context, c *natslock.Client) (*natslock.Lock, error)
	dead func(ctx context.Context, c *natslock.Client) (*natslock.Lock, error) // of those that die
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

// hold takes all of a lock, so that later clients queue.
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

// dies makes a client queue for the lock, and ends its connection.
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

// cycles counts the grants of clients that repeatedly take the lock for 10 ms each, and the
// pauses in which no client got it.
type cycles struct {
	mu     sync.Mutex
	grants int
	last   time.Time
	pauses []time.Duration // above a tenth of a second
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

// run runs clients for a time, while trouble goes on.
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
					rate := 100 // grants a second, without the dead
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

// The holder dies together with all its waiters except the last. That one knows when the lease
// ends, and then looks at the lock, although nothing is notified and its predecessor is not yet
// late.
func TestDeadFirstWithTheirHolder(t *testing.T) {
	for _, x := range sorts() {
		for _, dead := range []int{1, 3, 17} {
			t.Run(fmt.Sprint(x.name, " ", dead), func(t *testing.T) {
				t.Parallel()
				kit.InMemory(t, func(t *testing.T, bucket *kvstore.Memory) {
					var ends time.Time // of the lease
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
					time.Sleep(3 * time.Second) // the places end after the lease
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

// The pause begins when the lock is free, not at a timed read: the waiters have waited for long,
// and their timers are seconds apart. A waiter behind several dead ones watches the lock once
// its predecessor has missed a renewal.
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

// The head of a crowd that arrived all at once dies. The waiters behind it know only the places
// right ahead of their own: the next one looks for the head once its timer has shown the lock
// free.
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

// Other clients write a lot to the bucket while two clients queue, as if many had queued
// together. The two find that the queue is short, so a dead head costs them one pause.
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

// A replica waits and dies, every ten seconds. Where readers come and go, a writer finds the
// gate free and does not queue. Behind a writer that is inside, it queues and dies.
func TestDeadFirstInCrashLoop(t *testing.T) {
	for _, x := range sorts() {
		t.Run(x.name, func(t *testing.T) {
			half := func(trouble func(t *testing.T, bucket *kvstore.Memory)) (seen *cycles) {
				kit.InMemory(t, func(t *testing.T, bucket *kvstore.Memory) {
					holder, _ := kit.JoinInMemory(t, bucket)
					release := x.hold(t, holder.Client)
					clients := 3
					if x.all == 3 { // more than there are permits
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

// slowly joins a client whose writes and reads take a round trip to the server.
func slowly(t *testing.T, bucket *kvstore.Memory, roundTrip time.Duration) *natslock.Client {
	t.Helper()
	c, f := kit.FaultyInMemory(t, bucket, 1)
	f.OnSend(func(int, kvstore.Write) faults.Fate { return faults.Delay(roundTrip) })
	f.FailReads(func(faults.ReadOp, string) error { time.Sleep(roundTrip); return nil })
	return c
}

// oldPlaces shows the places of one client as they were when it was first asked, like a replica
// that lags or lies. Everything else is current.
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

// A waiter that is granted the lock out of turn deletes the head's place at the revision that it
// read. An owner that has since renewed the place keeps it.
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
		time.Sleep(7 * time.Second) // the first renewal of the place
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

// A waiter that reads old answers considers the lock free and unchanged. Its claim is refused,
// and without a grant it deletes no place.
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

// After a read without an answer, the time for which a waiter has seen the lock free starts
// again.
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

// In a moving queue only the second waiter watches the lock alongside the first. It is notified
// of each claim and each release, and claims nothing.
func TestMessagesSecondWaiter(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		members := kit.Crowd(t, s, 7)
		holder := kit.Must(t, members[0].Lock, "l")
		var queue []*kit.Waiting
		for _, m := range members[1:] {
			queue = append(queue, m.Await(t, "l"))
		}
		time.Sleep(5500 * time.Millisecond) // they have settled; the next timer is a while away
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
		_ = holder.Unlock(t.Context()) // it was lost
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

// TestFullOfPlaces: more clients than a bucket has room for want one lock at once, before any of
// them knows how full the bucket is. The lock passes from one to the next. If a bucket on one
// server accepted a new place whenever a holder leaves, it would have no room for a waiter's
// claim.
func TestFullOfPlaces(t *testing.T) {
	for _, x := range sorts() {
		rounds := 1
		if x.name == "mutex" { // which of the refused writes is repeated first is a matter of chance
			rounds = 4
		}
		for round := range rounds {
			t.Run(fmt.Sprint(x.name, " ", round), func(t *testing.T) { testutil.Bubble(t, x.fullOfPlaces) })
		}
	}
}

func (x sort) fullOfPlaces(t *testing.T, s *testutil.Server) {
	const waiters = 60
	kit.Join(t, s, natslock.WithBucketConfig(kvstore.Config{MaxBytes: 16 << 10})) // makes it
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
	time.Sleep(time.Second) // as many as can have a place
	release()
	for range waiters {
		require.NoError(t, <-served)
	}
}
