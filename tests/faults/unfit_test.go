package faults_test

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

// TestUnfitRefuses checks that a client that knows its bucket to be unfit grants nothing, warns its
// holders and reports why, until the bucket is fit again.
func TestUnfitRefuses(t *testing.T) {
	for setting, change := range map[string]func(*jetstream.StreamConfig){
		"discard": func(c *jetstream.StreamConfig) { c.MaxBytes, c.Discard = 1<<20, jetstream.DiscardOld },
		"metadata.natslock.protocol": func(c *jetstream.StreamConfig) {
			c.Metadata["natslock.protocol"] = "4"
		},
	} {
		t.Log(setting)
		testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
			var log kit.Log
			a, b := kit.Join(t, s, log.Option()), kit.Join(t, s)
			r := kit.NewRaw(t, s.Connect())
			fit := r.Stream().CachedInfo().Config
			warned := make(chan *natslock.Lock, 1)
			held := kit.Must(t, a.Lock, "held", natslock.TTL(time.Minute), natslock.EarlyWarning(time.Second, func(l *natslock.Lock) { warned <- l }))
			time.Sleep(2 * time.Second) // long enough for its subscription to begin
			queued := b.Await(t, "held")
			queuedHere := a.Begin(t, "held")
			time.Sleep(time.Second)

			r.Reconfigure(change)
			a.Reconnect(t)
			b.Reconnect(t)
			require.Same(t, held, kit.ReceiveIn(t, time.Second, warned, "the early warning"))
			ev := a.Events.Wait(t, admin.EventAtRisk, "held")
			require.ErrorIs(t, ev.Cause, kvstore.ErrBucketConfig)
			require.ErrorContains(t, ev.Cause, setting)
			require.Contains(t, log.String(), setting)
			require.Contains(t, log.String(), "level=ERROR")
			for _, w := range []*kit.Waiting{queued, queuedHere} {
				kit.ReceiveIn(t, time.Second, w.Done, "the end of the wait")
				require.ErrorIs(t, w.Err, kvstore.ErrBucketConfig)
				require.ErrorContains(t, w.Err, `acquire lock "held"`)
				require.ErrorContains(t, w.Err, setting)
			}
			require.ErrorIs(t, b.Events.Wait(t, admin.EventGaveUp, "held").Cause, kvstore.ErrBucketConfig)

			tap := kit.NewTap(t, s.Connect(), ">")
			time.Sleep(2 * time.Second) // by now the places have been deleted
			tap.Take(t, a.NC, b.NC)
			for _, c := range []*kit.Member{a, b} {
				require.ErrorIs(t, c.Healthy(), kvstore.ErrBucketConfig)
				_, err := c.TryLock(t.Context(), "free")
				require.ErrorIs(t, err, kvstore.ErrBucketConfig)
				require.NotErrorIs(t, err, natslock.ErrLocked)
				_, err = c.Lock(t.Context(), "free")
				require.ErrorIs(t, err, kvstore.ErrBucketConfig)
			}
			require.Empty(t, tap.Take(t, a.NC, b.NC))
			kit.WantHeld(t, held)
			kit.Unlock(t, held) // still frees the lock

			_, err := r.JS.UpdateStream(t.Context(), fit)
			require.NoError(t, err)
			time.Sleep(6 * time.Second)
			for _, c := range []*kit.Member{a, b} {
				require.NoError(t, c.Healthy())
				kit.Unlock(t, kit.Must(t, c.Lock, "held"))
			}
			require.Contains(t, log.String(), "fit again")
		})
	}
}

// TestUnfitEndsRequests checks that acquires stop waiting for replies once their client knows that
// the bucket is unfit, here because it acknowledges nothing.
func TestUnfitEndsRequests(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		holder := kit.Join(t, s)
		r := kit.NewRaw(t, s.Connect())
		kit.Must(t, holder.Lock, "l")
		_, err := rwlock.New(holder.Client).RLock(t.Context(), "rw")
		require.NoError(t, err)
		_, err = semaphore.New(holder.Client, 1).Acquire(t.Context(), "s")
		require.NoError(t, err)
		type wait func(ctx context.Context, c *natslock.Client) error
		lock := func(ctx context.Context, c *natslock.Client) error { _, err := c.Lock(ctx, "l"); return err }
		var clients []*kit.Member
		type end struct {
			i   int
			err error
			at  time.Time
		}
		ends := make(chan end, 10)
		for i, w := range []wait{
			lock, // first in the queue
			lock, // behind the first
			func(ctx context.Context, c *natslock.Client) error {
				_, err := rwlock.New(c).Lock(ctx, "rw")
				return err
			},
			func(ctx context.Context, c *natslock.Client) error {
				_, err := semaphore.New(c, 1).Acquire(ctx, "s")
				return err
			},
		} {
			c, f := kit.JoinFaulty(t, s)
			f.FailReads(func(op faults.ReadOp, _ string) error {
				if op == faults.ReadState { // a writer waits for this reply while readers drain
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
		r.Reconfigure(func(c *jetstream.StreamConfig) { c.NoAck = true })
		known := make([]time.Time, len(clients))
		for _, c := range clients {
			c.Link.Cut()
			c.Link.Heal()
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
			require.LessOrEqual(t, e.at.Sub(known[e.i]), 100*time.Millisecond, e.i) // time to delete its place
		}
	})
}

// TestUnfitClaimUnderWay checks that a claim ends once the client knows that the bucket is unfit. A
// later acknowledgment grants nothing, and the record is deleted.
func TestUnfitClaimUnderWay(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, faulty := kit.JoinFaulty(t, s)
		r := kit.NewRaw(t, s.Connect())
		kit.Unlock(t, kit.Must(t, c.Lock, "l"))
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
		r.Reconfigure(func(c *jetstream.StreamConfig) { c.Metadata["natslock.protocol"] = "4" })
		c.Reconnect(t)
		kit.Eventually(t, "it is noticed", func() bool { return errors.Is(c.Healthy(), kvstore.ErrBucketConfig) })
		noticed := time.Now()
		require.ErrorIs(t, kit.Receive(t, claimed, "the end of the claim"), kvstore.ErrBucketConfig)
		require.LessOrEqual(t, time.Since(noticed), 100*time.Millisecond) // time to delete its record
		time.Sleep(time.Second)
		require.Empty(t, r.Live(">"))
	})
}

// sender is a store whose Send returns only after the claim has its reply and wait has returned.
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

// TestUnfitAfterTheAnswer checks that a reply grants nothing if the client learns that the bucket
// is unfit after the reply has arrived but before it is evaluated.
func TestUnfitAfterTheAnswer(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		answered, known := make(chan struct{}), make(chan struct{})
		c := kit.Join(t, s, faults.WrapStore(func(kv kvstore.KV) kvstore.KV {
			return &sender{kv, func() { close(answered); <-known }}
		}))
		r := kit.NewRaw(t, s.Connect())
		claimed := make(chan error, 1)
		go func() {
			_, err := c.TryLock(t.Context(), "l")
			claimed <- err
		}()
		kit.Receive(t, answered, "the answer")
		r.Reconfigure(func(c *jetstream.StreamConfig) { c.Metadata["natslock.protocol"] = "4" })
		c.Reconnect(t)
		kit.Eventually(t, "it is noticed", func() bool { return errors.Is(c.Healthy(), kvstore.ErrBucketConfig) })
		close(known)
		require.ErrorIs(t, kit.Receive(t, claimed, "the end of the claim"), kvstore.ErrBucketConfig)
		time.Sleep(time.Second)
		require.Empty(t, r.Live(">"))
	})
}
