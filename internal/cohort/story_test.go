package cohort_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/call"
	"github.com/natslock/locks/internal/cohort"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
)

func TestMain(m *testing.M) { kit.LeakCheck(m) }

const (
	ttl = 10 * time.Second
	ms  = time.Millisecond

	limit = 10 * time.Minute // for a wait that should have ended earlier
)

// client is a client of an in-memory bucket with injected faults.
type client struct {
	*cohort.Client
	b *bucket.Bucket
	f *faults.Store

	claims atomic.Int64 // writes other than renewals
}

// world creates the clients of a bucket.
type world struct{ *kit.World }

func inMemory(t *testing.T, fn func(t *testing.T, w *world)) {
	kit.InWorld(t, func(t *testing.T, w *kit.World) { fn(t, &world{w}) })
}

// client returns a client whose leases have the given turn.
func (w *world) client(turn time.Duration) *client {
	c := &client{f: w.Store()}
	c.b = bucket.New(c.f, "", nil)
	c.Client = cohort.New(c.b, session.New(c.b, session.Config{TTL: ttl}), turn, 10)
	c.f.OnSend(func(_ int, kw kvstore.Write) faults.Fate {
		if kit.Stage(kw) != "lock renew" {
			c.claims.Add(1)
		}
		return faults.Pass
	})
	w.OnEnd(func(over context.Context) { c.Close(over) })
	return c
}

// goroutine is a goroutine that wants a lock.
type goroutine struct {
	cohort.Holding
	err    error
	at     time.Duration // when Acquire returned
	done   chan struct{}
	cancel context.CancelFunc
}

// over reports whether Acquire has returned once every goroutine is blocked.
func (g *goroutine) over() bool {
	synctest.Wait()
	select {
	case <-g.done:
		return true
	default:
		return false
	}
}

func (g *goroutine) release(t *testing.T) {
	t.Helper()
	require.NoError(t, g.Release(context.Background()))
	require.Error(t, g.Context().Err())
}

func mutex(change ...func(*call.Request)) call.Request {
	r := call.Request{Kind: record.Mutex, Name: "x"}
	for _, c := range change {
		c(&r)
	}
	return r
}

func once(r *call.Request)   { r.Once = true }
func linger(r *call.Request) { r.Linger = time.Minute }
func reads(r *call.Request)  { r.Kind, r.Mode = record.RW, record.Shared }
func writes(r *call.Request) { r.Kind = record.RW }

// ask starts an Acquire in the background.
func (w *world) ask(c *client, change ...func(*call.Request)) *goroutine {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	g := &goroutine{done: make(chan struct{}), cancel: cancel}
	w.WG.Go(func() {
		defer close(g.done)
		g.Holding, g.err = c.Acquire(ctx, mutex(change...))
		g.at = w.Age()
	})
	synctest.Wait()
	return g
}

// lock is like ask but waits until the lock is granted.
func (w *world) lock(t *testing.T, c *client, change ...func(*call.Request)) *goroutine {
	t.Helper()
	g := w.ask(c, change...)
	<-g.done
	require.NoError(t, g.err)
	return g
}

// A client's goroutines are served in the order in which they asked. They share one lease, which passes from one to the
// next without a message, each time after the previous holder's context has ended.
func TestOneLease(t *testing.T) {
	inMemory(t, func(t *testing.T, w *world) {
		c := w.client(time.Minute)
		held := w.lock(t, c)
		var queue []*goroutine
		for range 5 {
			queue = append(queue, w.ask(c))
		}
		time.Sleep(2 * time.Second)
		require.Equal(t, []string{"lock.x"}, w.Keys(t), "no place of theirs")
		_, waiting, _ := c.Held()
		require.Equal(t, 5, waiting)
		require.Equal(t, 5, c.WaitingFor(record.KeysOf(record.Mutex, "x")))
		claims, token := c.claims.Load(), held.Token()
		for _, g := range queue {
			require.False(t, g.over())
			held.release(t)
			require.True(t, g.over())
			require.NoError(t, g.err)
			require.NoError(t, g.Context().Err())
			require.Greater(t, g.Token(), token, "a resource sees tokens rise")
			held, token = g, g.Token()
		}
		require.Equal(t, claims, c.claims.Load())
		held.release(t)
		time.Sleep(ms)
		require.Empty(t, w.Keys(t))
	})
}

// While another client waits, a lease serves the goroutines that asked before that client queued and then goes to that
// client. Goroutines that asked later queue behind it.
func TestOwed(t *testing.T) {
	inMemory(t, func(t *testing.T, w *world) {
		c, other := w.client(0), w.client(0)
		held := w.lock(t, c)
		before := w.ask(c)
		time.Sleep(2 * time.Second)
		foreign := w.ask(other)
		time.Sleep(2 * time.Second)
		after := w.ask(c)
		held.release(t)
		require.True(t, before.over())
		before.release(t)
		require.True(t, foreign.over())
		require.False(t, after.over())
		foreign.release(t)
		<-after.done
		require.NoError(t, after.err)
	})
}

// During a lease's turn, even goroutines that arrive after another client has queued may enter.
func TestTurn(t *testing.T) {
	inMemory(t, func(t *testing.T, w *world) {
		c, other := w.client(time.Minute), w.client(0)
		held := w.lock(t, c)
		foreign := w.ask(other)
		for range 3 {
			time.Sleep(time.Second)
			next := w.ask(c)
			held.release(t)
			require.True(t, next.over())
			require.False(t, foreign.over())
			held = next
		}
		time.Sleep(time.Minute)
		next := w.ask(c)
		held.release(t)
		require.True(t, foreign.over())
		require.False(t, next.over())
		foreign.release(t)
		<-next.done
	})
}

// A one-shot acquire makes a claim alongside the others and never joins the FIFO. It reports who holds the lock.
func TestOneShotBeside(t *testing.T) {
	inMemory(t, func(t *testing.T, w *world) {
		c := w.client(0)
		held := w.lock(t, c)
		waits := w.ask(c)
		try := w.ask(c, once)
		<-try.done
		busy, ok := errors.AsType[*call.BusyError](try.err)
		require.True(t, ok, "%v", try.err)
		require.True(t, busy.Own)
		require.Equal(t, held.ID(), busy.Holder.ID)
		require.False(t, waits.over())
		held.release(t)
		<-waits.done
		waits.release(t)
		w.lock(t, c, once).release(t)
	})
}

// The founder asked before everyone else. If its claim is refused, it joins the FIFO ahead of those that came in the
// meantime, and the seeker continues the claim.
func TestFounderFirst(t *testing.T) {
	inMemory(t, func(t *testing.T, w *world) {
		c := w.client(time.Minute)
		foreign := w.lock(t, w.client(0))
		c.f.OnSend(kit.Between("lock take", 1, 1, faults.DelayAnswer(500*ms)))
		founder := w.ask(c)
		second := w.ask(c)
		time.Sleep(2 * time.Second)
		require.Len(t, w.Keys(t), 2, "one place for both")
		foreign.release(t)
		require.True(t, founder.over())
		require.False(t, second.over())
		founder.release(t)
		require.True(t, second.over())
		require.NoError(t, second.err)
	})
}

// A goroutine that gives up leaves the others where they are. When the last one gives up, the place is deleted.
func TestGivesUp(t *testing.T) {
	inMemory(t, func(t *testing.T, w *world) {
		foreign := w.lock(t, w.client(0))
		c := w.client(0)
		a, b := w.ask(c), w.ask(c)
		time.Sleep(time.Second)
		a.cancel()
		<-a.done
		e, ok := errors.AsType[*call.WaitError](a.err)
		require.True(t, ok, "%v", a.err)
		require.Equal(t, foreign.ID(), e.Holder.ID)
		require.Equal(t, 1, e.Position)
		require.False(t, b.over())
		require.Len(t, w.Keys(t), 2)
		b.cancel()
		<-b.done
		require.Equal(t, []string{"lock.x"}, w.Keys(t))
	})
}

// A client's readers share a lease until a writer is known to wait.
func TestReadersShare(t *testing.T) {
	inMemory(t, func(t *testing.T, w *world) {
		c, other := w.client(0), w.client(0)
		first, second := w.lock(t, c, reads), w.lock(t, c, reads)
		require.Len(t, w.Keys(t), 1)
		locks, _, _ := c.Held()
		require.Equal(t, 2, locks)
		writer := w.ask(other, writes)
		time.Sleep(2 * time.Second)
		late := w.ask(c, reads)
		require.False(t, late.over())
		first.release(t)
		require.NoError(t, second.Context().Err(), "an Unlock ends its own part")
		require.False(t, writer.over())
		second.release(t)
		<-writer.done
		require.NoError(t, writer.err)
		require.False(t, late.over())
		writer.release(t)
		<-late.done
		require.NoError(t, late.err)
	})
}

// A semaphore's cohort has one place and at most as many leases as there are permits.
func TestPermits(t *testing.T) {
	permit := func(r *call.Request) { r.Kind, r.Permits = record.Semaphore, 2 }
	inMemory(t, func(t *testing.T, w *world) {
		c := w.client(0)
		foreign := w.lock(t, w.client(0), permit)
		var all []*goroutine
		for range 4 {
			all = append(all, w.ask(c, permit))
		}
		time.Sleep(time.Second)
		require.Len(t, w.Keys(t), 3, "two permits and a place")
		require.True(t, all[0].over())
		require.False(t, all[1].over())
		foreign.release(t)
		require.True(t, all[1].over())
		require.False(t, all[2].over())
		for i, g := range all {
			require.True(t, g.over())
			require.NoError(t, g.err)
			require.LessOrEqual(t, len(w.Keys(t)), 2)
			require.False(t, i+2 < len(all) && all[i+2].over())
			g.release(t)
		}
		time.Sleep(ms)
		require.Empty(t, w.Keys(t))
	})
}

// A lease lingers if its last holder asked for it, and the next goroutine then enters without a message. The client
// gives the lease up when another client queues, when a goroutine that it cannot serve asks, and when the linger time
// is over.
func TestLinger(t *testing.T) {
	idle := func(t *testing.T, w *world) *client {
		c := w.client(0)
		w.lock(t, c, linger).release(t)
		_, _, n := c.Held()
		require.Equal(t, 1, n)
		return c
	}
	inMemory(t, func(t *testing.T, w *world) {
		c := idle(t, w)
		time.Sleep(time.Second)
		claims := c.claims.Load()
		g := w.lock(t, c, linger)
		require.Equal(t, claims, c.claims.Load())
		require.Equal(t, time.Second, g.at)
		g.release(t)
		time.Sleep(time.Minute + ms)
		require.Empty(t, w.Keys(t), "its time is over")
	})
	inMemory(t, func(t *testing.T, w *world) {
		c := idle(t, w)
		time.Sleep(time.Second)
		other := w.lock(t, w.client(0))
		require.Less(t, other.at, 2*time.Second)
		_, _, n := c.Held()
		require.Zero(t, n)
	})
	inMemory(t, func(t *testing.T, w *world) {
		c := idle(t, w)
		time.Sleep(time.Second)
		other := w.lock(t, c, func(r *call.Request) { r.TTL = 2 * ttl })
		require.Equal(t, time.Second, other.at)
	})
	inMemory(t, func(t *testing.T, w *world) { // the last list is more than 5 s old, so a goroutine waits for a new one
		c := idle(t, w)
		time.Sleep(20 * time.Second)
		reads := make(chan string, 10)
		c.f.FailReads(func(_ faults.ReadOp, what string) error { reads <- what; return nil })
		w.lock(t, c, linger).release(t)
		require.Equal(t, "wait.x.*", <-reads)
		time.Sleep(20 * time.Second)
		w.lock(t, c, linger, once).release(t)
	})
	inMemory(t, func(t *testing.T, w *world) { // a one-shot acquire claims the lock if the list gets no reply
		c := idle(t, w)
		time.Sleep(20 * time.Second)
		claims, failed := c.claims.Load(), 0
		c.f.FailReads(func(faults.ReadOp, string) error {
			if failed++; failed > 1 {
				return nil
			}
			return kvstore.ErrUnavailable
		})
		w.lock(t, c, once)
		require.GreaterOrEqual(t, c.claims.Load(), claims+2, "a release and a claim")
	})
	inMemory(t, func(t *testing.T, w *world) { // Close gives up idle leases
		c := idle(t, w)
		require.Empty(t, c.Close(t.Context()))
		require.Empty(t, w.Keys(t))
	})
}

// A break ends the holder's lease, although the holder may be slow to leave. The waiters get another lease once the
// broken record is deleted.
func TestBroken(t *testing.T) {
	inMemory(t, func(t *testing.T, w *world) {
		c := w.client(time.Minute)
		held := w.lock(t, c)
		waits := w.ask(c)
		time.Sleep(2 * time.Second)
		e, err := c.b.Read(t.Context(), "lock.x", 0)
		require.NoError(t, err)
		e.Body.Status = record.StatusBroken
		value, err := e.Body.Encode()
		require.NoError(t, err)
		_, err = w.client(0).b.Write(t.Context(), kvstore.Write{Key: "lock.x", Value: value, TTL: ttl, Expect: e.Revision})
		require.NoError(t, err)
		synctest.Wait()
		require.ErrorIs(t, context.Cause(held.Context()), session.ErrBroken, "by its watch")
		require.False(t, waits.over())
		require.ErrorIs(t, held.Release(t.Context()), session.ErrBroken)
		<-waits.done
		require.NoError(t, waits.err)
		require.Less(t, waits.at, 3*time.Second)
	})
}

// When a holder's handle is dropped, its lease runs out, and the client's waiters then get another one.
func TestDroppedHandle(t *testing.T) {
	inMemory(t, func(t *testing.T, w *world) {
		c := w.client(time.Minute)
		held := w.lock(t, c)
		waits := w.ask(c)
		time.Sleep(2 * time.Second)
		dropped := w.Age()
		held.Abandon()
		<-waits.done
		require.NoError(t, waits.err)
		require.Greater(t, waits.at, dropped+ttl/2)
		require.Less(t, waits.at, dropped+ttl+time.Second)
		require.ErrorIs(t, context.Cause(held.Context()), session.ErrLost)
		require.ErrorContains(t, context.Cause(held.Context()), "its handle was dropped")
	})
}

// Another client adopts a lock that was handed over and keeps its token. The first client's waiters seek another lease.
func TestHandOver(t *testing.T) {
	inMemory(t, func(t *testing.T, w *world) {
		c, heir := w.client(time.Minute), w.client(0)
		held := w.lock(t, c)
		waits := w.ask(c)
		handed, err := held.HandOff(t.Context())
		require.NoError(t, err)
		require.ErrorIs(t, context.Cause(held.Context()), session.ErrHandedOff)
		adopted, err := heir.Adopt(t.Context(), call.Request{}, handed)
		require.NoError(t, err)
		require.Equal(t, held.Token(), adopted.Token())
		time.Sleep(time.Minute)
		require.NoError(t, adopted.Context().Err(), "renewed by the heir")
		require.False(t, waits.over())
		_, err = c.Adopt(t.Context(), call.Request{}, handed)
		require.ErrorIs(t, err, call.ErrNotHandedOver)
		require.NoError(t, adopted.Release(t.Context()))
		<-waits.done
		require.NoError(t, waits.err)
		require.Greater(t, waits.Token(), adopted.Token())
	})
}

// A holder is told only when another goroutine or client waits for what it holds.
func TestContendedChannel(t *testing.T) {
	told := func(g *goroutine) bool {
		synctest.Wait()
		select {
		case <-g.Contended():
			return true
		default:
			return false
		}
	}
	for name, from := range map[string]func(w *world, c *client) *client{
		"a goroutine":    func(_ *world, c *client) *client { return c },
		"another client": func(w *world, _ *client) *client { return w.client(0) },
	} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(t *testing.T, w *world) {
				c := w.client(0)
				held := w.lock(t, c)
				require.False(t, told(held))
				time.Sleep(10 * time.Second)
				require.False(t, told(held))
				waits := w.ask(from(w, c))
				require.True(t, told(held))
				held.release(t)
				<-waits.done
			})
		})
	}
}

// A lease that has a minimum hold, is not renewed, or belongs to a patient request serves a single goroutine, and so
// does every lease of a client without turns. All other goroutines queue on their own.
func TestPrivate(t *testing.T) {
	for name, change := range map[string]func(*call.Request){
		"minimum hold": func(r *call.Request) { r.MinHold = ms },
		"no renewal":   func(r *call.Request) { r.Fixed = true },
		"patient":      func(r *call.Request) { r.Patient = true },
		"no turns":     func(*call.Request) {},
	} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(t *testing.T, w *world) {
				c := w.client(time.Minute)
				if name == "no turns" {
					c = w.client(-1)
				}
				held := w.lock(t, c, change)
				second, third := w.ask(c, change), w.ask(c, change)
				time.Sleep(ms)
				require.Len(t, w.Keys(t), 3)
				require.False(t, second.over() || third.over())
				held.release(t)
				<-second.done
				require.NoError(t, second.err)
				require.NotEqual(t, held.ID(), second.ID())
				require.False(t, third.over())
			})
		})
	}
}

// A client refuses to use one name for two kinds of lock, because these would be separate locks.
func TestOneKind(t *testing.T) {
	inMemory(t, func(t *testing.T, w *world) {
		c := w.client(0)
		w.lock(t, c)
		g := w.ask(c, writes)
		<-g.done
		require.ErrorIs(t, g.err, record.ErrInvalidName)
		require.ErrorContains(t, g.err, "as a mutex, so it cannot also use it as a reader-writer lock")
		require.ErrorIs(t, c.Check(record.RW, "y", "x"), record.ErrInvalidName)
		require.NoError(t, c.Check(record.Mutex, "y"), "none was noted")
	})
}

// Close ends the waiters, waits for the holders and returns the names still held. A second Close waits for the first,
// but cuts it short when its own context ends.
func TestClose(t *testing.T) {
	inMemory(t, func(t *testing.T, w *world) {
		c := w.client(0)
		held, waits := w.lock(t, c), w.ask(c)
		foreign := w.lock(t, w.client(0), func(r *call.Request) { r.Name = "y" })
		queued := w.ask(c, func(r *call.Request) { r.Name = "y" })
		left := make(chan []string, 1)
		go func() { left <- c.Close(context.Background()) }()
		for _, g := range []*goroutine{waits, queued} {
			require.True(t, g.over())
			require.ErrorIs(t, g.err, bucket.ErrClosed)
		}
		time.Sleep(time.Minute)
		require.NoError(t, held.Context().Err())
		require.Empty(t, left)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.Equal(t, []string{"x"}, c.Close(ctx))
		require.Equal(t, []string{"x"}, <-left)
		require.ErrorIs(t, context.Cause(held.Context()), bucket.ErrClosed)
		_, err := c.Acquire(t.Context(), mutex())
		require.ErrorIs(t, err, bucket.ErrClosed)
		foreign.release(t)
	})
}

// When the seeker fails, everyone who waits fails with its error.
func TestAllFail(t *testing.T) {
	inMemory(t, func(t *testing.T, w *world) {
		w.lock(t, w.client(0))
		c := w.client(0)
		refused := faults.Refuse(fmt.Errorf("%w: test", kvstore.ErrPermission))
		c.f.OnSend(func(_ int, kw kvstore.Write) faults.Fate {
			if kit.Stage(kw) == "wait take" {
				return refused
			}
			return faults.DelayAnswer(100 * ms) // so that both wait by then
		})
		a, b := w.ask(c), w.ask(c)
		require.False(t, a.over() || b.over())
		time.Sleep(time.Second)
		for _, g := range []*goroutine{a, b} {
			require.True(t, g.over())
			require.ErrorIs(t, g.err, kvstore.ErrPermission)
		}
		time.Sleep(ms)
		require.Equal(t, []string{"lock.x"}, w.Keys(t))
	})
}
