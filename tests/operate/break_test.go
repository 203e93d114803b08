package operate_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

func breakNow(t testing.TB, c *natslock.Client, l *natslock.Lock, reason string) {
	t.Helper()
	require.NoError(t, admin.New(c).Break(context.Background(), admin.BreakRequest{Kind: admin.KindMutex, Name: l.Name(), ID: l.ID(), Reason: reason, Immediately: true}))
}

func TestBreakTellsTheHolder(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		holder, operator := kit.Join(t, s, natslock.WithTuning(natslock.Tuning{WatchAfter: 1})), kit.Join(t, s, natslock.WithOwner("olga"))
		l := kit.Must(t, holder.Lock, "l", natslock.TTL(time.Hour))
		holder.Events.Wait(t, admin.EventRenewed, "l") // the renewal shows that the watch is in place
		begun := time.Now()
		kit.Break(t, operator.Client, l, "it hangs")
		kit.Receive(t, l.Context().Done(), "the end")
		require.Less(t, time.Since(begun), time.Second, "it takes milliseconds, on an idle machine")
		cause := context.Cause(l.Context())
		require.ErrorIs(t, cause, natslock.ErrBroken)
		require.ErrorIs(t, cause, natslock.ErrLost)
		require.ErrorContains(t, cause, "it hangs")
		require.ErrorContains(t, cause, "olga")

		info := kit.Inspect(t, operator.Client, "l")
		require.NotNil(t, info.Holder)
		require.Equal(t, l.Token(), info.Holder.Token)
		require.Equal(t, &admin.Broken{By: "olga", Reason: "it hangs", At: info.Holder.Broken.At}, info.Holder.Broken)
		require.WithinDuration(t, time.Now(), info.Holder.Broken.At, time.Minute)

		kit.WantLost(t, l, natslock.ErrBroken)
		ev := holder.Events.Wait(t, admin.EventBroken, "l")
		require.ErrorIs(t, ev.Cause, natslock.ErrBroken)
		require.EqualValues(t, 1, holder.Stats().Broken)
		require.Zero(t, holder.Stats().Lost)
	})
}

// TestBreakWaitsForTheHolder checks that nobody gets the lock before the broken holder has stopped.
func TestBreakWaitsForTheHolder(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		holder, other := kit.Join(t, s, natslock.WithTTL(30*time.Second)), kit.Join(t, s)
		l := kit.Must(t, holder.Lock, "l")
		w := other.Await(t, "l")
		time.Sleep(5 * time.Second)
		kit.Break(t, other.Client, l, "")
		synctest.Wait()
		require.ErrorIs(t, l.Err(), natslock.ErrBroken, "notified at once")
		time.Sleep(20 * time.Second) // the holder's work takes a while to stop
		require.False(t, w.Over())
		_, err := other.TryLock(t.Context(), "l")
		var locked *natslock.LockedError
		require.ErrorAs(t, err, &locked)
		require.ErrorContains(t, err, "broken by ")
		freed := time.Now()
		require.ErrorIs(t, l.Unlock(t.Context()), natslock.ErrBroken)
		next := w.Granted(t)
		require.Less(t, w.At.Sub(freed), 50*time.Millisecond)
		require.Greater(t, next.Token(), l.Token())
	})
}

// TestBreakOfDeafHolder checks that a broken holder that misses the notification, and so does not
// stop, keeps others out until its lease ends.
func TestBreakOfDeafHolder(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		const ttl = 30 * time.Second
		holder, other := kit.Join(t, s, natslock.WithTTL(ttl)), kit.Join(t, s)
		l := kit.Must(t, holder.Lock, "l")
		w := other.Await(t, "l")
		time.Sleep(5 * time.Second)
		holder.Link.Blackhole(true)
		time.Sleep(time.Second)
		kit.Break(t, other.Client, l, "")
		broken := time.Now()
		kit.Receive(t, l.Context().Done(), "the end of the validity")
		require.ErrorIs(t, l.Err(), natslock.ErrLost)
		require.False(t, w.Over(), "mutual exclusion holds")
		<-w.Done
		require.NoError(t, w.Err)
		require.LessOrEqual(t, w.At.Sub(broken), ttl+500*time.Millisecond)
		// The old holder's delayed writes must not bring its lock back.
		holder.Link.Heal()
		time.Sleep(time.Minute)
		kit.WantHeld(t, w.Value)
		kit.WantLost(t, l, natslock.ErrLost)
	})
}

// TestBreakWithoutWatch checks that a holder that never watches learns of the break from its next
// renewal, from Unlock or from Extend.
func TestBreakWithoutWatch(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		holder, other := kit.Join(t, s, natslock.WithTuning(natslock.Tuning{WatchAfter: -1})), kit.Join(t, s)
		l := kit.Must(t, holder.Lock, "l", natslock.TTL(15*time.Second))
		time.Sleep(time.Second)
		kit.Break(t, other.Client, l, "why not")
		time.Sleep(3 * time.Second)
		require.NoError(t, l.Err())
		time.Sleep(1500 * time.Millisecond)
		require.ErrorIs(t, l.Err(), natslock.ErrBroken)
		require.ErrorContains(t, l.Err(), "why not")

		// From Unlock.
		l = kit.Must(t, holder.Lock, "m")
		kit.Break(t, other.Client, l, "why not")
		w := other.Await(t, "m")
		require.NoError(t, l.Err())
		require.ErrorIs(t, l.Unlock(t.Context()), natslock.ErrBroken)
		w.Granted(t)

		// From Extend.
		l = kit.Must(t, holder.Lock, "n")
		kit.Break(t, other.Client, l, "why not")
		require.ErrorIs(t, l.Extend(t.Context(), 0), natslock.ErrBroken)
		kit.WantLost(t, l, natslock.ErrBroken)
	})
}

func TestBreakNow(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		holder, other := kit.Join(t, s), kit.Join(t, s)
		l := kit.Must(t, holder.Lock, "l", natslock.TTL(time.Hour))
		w := other.Await(t, "l")
		time.Sleep(5 * time.Second)
		begun := time.Now()
		breakNow(t, other.Client, l, "now!")
		next := w.Granted(t)
		require.Less(t, w.At.Sub(begun), 50*time.Millisecond)
		require.Greater(t, next.Token(), l.Token())
		synctest.Wait()
		require.ErrorIs(t, l.Err(), natslock.ErrLost)
		require.ErrorIs(t, l.Unlock(t.Context()), natslock.ErrLost)
		time.Sleep(time.Hour)
		kit.WantHeld(t, next)
		kit.Unlock(t, next)

		// First a plain break, then an immediate one.
		l = kit.Must(t, holder.Lock, "l", natslock.TTL(time.Hour))
		w = other.Await(t, "l")
		time.Sleep(5 * time.Second)
		kit.Break(t, other.Client, l, "please")
		time.Sleep(5 * time.Second)
		require.False(t, w.Over())
		begun = time.Now()
		breakNow(t, other.Client, l, "enough")
		next = w.Granted(t)
		require.Less(t, w.At.Sub(begun), 50*time.Millisecond)
		require.ErrorIs(t, l.Unlock(t.Context()), natslock.ErrBroken)
		kit.WantHeld(t, next)
	})
}

// TestBreakNowCause checks that a holder notified of an immediate break reports the break as the
// cause.
func TestBreakNowCause(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		holder, other := kit.Join(t, s), kit.Join(t, s)
		l := kit.Must(t, holder.Lock, "l", natslock.TTL(time.Hour))
		time.Sleep(5 * time.Second)
		breakNow(t, other.Client, l, "fire")
		synctest.Wait()
		require.ErrorIs(t, l.Err(), natslock.ErrBroken)
		require.ErrorContains(t, l.Err(), "fire")
	})
}

func TestBreakOnlyWhoWasShown(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		holder, other := kit.Join(t, s), kit.Join(t, s)
		ctx := t.Context()
		old := kit.Must(t, holder.Lock, "l")
		kit.Unlock(t, old)
		require.ErrorIs(t, admin.New(other.Client).Break(ctx, admin.BreakRequest{Kind: admin.KindMutex, Name: "l", ID: old.ID()}), natslock.ErrReleased, "a tombstone")
		l := kit.Must(t, holder.Lock, "l", natslock.NoRenew(), natslock.TTL(time.Hour))
		p := kit.NewTap(t, s.Connect(), ">")
		for _, id := range []string{old.ID(), l.ID()[:25], l.ID() + "A", fmt.Sprintf("unreadable-%d", record.TokenRevision(l.Token())), fmt.Sprint(l.Token())} {
			require.ErrorIs(t, admin.New(other.Client).Break(ctx, admin.BreakRequest{Kind: admin.KindMutex, Name: "l", ID: id}), natslock.ErrReleased)
			require.ErrorIs(t, admin.New(other.Client).Break(ctx, admin.BreakRequest{Kind: admin.KindMutex, Name: "l", ID: id, Immediately: true}), natslock.ErrReleased)
		}
		require.ErrorIs(t, admin.New(other.Client).Break(ctx, admin.BreakRequest{Kind: admin.KindMutex, Name: "l"}), natslock.ErrInvalid)
		require.ErrorIs(t, admin.New(other.Client).Break(ctx, admin.BreakRequest{Kind: admin.KindRW, Name: "l", ID: l.ID()}), natslock.ErrReleased)
		require.ErrorIs(t, admin.New(other.Client).Break(ctx, admin.BreakRequest{Kind: admin.KindMutex, Name: "nobody's", ID: old.ID()}), natslock.ErrReleased)
		require.ErrorIs(t, admin.New(other.Client).Break(ctx, admin.BreakRequest{Kind: admin.KindMutex, Name: "", ID: old.ID()}), natslock.ErrInvalid)
		require.Empty(t, p.Take(t, other.NC), "nothing was written")
		kit.WantHeld(t, l)

		ended, cancel := context.WithCancel(ctx)
		cancel()
		require.ErrorIs(t, admin.New(other.Client).Break(ended, admin.BreakRequest{Kind: admin.KindMutex, Name: "l", ID: l.ID()}), context.Canceled)

		kit.Break(t, other.Client, l, "first")
		require.Len(t, p.Take(t, other.NC), 1)
		kit.Break(t, other.Client, l, "second")
		require.Empty(t, p.Take(t, other.NC), "it is broken already")
		require.Equal(t, "first", kit.Inspect(t, other.Client, "l").Holder.Broken.Reason)

		// ID and token survive renewals, so a break still finds the holder.
		l = kit.Must(t, holder.Lock, "m")
		time.Sleep(time.Minute)
		shown := kit.Inspect(t, other.Client, "m").Holder
		require.Equal(t, []any{l.ID(), l.Token()}, []any{shown.ID, shown.Token})
		kit.Break(t, other.Client, l, "")
	})
}

// TestBreakBehindAMirror checks that an operator behind a lagging mirror can break a lock although
// the mirror reports no record. On a single server the client cannot tell that a mirror is
// answering.
func TestBreakBehindAMirror(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		holder := kit.Join(t, s)
		operator := kit.Join(t, s, faults.WrapStore(func(kv kvstore.KV) kvstore.KV { return &kit.Lagging{KV: kv, Answers: 1} }))
		l := kit.Must(t, holder.Lock, "l")
		require.NoError(t, admin.New(operator.Client).Break(t.Context(), admin.BreakRequest{Name: "l", ID: l.ID()}))
		time.Sleep(10 * time.Second)
		kit.WantLost(t, l, natslock.ErrBroken)
	})
}

// TestBreakOfFixedLease checks that breaking a long fixed lease leaves the end of its record
// unchanged.
func TestBreakOfFixedLease(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		const ttl = 10 * time.Hour
		holder, other := kit.Join(t, s, natslock.WithTuning(natslock.Tuning{WatchAfter: -1})), kit.Join(t, s)
		r := kit.NewRaw(t, s.Connect())
		begun := time.Now()
		l := kit.Must(t, holder.Lock, "l", natslock.NoRenew(), natslock.TTL(ttl))
		time.Sleep(ttl - 10*time.Minute + 1500*time.Millisecond)
		kit.Break(t, other.Client, l, "")
		m := r.Get("lock.l")
		left, err := time.ParseDuration(m.Header.Get("Nats-TTL"))
		require.NoError(t, err)
		end := m.Time.Add(left)
		require.False(t, end.Before(begun.Add(ttl)), "not before the lease would have ended")
		require.Less(t, end.Sub(begun.Add(ttl)), 1100*time.Millisecond)
		kit.WantHeld(t, l) // it neither watches nor renews
		w := other.Await(t, "l")
		<-w.Done
		require.NoError(t, w.Err)
		require.GreaterOrEqual(t, w.At.Sub(begun), ttl)
		require.Less(t, w.At.Sub(begun), ttl+2*time.Second)
		require.Error(t, l.Context().Err())

		// A holder that watches is notified of the break even though it never renews.
		watching := kit.Join(t, s)
		l = kit.Must(t, watching.Lock, "w", natslock.NoRenew(), natslock.TTL(ttl))
		time.Sleep(2 * time.Second)
		kit.Break(t, other.Client, l, "received?")
		synctest.Wait()
		require.ErrorIs(t, l.Err(), natslock.ErrBroken)
		require.ErrorIs(t, l.Unlock(t.Context()), natslock.ErrBroken)
		kept, err := other.TryLock(t.Context(), "w")
		require.NoError(t, err)
		kit.Keep(t, kept)
	})
}

// TestBreakForgedNotification checks that a forged notification causes a renewal or a read and
// nothing else. Any user who may publish to the notification subject can forge one.
func TestBreakForgedNotification(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		holder, other := kit.Join(t, s), kit.Join(t, s)
		r := kit.NewRaw(t, s.Connect())
		renewing := kit.Must(t, holder.Lock, "renewing", natslock.TTL(time.Hour))
		fixed := kit.Must(t, holder.Lock, "fixed", natslock.TTL(time.Hour), natslock.NoRenew())
		w := other.Await(t, "renewing")
		time.Sleep(5 * time.Second)

		// Take the real notification of another lock's break and alter it slightly.
		victim := kit.Must(t, other.Lock, "victim")
		dest := r.Stream().CachedInfo().Config.RePublish.Destination
		received, err := r.NC.SubscribeSync(dest)
		require.NoError(t, err)
		require.NoError(t, r.NC.Flush())
		kit.Break(t, other.Client, victim, "")
		real, err := received.NextMsg(time.Second)
		require.NoError(t, err)
		for _, name := range []string{"renewing", "fixed"} {
			for _, op := range []string{"", "DEL", "PURGE"} {
				for range 20 {
					m := nats.NewMsg(dest[:len(dest)-1] + "lock." + name)
					for k, v := range real.Header {
						m.Header[k] = v
					}
					m.Header.Set("Nats-Subject", kit.Subjects+"lock."+name)
					m.Header.Set("Nats-Sequence", "999999999999999999")
					if op != "" {
						m.Header.Set("KV-Operation", op)
					}
					m.Data = real.Data
					require.NoError(t, r.NC.PublishMsg(m))
				}
			}
		}
		require.NoError(t, r.NC.Flush())
		time.Sleep(10 * time.Second)
		kit.WantHeld(t, renewing)
		kit.WantHeld(t, fixed)
		require.False(t, w.Over(), "nor does a waiter believe it")
		require.Less(t, holder.Events.Count(admin.EventRenewed, "renewing"), 30, "a flood is answered slowly")

		// The genuine notification must still take effect, although its revision is lower.
		kit.Break(t, other.Client, renewing, "")
		kit.Break(t, other.Client, fixed, "")
		synctest.Wait()
		require.ErrorIs(t, renewing.Err(), natslock.ErrBroken)
		require.ErrorIs(t, fixed.Err(), natslock.ErrBroken)
		renewing.Unlock(t.Context())
		w.Granted(t)
	})
}

// TestBreakForgedEvent is TestBreakForgedNotification with events forged at the store interface.
func TestBreakForgedEvent(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, f := kit.JoinFaulty(t, s)
		l := kit.Must(t, c.Lock, "l")
		time.Sleep(2 * time.Second)
		for _, kind := range []kvstore.EventKind{kvstore.Put, kvstore.Deleted, kvstore.Expired, kvstore.Recheck} {
			last := record.TokenRevision(l.Token())
			for _, rev := range []uint64{0, last, last + 1, 1 << 62} {
				f.Forge(kvstore.Event{Kind: kind, Record: kvstore.Record{Key: "lock.l", Revision: rev, Value: []byte("forged")}})
			}
		}
		time.Sleep(time.Minute) // long enough for several renewals
		kit.WantHeld(t, l)
		kit.Unlock(t, l)
	})
}

// TestBreakForgedCause checks that when a lease ends after a forged break, the break is not
// reported as the cause.
func TestBreakForgedCause(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, f := kit.JoinFaulty(t, s)
		r := kit.NewRaw(t, s.Connect())
		until := kit.Must(t, c.Lock, "until", natslock.Until(time.Now().Add(10*time.Second)))
		renewed := kit.Must(t, c.Lock, "renewed")
		time.Sleep(2 * time.Second)
		for _, key := range []string{"lock.until", "lock.renewed"} {
			m := r.Get(key)
			var body map[string]any
			require.NoError(t, msgpack.Unmarshal(m.Data, &body))
			body["s"], body["bb"] = 3, "mallory"
			forged, err := msgpack.Marshal(body)
			require.NoError(t, err)
			require.Positive(t, f.Forge(kvstore.Event{Kind: kvstore.Put, Record: kvstore.Record{Key: key, Revision: m.Sequence + 1, Value: forged}}))
		}
		kit.Receive(t, until.Context().Done(), "the planned end")
		kit.WantEnded(t, until)
		kit.WantHeld(t, renewed)
		c.Link.Cut()
		kit.Receive(t, renewed.Context().Done(), "the end")
		require.ErrorIs(t, renewed.Err(), natslock.ErrLost)
		require.NotErrorIs(t, renewed.Err(), natslock.ErrBroken)
	})
}

// TestBreakByHand checks that deleting the key by hand acts as an immediate break: the holder is
// notified immediately and does not write the key again.
func TestBreakByHand(t *testing.T) {
	for _, how := range []string{"renewed", "fixed"} {
		t.Run(how, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				holder, other := kit.Join(t, s), kit.Join(t, s)
				r := kit.NewRaw(t, s.Connect())
				opts := []natslock.LockOption{natslock.TTL(time.Hour)}
				if how == "fixed" {
					opts = append(opts, natslock.NoRenew())
				}
				l := kit.Must(t, holder.Lock, "l", opts...)
				time.Sleep(5 * time.Second)
				tombstone := r.Remove("lock.l")
				synctest.Wait()
				require.ErrorIs(t, l.Err(), natslock.ErrLost)
				require.NotErrorIs(t, l.Err(), natslock.ErrBroken)
				time.Sleep(time.Hour)
				require.Equal(t, tombstone, r.Get("lock.l").Sequence, "not written again")
				kit.WantLost(t, l, natslock.ErrLost)
				time.Sleep(time.Minute)
				require.Equal(t, tombstone, r.Get("lock.l").Sequence)

				// A hand-made tombstone never expires, but it must not keep anybody out.
				next, err := other.TryLock(t.Context(), "l")
				require.NoError(t, err)
				require.Greater(t, next.Token(), l.Token())
				w := holder.Await(t, "l")
				time.Sleep(5 * time.Second)
				begun := time.Now()
				r.Remove("lock.l")
				w.Granted(t)
				require.Less(t, w.At.Sub(begun), 50*time.Millisecond)
				synctest.Wait()
				require.ErrorIs(t, next.Err(), natslock.ErrLost)
			})
		})
	}
}

// TestBreakOverwritten checks that a holder whose record was overwritten by hand has lost the lock
// and does not write the record again.
func TestBreakOverwritten(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		holder := kit.Join(t, s)
		r := kit.NewRaw(t, s.Connect())
		l := kit.Must(t, holder.Lock, "l")
		time.Sleep(5 * time.Second)
		rev := r.Put("lock.l", []byte("mine now"), time.Hour)
		synctest.Wait()
		require.ErrorIs(t, l.Err(), natslock.ErrLost)
		kit.WantLost(t, l, natslock.ErrLost)
		time.Sleep(time.Minute)
		require.Equal(t, rev, r.Get("lock.l").Sequence)
	})
}
