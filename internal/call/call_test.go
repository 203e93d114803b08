package call_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/call"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
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

// client makes calls against an in-memory bucket with injected faults.
type client struct {
	*call.Client
	b *bucket.Bucket
	s *session.Session
	f *faults.Store
}

// world creates the clients of a bucket.
type world struct{ *kit.World }

func inMemory(t *testing.T, fn func(t *testing.T, w *world)) {
	kit.InWorld(t, func(t *testing.T, w *kit.World) { fn(t, &world{w}) })
}

func (w *world) client() *client {
	c := &client{f: w.Store()}
	c.b = bucket.New(c.f, "", nil)
	c.s = session.New(c.b, session.Config{TTL: ttl, WatchAfter: -1})
	c.Client = call.NewClient(c.b, c.s, true)
	w.OnEnd(func(over context.Context) {
		c.b.Quit()
		c.s.Close(over)
	})
	return c
}

// seeker runs a call in a goroutine and stands in for the cohort that the call reports to.
type seeker struct {
	call   *call.Call
	lease  *session.Lease
	err    error
	at     time.Duration // when the call returned
	done   chan struct{}
	cancel context.CancelFunc

	mu     sync.Mutex
	ticket uint64 // the ticket of its place; 0 if it has none
	places int
	seen   call.LockState
	last   error // the last request's
}

func (s *seeker) Queueing() {}
func (s *seeker) Queued(p *session.Place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ticket = 0; p != nil {
		s.ticket = p.Ticket()
		s.places++
	}
}
func (s *seeker) Listed([]record.Entry, uint64, bool, clock.Instant) {}
func (s *seeker) HolderSeen(seen call.LockState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = seen
}
func (s *seeker) Answered(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = err
}

// over reports whether the call has returned once every goroutine is blocked.
func (s *seeker) over() bool {
	synctest.Wait()
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

func mutex(change ...func(*call.Request)) call.Request {
	r := call.Request{Kind: record.Mutex, Name: "x"}
	for _, c := range change {
		c(&r)
	}
	return r
}

func once(r *call.Request) { r.Once = true }

func reads() call.Request {
	return call.Request{Kind: record.RW, Mode: record.Shared, Name: "x"}
}

func writes(change ...func(*call.Request)) call.Request {
	r := mutex(change...)
	r.Kind = record.RW
	return r
}

func permit(n int, change ...func(*call.Request)) call.Request {
	r := mutex(change...)
	r.Kind, r.Permits = record.Semaphore, n
	return r
}

// seek starts a call the way package cohort does.
func (w *world) seek(t *testing.T, c *client, req call.Request) *seeker {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	s := &seeker{done: make(chan struct{}), cancel: cancel}
	a, err := c.New(ctx, req)
	require.NoError(t, err)
	s.call, a.Requested = a, true
	a.Join(s)
	w.WG.Go(func() {
		defer close(s.done)
		defer cancel()
		defer a.Bound()()
		a.Prepare()
		r := a.AtOnce()
		switch {
		case r.Outcome != core.Free && r.Outcome != core.Busy:
		case req.Once:
			r = a.Confirmed(r)
		default:
			r = a.Wait(r.Entry)
		}
		if r.Outcome == core.Granted {
			l := a.Hold(r)
			if a.Drains() {
				r = a.Drain(l)
			}
			if r.Outcome == core.Granted {
				s.lease, s.at = l, w.Age()
				return
			}
			a.Unused(l)
		} else {
			s.mu.Lock()
			a.GivesUp(&s.seen, s.last, true)
			s.mu.Unlock()
			a.Withdraw()
		}
		s.err, s.at = a.Failure(r), w.Age()
	})
	return s
}

// lock is like seek but waits until the lock is granted.
func (w *world) lock(t *testing.T, c *client, req call.Request) *seeker {
	t.Helper()
	s := w.seek(t, c, req)
	<-s.done
	require.NoError(t, s.err)
	return s
}

func (s *seeker) release(t *testing.T) {
	t.Helper()
	require.NoError(t, s.lease.Release(context.Background()))
}

// Acquiring a free lock takes a single write, and so does reacquiring it on top of the client's own tombstone.
func TestAtOnce(t *testing.T) {
	inMemory(t, func(t *testing.T, w *world) {
		c := w.client()
		c.f.FailReads(func(faults.ReadOp, string) error { panic("a read") })
		w.lock(t, c, mutex()).release(t)
		require.Equal(t, 2, c.f.Counts().Sends)
		c.f.FailReads(nil)
		w.lock(t, c, mutex()).release(t) // reads the queue, which is empty
		c.f.FailReads(func(faults.ReadOp, string) error { panic("a read") })
		w.lock(t, c, mutex()).release(t)
		require.Equal(t, 6, c.f.Counts().Sends)
	})
}

// A one-shot call never writes a place. It reports the holder and the length of the queue.
func TestOnce(t *testing.T) {
	inMemory(t, func(t *testing.T, w *world) {
		a, b, c := w.client(), w.client(), w.client()
		held := w.lock(t, a, mutex())
		waits := w.seek(t, b, mutex())
		synctest.Wait()
		s := w.seek(t, c, mutex(once))
		<-s.done
		busy, ok := errors.AsType[*call.BusyError](s.err)
		require.True(t, ok, "%v", s.err)
		require.Equal(t, held.lease.ID(), busy.Holder.ID)
		require.False(t, busy.Own)
		require.Equal(t, 1, busy.Queued)
		require.Zero(t, s.places)
		held.release(t)
		<-waits.done
		waits.release(t)
		time.Sleep(2 * time.Second)
		require.NotNil(t, w.lock(t, c, mutex(once)).lease)
	})
}

// Clients are served in ticket order, and a release wakes exactly one waiter, which gets the lock without a timer
// firing.
func TestInTheOrderOfTickets(t *testing.T) {
	for name, req := range map[string]call.Request{"mutex": mutex(), "writers": writes(), "one permit": permit(1)} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(t *testing.T, w *world) {
				held := w.lock(t, w.client(), req)
				var queue []*seeker
				for range 5 {
					queue = append(queue, w.seek(t, w.client(), req))
					time.Sleep(3 * time.Second)
				}
				for i, s := range queue {
					require.False(t, s.over())
					require.Len(t, w.Keys(t), 1+len(queue)-i)
					held.release(t)
					require.True(t, s.over())
					require.NoError(t, s.err)
					require.Equal(t, s.at, w.Age(), "at once")
					require.Equal(t, 1, s.places)
					held = s
				}
			})
		})
	}
}

// Timers back up every notification, so losing all of them costs time but never the lock.
func TestUnnotified(t *testing.T) {
	inMemory(t, func(t *testing.T, w *world) {
		held := w.lock(t, w.client(), mutex())
		var queue []*seeker
		for range 3 {
			c := w.client()
			c.f.DropAllEvents(true)
			queue = append(queue, w.seek(t, c, mutex()))
			time.Sleep(ms)
		}
		time.Sleep(time.Minute)
		for _, s := range queue {
			held.release(t)
			released := w.Age()
			<-s.done
			require.NoError(t, s.err)
			require.Less(t, s.at-released, ttl)
			held = s
		}
	})
}

// A forged notification makes a waiter read but has no other effect.
func TestForged(t *testing.T) {
	inMemory(t, func(t *testing.T, w *world) {
		held := w.lock(t, w.client(), mutex())
		c := w.client()
		first := w.seek(t, c, mutex())
		time.Sleep(2 * time.Second)
		d := w.client()
		second := w.seek(t, d, mutex())
		time.Sleep(2 * time.Second)
		e := held.lease.Entry()
		e.Record.Deleted = true
		e.Record.Revision++
		require.Positive(t, c.f.Forge(kvstore.Event{Kind: kvstore.Deleted, Record: e.Record}))
		for _, key := range w.Keys(t) {
			if key != "lock.x" {
				d.f.Forge(kvstore.Event{Kind: kvstore.Deleted, Record: kvstore.Record{Key: key, Revision: 1 << 60, Deleted: true}})
			}
		}
		time.Sleep(ttl)
		require.False(t, first.over())
		require.False(t, second.over())
	})
}

// When the holder dies, the first waiter sees its TTL expire. When a waiter dies, the one behind it sees its place
// expire.
func TestDead(t *testing.T) {
	inMemory(t, func(t *testing.T, w *world) {
		dead, alsoDead, c := w.client(), w.client(), w.client()
		w.lock(t, dead, mutex())
		w.seek(t, alsoDead, mutex())
		synctest.Wait()
		s := w.seek(t, c, mutex())
		synctest.Wait()
		died := w.Age()
		for _, x := range []*client{dead, alsoDead} {
			x.f.Fail(fmt.Errorf("%w: dead", kvstore.ErrUnavailable))
		}
		<-s.done
		require.NoError(t, s.err)
		require.InDelta(t, died+ttl, s.at, float64(2*time.Second))
	})
}

// If the first waiter is dead while the lock is free, the waiter behind it takes the lock out of turn, but only after
// reads spanning more than a second have shown the lock free and the same head. It also deletes the head's place.
func TestDeadFirst(t *testing.T) {
	inMemory(t, func(t *testing.T, w *world) {
		held := w.lock(t, w.client(), mutex())
		head := w.client()
		w.seek(t, head, mutex())
		synctest.Wait()
		s := w.seek(t, w.client(), mutex())
		time.Sleep(4 * time.Second)
		head.f.OnSend(kit.At("lock take", faults.Drop)) // it renews its place but claims nothing
		held.release(t)
		released := w.Age()
		<-s.done
		require.NoError(t, s.err)
		require.Greater(t, s.at-released, time.Second)
		require.Less(t, s.at-released, 3*time.Second)
		time.Sleep(ms)
		require.Equal(t, []string{"lock.x"}, w.Keys(t))
	})
}

// A wait that is given up leaves nothing behind. Its error names the holder, the place in the queue and, if there was
// one, the outage.
func TestGivenUp(t *testing.T) {
	inMemory(t, func(t *testing.T, w *world) {
		held := w.lock(t, w.client(), mutex())
		w.seek(t, w.client(), mutex())
		time.Sleep(ms)
		s := w.seek(t, w.client(), mutex(func(r *call.Request) { r.MaxWait = 5 * time.Second }))
		<-s.done
		e, ok := errors.AsType[*call.WaitError](s.err)
		require.True(t, ok, "%v", s.err)
		require.Equal(t, 5*time.Second, e.Waited)
		require.Equal(t, held.lease.ID(), e.Holder.ID)
		require.Equal(t, 2, e.Position)
		require.NoError(t, e.Cause)
		require.Len(t, w.Keys(t), 2, "the holder and the first waiter")
	})
	inMemory(t, func(t *testing.T, w *world) {
		c := w.client()
		c.f.OnSend(func(int, kvstore.Write) faults.Fate { return faults.Drop })
		s := w.seek(t, c, mutex())
		time.AfterFunc(10*time.Second, s.cancel)
		<-s.done
		e, ok := errors.AsType[*call.WaitError](s.err)
		require.True(t, ok, "%v", s.err)
		require.ErrorIs(t, e.Cause, context.Canceled)
		require.ErrorIs(t, e.Cause, bucket.ErrUnavailable)
	})
}

// A waiter whose place was deleted queues again.
func TestPlaceGone(t *testing.T) {
	inMemory(t, func(t *testing.T, w *world) {
		held := w.lock(t, w.client(), mutex())
		first := w.seek(t, w.client(), mutex())
		time.Sleep(ms)
		second := w.seek(t, w.client(), mutex())
		time.Sleep(ms)
		operator := w.client()
		for _, key := range w.Keys(t) {
			if key != "lock.x" {
				e, err := operator.b.Read(t.Context(), key, 0)
				require.NoError(t, err)
				require.NoError(t, operator.b.Delete(t.Context(), key, e.Revision, "operator"))
			}
		}
		time.Sleep(ttl)
		held.release(t)
		time.Sleep(time.Second)
		queue := []*seeker{first, second}
		if !first.over() { // it has queued behind the other waiter
			slices.Reverse(queue)
		}
		for _, s := range queue {
			<-s.done
			require.NoError(t, s.err)
			require.Equal(t, 2, s.places)
			s.release(t)
		}
	})
}

// A writer behind its gate enters once the readers ahead of it have left. No reader joins behind the gate, and the
// readers that queue there enter together after the writer.
func TestReadersAndWriters(t *testing.T) {
	inMemory(t, func(t *testing.T, w *world) {
		r1, r2 := w.lock(t, w.client(), reads()), w.lock(t, w.client(), reads())
		wr := w.seek(t, w.client(), writes())
		time.Sleep(ms)
		r3, r4 := w.seek(t, w.client(), reads()), w.seek(t, w.client(), reads())
		time.Sleep(time.Minute)
		r1.release(t)
		require.False(t, wr.over(), "one reader is left")
		require.False(t, r3.over(), "behind the gate")
		r2.release(t)
		require.True(t, wr.over())
		require.NoError(t, wr.err)
		require.False(t, r3.over() || r4.over())
		wr.release(t)
		<-r3.done
		<-r4.done
		require.NoError(t, r3.err)
		require.NoError(t, r4.err)
		require.Less(t, r4.at-time.Minute, time.Second)
	})
}

// A dead reader keeps a writer out until the reader's TTL expires, and a writer whose gate has expired is not let in.
func TestDrain(t *testing.T) {
	inMemory(t, func(t *testing.T, w *world) {
		dead := w.client()
		w.lock(t, dead, reads())
		dead.f.Fail(fmt.Errorf("%w: dead", kvstore.ErrUnavailable))
		died := w.Age()
		wr := w.lock(t, w.client(), writes())
		require.InDelta(t, died+ttl, wr.at, float64(time.Second))
	})
	inMemory(t, func(t *testing.T, w *world) {
		w.lock(t, w.client(), reads())
		c := w.client()
		wr := w.seek(t, c, writes())
		time.Sleep(time.Second)
		c.f.OnSend(kit.At("rw renew", faults.Drop)) // the gate is not renewed
		<-wr.done
		require.Error(t, wr.err)
		require.Nil(t, wr.lease)
		require.InDelta(t, ttl, wr.at, float64(5*time.Second))
	})
}

// A one-shot writer may meet a reader before it takes the gate or from behind the gate. In neither case does it leave a
// gate.
func TestOneShotWriter(t *testing.T) {
	inMemory(t, func(t *testing.T, w *world) {
		r := w.lock(t, w.client(), reads())
		s := w.seek(t, w.client(), writes(once))
		<-s.done
		busy, ok := errors.AsType[*call.BusyError](s.err)
		require.True(t, ok, "%v", s.err)
		require.Equal(t, r.lease.ID(), busy.Holder.ID)
		reader, inside := s.call.CurrentReader()
		require.False(t, inside, "its wait is over: %v", reader)
		require.Len(t, w.Keys(t), 1)
		a, err := w.client().New(t.Context(), writes(once))
		require.NoError(t, err)
		reader, inside = a.CurrentReader()
		require.True(t, inside)
		require.Equal(t, r.lease.ID(), reader.ID)
	})
}

// There are never more holders than permits. Newcomers claim the highest free slot, but behind a waiter everyone
// queues, even while a slot is free that the first waiter does not know about.
func TestPermits(t *testing.T) {
	inMemory(t, func(t *testing.T, w *world) {
		one, two := w.lock(t, w.client(), permit(2)), w.lock(t, w.client(), permit(2))
		require.Equal(t, []string{"sem.x.1", "sem.x.0"}, []string{one.lease.Key, two.lease.Key})
		first := w.seek(t, w.client(), permit(2))
		time.Sleep(ms)
		second := w.seek(t, w.client(), permit(3))
		time.Sleep(time.Minute)
		require.False(t, first.over())
		require.False(t, second.over(), "slot 2 is free")
		two.release(t)
		<-first.done
		require.NoError(t, first.err)
		require.Equal(t, "sem.x.0", first.lease.Key)
		<-second.done
		require.NoError(t, second.err)
		require.Equal(t, "sem.x.2", second.lease.Key)
		s := w.seek(t, w.client(), permit(3, once))
		<-s.done
		require.ErrorContains(t, s.err, "is held")
	})
}

// When several clients adopt a lock that was handed over, one gets it along with its token, and the others learn why
// they did not.
func TestAdopt(t *testing.T) {
	inMemory(t, func(t *testing.T, w *world) {
		giver := w.lock(t, w.client(), mutex())
		h := &session.Holder{}
		_, err := giver.lease.Admit(h, session.Admission{Parent: t.Context()})
		require.NoError(t, err)
		adopt := func(from session.Handed) (*session.Lease, error) {
			c := w.client()
			a, err := c.New(t.Context(), mutex(once))
			require.NoError(t, err)
			a.Join(&seeker{})
			r := a.Adopt(from)
			if r.Outcome != core.Granted {
				return nil, r.Err
			}
			return a.Hold(r), nil
		}
		_, err = adopt(session.Handed{ID: giver.lease.ID(), Token: h.Token()})
		require.ErrorIs(t, err, call.ErrNotHandedOver)
		require.ErrorContains(t, err, "its holder has kept it")
		handed, err := h.HandOff(t.Context())
		require.NoError(t, err)
		l, err := adopt(handed)
		require.NoError(t, err)
		require.Equal(t, handed.Token, l.Body.Token)
		_, err = adopt(handed)
		require.ErrorIs(t, err, call.ErrNotHandedOver)
		require.ErrorContains(t, err, "another claim has taken it")
		require.NoError(t, l.Release(t.Context()))
		_, err = adopt(handed)
		require.ErrorIs(t, err, session.ErrLost)
	})
}

// A request is validated before any I/O.
func TestRefusedRequests(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*call.Request)
		err    error
	}{
		"no name":            {func(r *call.Request) { r.Name = "" }, record.ErrInvalidName},
		"too short":          {func(r *call.Request) { r.TTL = ms }, clock.ErrInvalidTTL},
		"too long":           {func(r *call.Request) { r.TTL = 48 * time.Hour }, clock.ErrInvalidTTL},
		"over":               {func(r *call.Request) { r.Until = time.Now().Add(-1) }, clock.ErrInvalidTTL},
		"minimum hold":       {func(r *call.Request) { r.MinHold = 10 * 366 * 24 * time.Hour }, clock.ErrInvalidTTL},
		"no permits":         {func(r *call.Request) { r.Kind = record.Semaphore }, record.ErrInvalidOption},
		"a permit that idle": {func(r *call.Request) { r.Kind, r.Permits, r.Linger = record.Semaphore, 1, 1 }, record.ErrInvalidOption},
		"early warning":      {func(r *call.Request) { r.OnWarn, r.WarnBefore = func() {}, ttl }, record.ErrInvalidOption},
		"metadata": {func(r *call.Request) {
			r.Meta = map[string]string{"a": string(make([]byte, kvstore.MaxRecord))}
		}, record.ErrInvalidOption},
	} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(t *testing.T, w *world) {
				c := w.client()
				_, err := c.New(t.Context(), mutex(tc.change))
				require.ErrorIs(t, err, tc.err)
				require.Zero(t, c.f.Counts().Sends)
			})
		})
	}
}

// An unfit bucket or a closed client also ends a call's pending requests, and the call's gate is deleted.
func TestWaitsEnd(t *testing.T) {
	for name, tc := range map[string]struct {
		happens func(c *client)
		err     error
	}{
		"unfit":  {func(c *client) { c.b.Refuse(kvstore.ErrBucketConfig) }, kvstore.ErrBucketConfig},
		"closed": {func(c *client) { c.b.Quit() }, bucket.ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(t *testing.T, w *world) {
				w.lock(t, w.client(), reads())
				c := w.client()
				s := w.seek(t, c, writes())
				time.Sleep(time.Second)
				require.Contains(t, w.Keys(t), "rw.x")
				tc.happens(c)
				<-s.done
				require.ErrorIs(t, s.err, tc.err)
				require.Equal(t, time.Second, s.at)
				synctest.Wait()
				require.NotContains(t, w.Keys(t), "rw.x")
			})
		})
	}
}

// A waiter survives an outage and carries on once the server answers again.
func TestOutage(t *testing.T) {
	inMemory(t, func(t *testing.T, w *world) {
		held := w.lock(t, w.client(), mutex())
		c := w.client()
		s := w.seek(t, c, mutex())
		time.Sleep(time.Second)
		c.f.Fail(fmt.Errorf("%w: test", kvstore.ErrUnavailable))
		time.Sleep(time.Minute)
		require.False(t, s.over())
		held.release(t)
		c.f.Fail(nil)
		<-s.done
		require.NoError(t, s.err)
		require.Equal(t, 2, s.places)
		require.Less(t, s.at, time.Minute+10*time.Second)
	})
}
