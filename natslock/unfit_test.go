package natslock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
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

// reconfigure changes the settings of the bucket, as an administrator does.
func (r *raw) reconfigure(change func(*jetstream.StreamConfig)) {
	r.t.Helper()
	sc := r.stream().CachedInfo().Config
	change(&sc)
	_, err := r.js.UpdateStream(r.t.Context(), sc)
	require.NoError(r.t, err)
}

// reconnect breaks the connection, and returns when it is back.
func (m *member) reconnect(t testing.TB) {
	t.Helper()
	before := m.nc.Stats().Reconnects
	m.link.Cut()
	m.link.Heal()
	kit.Eventually(t, "the connection is back", func() bool { return m.nc.Stats().Reconnects > before && m.nc.IsConnected() })
}

// A client that knows that its bucket is unfit grants nothing, warns its holders, and says
// so. That ends when the bucket is fit again.
func TestUnfitRefuses(t *testing.T) {
	for setting, change := range map[string]func(*jetstream.StreamConfig){
		"discard": func(c *jetstream.StreamConfig) { c.MaxBytes, c.Discard = 1<<20, jetstream.DiscardOld },
		"metadata.natslock.protocol": func(c *jetstream.StreamConfig) {
			c.Metadata["natslock.protocol"] = "4"
		},
	} {
		t.Log(setting)
		testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
			var log journal
			a, b := join(t, s, log.option()), join(t, s)
			r := newRaw(t, s.Connect())
			fit := r.stream().CachedInfo().Config
			warned := make(chan *natslock.Lock, 1)
			held := mustLock(t, a.Client, "held", natslock.TTL(time.Minute), natslock.EarlyWarning(time.Second, func(l *natslock.Lock) { warned <- l }))
			time.Sleep(2 * time.Second) // its subscription begins
			queued := b.await(t, "held")
			queuedHere := a.begin(t, "held")
			time.Sleep(time.Second)

			r.reconfigure(change)
			a.reconnect(t)
			b.reconnect(t)
			require.Same(t, held, kit.ReceiveIn(t, time.Second, warned, "the early warning"))
			ev := a.rec.Wait(t, admin.EventAtRisk, "held")
			require.ErrorIs(t, ev.Cause, kvstore.ErrBucketConfig)
			require.ErrorContains(t, ev.Cause, setting)
			require.Contains(t, log.String(), setting)
			require.Contains(t, log.String(), "level=ERROR")
			for _, w := range []*waiting{queued, queuedHere} {
				kit.ReceiveIn(t, time.Second, w.Done, "the end of the wait")
				require.ErrorIs(t, w.Err, kvstore.ErrBucketConfig)
				require.ErrorContains(t, w.Err, `acquire lock "held"`)
				require.ErrorContains(t, w.Err, setting)
			}
			require.ErrorIs(t, b.rec.Wait(t, admin.EventGaveUp, "held").Cause, kvstore.ErrBucketConfig)

			tap := newTap(t, s.Connect(), ">")
			time.Sleep(2 * time.Second) // the places are gone
			tap.take(t, a.nc, b.nc)
			for _, c := range []*member{a, b} {
				require.ErrorIs(t, c.Healthy(), kvstore.ErrBucketConfig)
				_, err := c.TryLock(t.Context(), "free")
				require.ErrorIs(t, err, kvstore.ErrBucketConfig)
				require.NotErrorIs(t, err, natslock.ErrLocked)
				_, err = c.Lock(t.Context(), "free")
				require.ErrorIs(t, err, kvstore.ErrBucketConfig)
			}
			require.Empty(t, tap.take(t, a.nc, b.nc))
			wantHeld(t, held)
			kit.Unlock(t, held) // frees the lock all the same

			_, err := r.js.UpdateStream(t.Context(), fit)
			require.NoError(t, err)
			time.Sleep(6 * time.Second)
			for _, c := range []*member{a, b} {
				require.NoError(t, c.Healthy())
				kit.Unlock(t, mustLock(t, c.Client, "held"))
			}
			require.Contains(t, log.String(), "fit again")
		})
	}
}

// A bucket that acknowledges nothing is unfit, and no request of an acquire is worth its wait
// for an answer.
func TestUnfitEndsRequests(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		holder := join(t, s)
		r := newRaw(t, s.Connect())
		mustLock(t, holder.Client, "l")
		_, err := rwlock.New(holder.Client).RLock(t.Context(), "rw")
		require.NoError(t, err)
		_, err = semaphore.New(holder.Client, 1).Acquire(t.Context(), "s")
		require.NoError(t, err)
		type wait func(ctx context.Context, c *natslock.Client) error
		lock := func(ctx context.Context, c *natslock.Client) error { _, err := c.Lock(ctx, "l"); return err }
		var clients []*member
		type end struct {
			i   int
			err error
			at  time.Time
		}
		ends := make(chan end, 10)
		for i, w := range []wait{
			lock, // the first
			lock, // one behind it
			func(ctx context.Context, c *natslock.Client) error {
				_, err := rwlock.New(c).Lock(ctx, "rw")
				return err
			},
			func(ctx context.Context, c *natslock.Client) error {
				_, err := semaphore.New(c, 1).Acquire(ctx, "s")
				return err
			},
		} {
			c, f := joinFaulty(t, s)
			f.FailReads(func(op faults.ReadOp, _ string) error {
				if op == faults.ReadState { // a writer that drains waits for its answer
					return faults.Hang
				}
				return nil
			})
			clients = append(clients, c)
			go func() {
				err := w(t.Context(), c.Client)
				ends <- end{i, err, time.Now()}
			}()
			time.Sleep(time.Second)
		}
		r.reconfigure(func(c *jetstream.StreamConfig) { c.NoAck = true })
		known := make([]time.Time, len(clients))
		for _, c := range clients {
			c.link.Cut()
			c.link.Heal()
		}
		for left := len(clients); left > 0; time.Sleep(time.Millisecond) {
			for i, c := range clients {
				if known[i].IsZero() && errors.Is(c.Healthy(), kvstore.ErrBucketConfig) {
					known[i] = time.Now()
					left--
				}
			}
		}
		for range clients {
			e := kit.Receive(t, ends, "the end of an acquire")
			require.ErrorIs(t, e.err, kvstore.ErrBucketConfig, e.i)
			require.LessOrEqual(t, e.at.Sub(known[e.i]), 100*time.Millisecond, e.i) // for its place
		}
	})
}

// A claim ends when the client knows that the bucket is unfit. An answer that comes later
// grants nothing, and its record is deleted.
func TestUnfitClaimUnderWay(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, faulty := joinFaulty(t, s)
		r := newRaw(t, s.Connect())
		kit.Unlock(t, mustLock(t, c.Client, "l"))
		time.Sleep(2 * time.Second)
		faulty.OnSend(func(_ int, w kvstore.Write) faults.Fate {
			if w.Key == "lock.l" && !w.Delete {
				return faults.DelayAnswer(900 * time.Millisecond)
			}
			return faults.Fate{}
		})
		claimed := make(chan error, 1)
		go func() {
			_, err := c.TryLock(t.Context(), "l")
			claimed <- err
		}()
		time.Sleep(10 * time.Millisecond)
		r.reconfigure(func(c *jetstream.StreamConfig) { c.Metadata["natslock.protocol"] = "4" })
		c.reconnect(t)
		kit.Eventually(t, "it is noticed", func() bool { return errors.Is(c.Healthy(), kvstore.ErrBucketConfig) })
		noticed := time.Now()
		require.ErrorIs(t, kit.Receive(t, claimed, "the end of the claim"), kvstore.ErrBucketConfig)
		require.LessOrEqual(t, time.Since(noticed), 100*time.Millisecond) // for its record
		time.Sleep(time.Second)
		require.Empty(t, r.live(">"))
	})
}

// sender is a store whose Send returns when a claim has its answer and wait has returned.
type sender struct {
	kvstore.KV
	wait func()
}

func (s *sender) Send(w kvstore.Write, answer func(kvstore.Answer)) (forget func(), err error) {
	if w.Key != "lock.l" || w.Delete {
		return s.KV.Send(w, answer)
	}
	answered := make(chan struct{})
	forget, err = s.KV.Send(w, func(a kvstore.Answer) { answer(a); close(answered) })
	<-answered
	s.wait()
	return forget, err
}

// An answer that has come before the client knows that the bucket is unfit grants nothing
// either, when it is judged after that.
func TestUnfitAfterTheAnswer(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		answered, known := make(chan struct{}), make(chan struct{})
		c := join(t, s, faults.WrapStore(func(kv kvstore.KV) kvstore.KV {
			return &sender{kv, func() { close(answered); <-known }}
		}))
		r := newRaw(t, s.Connect())
		claimed := make(chan error, 1)
		go func() {
			_, err := c.TryLock(t.Context(), "l")
			claimed <- err
		}()
		kit.Receive(t, answered, "the answer")
		r.reconfigure(func(c *jetstream.StreamConfig) { c.Metadata["natslock.protocol"] = "4" })
		c.reconnect(t)
		kit.Eventually(t, "it is noticed", func() bool { return errors.Is(c.Healthy(), kvstore.ErrBucketConfig) })
		close(known)
		require.ErrorIs(t, kit.Receive(t, claimed, "the end of the claim"), kvstore.ErrBucketConfig)
		time.Sleep(time.Second)
		require.Empty(t, r.live(">"))
	})
}
