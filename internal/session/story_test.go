package session_test

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/keeper"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
)

const (
	ms    = time.Millisecond
	valid = session.DefaultTTL - time.Second
)

// fitness is a store whose bucket is as fit as the test says.
type fitness struct {
	kvstore.KV
	mu  sync.Mutex
	bad error
}

func (f *fitness) Verify(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.bad
}

func (f *fitness) becomes(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bad = err
}

// world is a session with an in-memory bucket and injected faults, plus another client of that bucket.
type world struct {
	*session.Session
	b, others *bucket.Bucket
	f         *faults.Store
	fit       *fitness
	begun     time.Time

	mu     sync.Mutex
	events []session.EventType
	causes []error
}

// inMemory runs fn with a session and closes the session when fn returns.
func inMemory(t *testing.T, cfg session.Config, fn func(t *testing.T, w *world)) {
	synctest.Test(t, func(t *testing.T) {
		m := kvstore.NewMemory(kvstore.DefaultBucket)
		w := &world{f: faults.New(m.Open(), 1), others: bucket.New(m.Open(), "", nil), begun: time.Now()}
		w.fit = &fitness{KV: w.f}
		w.b = bucket.New(w.fit, "", nil)
		w.b.Listen()
		cfg.Observe = func(_ context.Context, ev session.Event) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.events, w.causes = append(w.events, ev.Type), append(w.causes, ev.Cause)
		}
		w.Session = session.New(w.b, cfg)
		defer func() {
			over, cancel := context.WithCancel(context.Background())
			cancel()
			w.b.Quit()
			w.Close(over)
			w.others.KV.Close()
		}()
		fn(t, w)
	})
}

// hold claims a lock and admits a holder.
func (w *world) hold(t *testing.T, name string, change ...func(*keeper.Granted, *session.Admission)) *session.Holder {
	t.Helper()
	g, a := claim(t, w.b, name), session.Admission{Parent: t.Context(), Begun: w.b.Instant()}
	for _, c := range change {
		c(&g, &a)
	}
	h := &session.Holder{}
	admitted, err := w.Hold(g, time.Time{}).Admit(h, a)
	require.NoError(t, err)
	require.True(t, admitted)
	return h
}

// entry returns a lock's record from the bucket.
func (w *world) entry(t *testing.T, name string) record.Entry {
	t.Helper()
	e, err := w.others.Read(t.Context(), "lock."+name, 0)
	require.NoError(t, err)
	return e
}

// broken has an operator break a lock.
func (w *world) broken(t *testing.T, name, why string) {
	t.Helper()
	e := w.entry(t, name)
	e.Body.Status, e.Body.Reason = record.StatusBroken, why
	value, err := e.Body.Encode()
	require.NoError(t, err)
	_, err = w.others.Write(t.Context(), kvstore.Write{Key: e.Key, Value: value, TTL: session.DefaultTTL, Expect: e.Revision})
	require.NoError(t, err)
}

// seen returns the events so far.
func (w *world) seen() []session.EventType {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.events
}

func cause(h *session.Holder) error { return context.Cause(h.Context()) }

// A lease's watch sees a break long before the next renewal. A forged break only leads to a read, which shows nothing.
func TestBreakIsSeen(t *testing.T) {
	inMemory(t, session.Config{}, func(t *testing.T, w *world) {
		h := w.hold(t, "x")
		time.Sleep(2 * time.Second)
		e := w.entry(t, "x")
		e.Body.Status = record.StatusBroken
		value, err := e.Body.Encode()
		require.NoError(t, err)
		require.Equal(t, 1, w.f.Forge(kvstore.Event{Kind: kvstore.Put, Record: kvstore.Record{Key: "lock.x", Revision: e.Revision + 1, Value: value}}))
		time.Sleep(time.Second)
		require.NoError(t, cause(h))
		w.broken(t, "x", "it hung")
		time.Sleep(100 * ms)
		require.ErrorIs(t, cause(h), session.ErrBroken)
		require.ErrorContains(t, cause(h), "it hung")
		require.ErrorIs(t, h.Release(t.Context()), session.ErrBroken)
		require.False(t, w.entry(t, "x").Live(), "its release deletes the broken record")
		seen := w.seen()
		require.Equal(t, session.EventBroken, seen[len(seen)-1])
	})
	inMemory(t, session.Config{WatchAfter: -1}, func(t *testing.T, w *world) { // without a watch, a renewal reveals it
		h := w.hold(t, "x")
		w.broken(t, "x", "it hung")
		time.Sleep(session.DefaultTTL/3 - 200*ms)
		require.NoError(t, cause(h))
		time.Sleep(300 * ms)
		require.ErrorIs(t, cause(h), session.ErrBroken)
	})
}

// A hand-over leaves a fixed record, after which nothing is written under the claim's ID. The context ends first.
func TestHandOff(t *testing.T) {
	inMemory(t, session.Config{}, func(t *testing.T, w *world) {
		h := w.hold(t, "x")
		ended := false
		w.f.OnSend(func(int, kvstore.Write) faults.Fate { ended = h.Context().Err() != nil; return faults.Pass })
		handed, err := h.HandOff(t.Context())
		require.NoError(t, err)
		require.True(t, ended)
		require.ErrorIs(t, cause(h), session.ErrHandedOff)
		require.Equal(t, session.Handed{Name: "x", ID: h.ID(), Token: h.Token(), TTL: session.DefaultTTL}, handed)
		e := w.entry(t, "x")
		require.True(t, e.Live() && e.Fixed)
		time.Sleep(session.DefaultTTL - ms)
		require.Equal(t, e.Revision, w.entry(t, "x").Revision)
		time.Sleep(ms)
		require.True(t, w.entry(t, "x").Zero())
	})
}

// A hand-over fails if its confirmation comes after the previous validity has ended, or not at all. The record is then
// left to its TTL.
func TestHandOffInTime(t *testing.T) {
	for name, fate := range map[string]faults.Fate{"late": faults.DelayAnswer(time.Second / 2), "none": faults.Drop, "lost": faults.LoseAnswer} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, session.Config{}, func(t *testing.T, w *world) {
				h := w.hold(t, "x")
				w.f.OnSend(kit.At("lock renew", faults.Drop))
				time.Sleep(valid - time.Second/4)
				w.f.OnSend(func(int, kvstore.Write) faults.Fate { return fate })
				_, err := h.HandOff(t.Context())
				require.ErrorIs(t, err, bucket.ErrUnavailable)
				require.ErrorContains(t, err, "it will be free when its TTL of 15s has passed")
				w.f.OnSend(nil)
				time.Sleep(session.DefaultTTL)
				require.True(t, w.entry(t, "x").Zero())
			})
		})
	}
}

// A lock that cannot be handed over reports why and remains held.
func TestNotHandedOff(t *testing.T) {
	for name, change := range map[string]func(*keeper.Granted, *session.Admission){
		"it is held for reading":   func(g *keeper.Granted, _ *session.Admission) { g.Body.Mode = uint8(record.Shared) },
		"it is a semaphore permit": func(g *keeper.Granted, _ *session.Admission) { g.Kind = record.Semaphore },
		"it has a minimum hold":    func(_ *keeper.Granted, a *session.Admission) { a.Least = time.Second },
		"it has a fixed end time":  nil,
	} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, session.Config{}, func(t *testing.T, w *world) {
				h := &session.Holder{}
				if change == nil {
					_, err := w.Hold(claim(t, w.b, "x"), time.Now().Add(time.Second)).Admit(h, session.Admission{Parent: t.Context()})
					require.NoError(t, err)
				} else {
					h = w.hold(t, "x", change)
				}
				err := h.MayHandOff()
				require.ErrorIs(t, err, record.ErrInvalidOption)
				require.ErrorContains(t, err, name)
				require.NoError(t, cause(h))
			})
		})
	}
}

// Extend waits for the confirmation of a renewal with the requested TTL. It sends nothing that could not help.
func TestExtend(t *testing.T) {
	inMemory(t, session.Config{}, func(t *testing.T, w *world) {
		h := w.hold(t, "x")
		w.f.OnSend(kit.At("lock renew", faults.DelayAnswer(500*ms)))
		require.NoError(t, h.Extend(t.Context(), time.Hour))
		require.Equal(t, 500*ms, time.Since(w.begun))
		require.Equal(t, clock.NewTerms(time.Hour).Validity()-500*ms, h.Left(), "from the sending on")
		require.Equal(t, time.Hour, w.entry(t, "x").Record.TTL)
		require.ErrorIs(t, h.Extend(t.Context(), ms), clock.ErrInvalidTTL)
		over, cancel := context.WithCancel(t.Context())
		cancel()
		sends := w.f.Counts().Sends
		require.ErrorIs(t, h.Extend(over, 0), context.Canceled)
		require.NoError(t, h.Release(t.Context()))
		require.ErrorIs(t, h.Extend(t.Context(), 0), session.ErrReleased)
		require.Equal(t, sends+1, w.f.Counts().Sends)
	})
	inMemory(t, session.Config{}, func(t *testing.T, w *world) { // the lock ends during the wait
		h := w.hold(t, "x")
		w.f.OnSend(kit.At("lock renew", faults.Drop))
		require.ErrorIs(t, h.Extend(t.Context(), 0), session.ErrLost)
		require.Equal(t, valid, time.Since(w.begun))
	})
	inMemory(t, session.Config{}, func(t *testing.T, w *world) { // a TTL shorter than the early warning
		h := w.hold(t, "x", func(_ *keeper.Granted, a *session.Admission) { a.Warn, a.WarnBefore = func() {}, 5*time.Second })
		require.ErrorIs(t, h.Extend(t.Context(), 2*time.Second), clock.ErrInvalidTTL)
	})
}

// SetMeta waits until the record contains the metadata. If it is too large for the bucket, the lease is renewed with
// the previous metadata.
func TestSetMeta(t *testing.T) {
	inMemory(t, session.Config{}, func(t *testing.T, w *world) {
		h := w.hold(t, "x")
		require.NoError(t, h.SetMeta(t.Context(), map[string]string{"step": "1"}))
		require.EqualValues(t, map[string]string{"step": "1"}, w.entry(t, "x").Meta)
		w.f.OnSend(func(_ int, kw kvstore.Write) faults.Fate {
			if b, err := record.Decode(kw.Value); err == nil && b.Meta["step"] == "2" {
				return faults.Refuse(kvstore.ErrTooLarge)
			}
			return faults.Pass
		})
		require.ErrorIs(t, h.SetMeta(t.Context(), map[string]string{"step": "2"}), kvstore.ErrTooLarge)
		time.Sleep(time.Minute)
		require.NoError(t, cause(h))
		require.EqualValues(t, map[string]string{"step": "1"}, w.entry(t, "x").Meta)
		require.ErrorIs(t, h.SetMeta(t.Context(), map[string]string{"a": string(make([]byte, kvstore.MaxRecord))}), record.ErrInvalidOption)
	})
	for _, change := range []func(*keeper.Granted, *session.Admission){
		func(g *keeper.Granted, _ *session.Admission) { g.Body.Mode = uint8(record.Shared) },
		func(g *keeper.Granted, _ *session.Admission) { g.Body.Fixed = true },
	} {
		inMemory(t, session.Config{}, func(t *testing.T, w *world) {
			require.ErrorIs(t, w.hold(t, "x", change).SetMeta(t.Context(), nil), record.ErrInvalidOption)
		})
	}
}

// The early warning comes once after each confirmation, WarnBefore ahead of the end of the validity.
func TestEarlyWarning(t *testing.T) {
	inMemory(t, session.Config{}, func(t *testing.T, w *world) {
		warned := make(chan time.Duration, 10)
		h := w.hold(t, "x", func(_ *keeper.Granted, a *session.Admission) {
			a.Warn, a.WarnBefore = func() { warned <- time.Since(w.begun) }, 4*time.Second
		})
		time.Sleep(time.Minute)
		require.Empty(t, warned)
		for range 2 {
			w.f.OnSend(kit.At("lock renew", faults.Drop))
			end := time.Since(w.begun) + h.Left()
			time.Sleep(h.Left() - 2*time.Second)
			require.Equal(t, end-4*time.Second, <-warned)
			require.Empty(t, warned)
			w.f.OnSend(nil)
			time.Sleep(2 * time.Second)
			require.NoError(t, cause(h))
		}
	})
}

// Once a holder's handle has been dropped, its lease is no longer renewed and ends with its validity.
func TestDropped(t *testing.T) {
	inMemory(t, session.Config{}, func(t *testing.T, w *world) {
		h := w.hold(t, "x")
		time.Sleep(time.Minute)
		left := h.Left()
		h.Abandon()
		time.Sleep(left)
		synctest.Wait()
		require.ErrorIs(t, cause(h), session.ErrLost)
		require.ErrorContains(t, cause(h), "its handle was dropped without Unlock")
		_, err := h.Lease().Admit(&session.Holder{}, session.Admission{Parent: t.Context()})
		require.Error(t, err, "nobody joins it")
	})
}

// Releasing a lock with a minimum hold leaves a record for the remaining time.
func TestMinimumHold(t *testing.T) {
	inMemory(t, session.Config{}, func(t *testing.T, w *world) {
		h := w.hold(t, "x", func(_ *keeper.Granted, a *session.Admission) { a.Least = 10 * time.Second })
		time.Sleep(4 * time.Second)
		require.NoError(t, h.Release(t.Context()))
		require.ErrorIs(t, cause(h), session.ErrReleased)
		time.Sleep(6*time.Second - ms)
		require.True(t, w.entry(t, "x").Live())
		time.Sleep(2 * time.Second)
		require.False(t, w.entry(t, "x").Live())
	})
}

// When a holder leaves a lease that continues, only its own context ends. The record and the next holder stay.
func TestLeave(t *testing.T) {
	inMemory(t, session.Config{}, func(t *testing.T, w *world) {
		first, second := w.hold(t, "x"), &session.Holder{}
		require.NoError(t, first.Leave(w.b.Instant()))
		require.ErrorIs(t, cause(first), session.ErrReleased)
		admitted, err := first.Lease().Admit(second, session.Admission{Parent: t.Context(), Begun: w.b.Instant()})
		require.NoError(t, err)
		require.True(t, admitted)
		require.Equal(t, first.ID()+".2", second.ID())
		require.Greater(t, second.Token(), first.Token())
		time.Sleep(time.Minute)
		require.NoError(t, cause(second))
		state, _, err := first.Status()
		require.Equal(t, session.Released, state)
		require.ErrorIs(t, err, session.ErrReleased)
		require.Negative(t, first.Left())
		require.EqualValues(t, 2, w.Count(session.EventGranted))
		require.EqualValues(t, 1, w.Count(session.EventReleased))
	})
}

// While the bucket is unfit, no lock is granted and the holders are warned. The bucket is verified repeatedly until it
// is fit again.
func TestUnfit(t *testing.T) {
	inMemory(t, session.Config{}, func(t *testing.T, w *world) {
		h := w.hold(t, "x")
		w.fit.becomes(fmt.Errorf("%w: test", kvstore.ErrBucketConfig))
		time.Sleep(2*time.Minute - ms)
		w.VerifyIfDue()
		synctest.Wait()
		require.NoError(t, w.Healthy())
		time.Sleep(ms)
		w.VerifyIfDue()
		require.Contains(t, w.seen(), session.EventAtRisk)
		require.ErrorIs(t, context.Cause(w.b.Granting()), kvstore.ErrBucketConfig)
		require.ErrorIs(t, w.Healthy(), kvstore.ErrBucketConfig)
		require.NoError(t, cause(h))
		w.fit.becomes(nil)
		time.Sleep(5*time.Second + ms)
		require.NoError(t, w.b.Granting().Err())
		require.NoError(t, w.Healthy())
	})
}

// If the bucket is gone, all leases are lost. If another bucket has replaced it, only those whose records it shows
// survive. The first record found missing triggers the verification.
func TestAnotherBucket(t *testing.T) {
	inMemory(t, session.Config{}, func(t *testing.T, w *world) {
		h := w.hold(t, "x")
		w.fit.becomes(fmt.Errorf("%w: test", kvstore.ErrNotFound))
		w.Verify(t.Context())
		require.ErrorIs(t, cause(h), session.ErrLost)
	})
	inMemory(t, session.Config{WatchAfter: -1}, func(t *testing.T, w *world) {
		x, y, z := w.hold(t, "x"), w.hold(t, "y"), w.hold(t, "z")
		for _, name := range []string{"x", "y"} {
			require.NoError(t, w.others.Delete(t.Context(), "lock."+name, w.entry(t, name).Revision, "A"))
		}
		w.fit.becomes(kvstore.ErrRemade)
		require.Error(t, x.Extend(t.Context(), 0), "its record has gone")
		synctest.Wait()
		require.ErrorIs(t, cause(x), session.ErrLost)
		require.ErrorIs(t, cause(y), session.ErrLost, "by the verification")
		require.NoError(t, cause(z))
	})
}

// When the connection is back, all leases are renewed and the bucket is verified. A closed connection puts the holders
// at risk.
func TestConnection(t *testing.T) {
	inMemory(t, session.Config{}, func(t *testing.T, w *world) {
		h := w.hold(t, "x")
		w.f.Fail(fmt.Errorf("%w: test", kvstore.ErrUnavailable))
		time.Sleep(valid - time.Second)
		require.Error(t, w.Healthy())
		w.f.Fail(nil)
		time.Sleep(ms)
		require.Greater(t, h.Left(), valid-time.Second)
		require.NoError(t, w.Healthy())
	})
}

// A place that ends wakes its waiter, and the session counts the places of a queue.
func TestPlace(t *testing.T) {
	inMemory(t, session.Config{}, func(t *testing.T, w *world) {
		keys := record.KeysOf(record.Mutex, "x")
		g := claim(t, w.b, "x")
		g.Key, g.Body.Status = keys.Place("A"), record.StatusWaiting
		var woken atomic.Int64
		p := w.Queue(g, func() { woken.Add(1) })
		require.Equal(t, 1, w.Places(keys))
		require.Equal(t, g.Revision, p.Ticket())
		require.False(t, p.Gone())
		time.Sleep(session.DefaultTTL) // its renewals find nothing under the key
		require.True(t, p.Gone())
		require.EqualValues(t, 1, woken.Load())
		require.Zero(t, w.Places(keys))
	})
}

// When an operator acts through the holder's own client, the lease ends immediately, with whatever the record then
// shows.
func TestJudge(t *testing.T) {
	inMemory(t, session.Config{WatchAfter: -1}, func(t *testing.T, w *world) {
		h := w.hold(t, "x")
		w.hold(t, "y")
		ends := w.Judge("x")
		require.Len(t, ends, 1)
		ends[0](func(key string) kvstore.Record {
			w.broken(t, "x", "by hand")
			return w.entry(t, "x").Record
		})
		require.ErrorIs(t, cause(h), session.ErrBroken)
		require.Empty(t, w.Judge("x"))
	})
}

// The observer is told of each transition in order, with the cause of an end.
func TestEvents(t *testing.T) {
	inMemory(t, session.Config{}, func(t *testing.T, w *world) {
		h := w.hold(t, "x")
		require.NoError(t, h.Extend(t.Context(), 0))
		require.NoError(t, h.Release(t.Context()))
		lost := w.hold(t, "y")
		w.f.Fail(fmt.Errorf("%w: test", kvstore.ErrUnavailable))
		time.Sleep(valid)
		synctest.Wait()
		require.ErrorIs(t, cause(lost), session.ErrLost)
		w.f.Fail(nil)
		counts := map[session.EventType]int{}
		for _, ev := range w.seen() {
			counts[ev]++
		}
		require.Equal(t, map[session.EventType]int{session.EventGranted: 2, session.EventRenewed: 1, session.EventReleased: 1, session.EventLost: 1}, counts)
		require.ErrorIs(t, w.causes[len(w.causes)-1], session.ErrLost)
		require.True(t, maps.Equal(counts, map[session.EventType]int{
			session.EventGranted: int(w.Count(session.EventGranted)), session.EventRenewed: int(w.Count(session.EventRenewed)),
			session.EventReleased: int(w.Count(session.EventReleased)), session.EventLost: int(w.Count(session.EventLost)),
		}))
	})
}
