package natslock_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/rwlock"
	"github.com/natslock/locks/testutil"
)

func meta(v string) map[string]string { return map[string]string{"v": v} }

func shownMeta(t testing.TB, c *natslock.Client, name string) map[string]string {
	t.Helper()
	h := kit.Inspect(t, c, name).Holder
	require.NotNil(t, h)
	return h.Meta
}

// TestSetMeta checks that SetMeta is a single write. Once it returns, other clients see the
// metadata, and the lease is renewed.
func TestSetMeta(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, other := kit.Join(t, s), kit.Join(t, s)
		events := make(chan admin.Event, 100)
		go func() {
			for ev := range admin.New(other.Client).Watch(t.Context(), "l") {
				events <- ev
			}
		}()
		synctest.Wait()
		l := kit.Must(t, c.Lock, "l", natslock.Meta(meta("first")))
		time.Sleep(3 * time.Second)
		taps := kit.NewTap(t, s.Connect(), ">")
		given := meta("second")
		require.NoError(t, l.SetMeta(t.Context(), given))
		given["v"] = "changed by the caller"
		require.Len(t, taps.Take(t, c.NC), 1)
		require.Equal(t, meta("second"), shownMeta(t, other.Client, "l"))
		require.Equal(t, 14*time.Second, l.Remaining(), "it is a renewal")

		// The renewals that follow show the metadata as well.
		time.Sleep(time.Minute)
		require.Equal(t, meta("second"), shownMeta(t, other.Client, "l"))
		synctest.Wait()
		var last admin.Event
		for len(events) > 0 {
			if ev := <-events; ev.Type == admin.EventRenewed {
				last = ev
			}
		}
		require.Equal(t, meta("second"), last.Holder.Meta)

		require.NoError(t, l.SetMeta(t.Context(), nil))
		require.Empty(t, shownMeta(t, other.Client, "l"))
		kit.Unlock(t, l)
	})
}

// TestSetMetaRefused checks that SetMeta applies the same limits as Meta, and refuses metadata that
// cannot be stored before it sends anything.
func TestSetMetaRefused(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		size := record.MaxGiven // the size of the smallest metadata that does not fit
		for ; c.TryDo(t.Context(), "fits", func(context.Context, *natslock.Lock) error { return nil },
			natslock.Meta(meta(strings.Repeat("x", size)))) != nil; size-- {
		}
		l := kit.Must(t, c.Lock, "l")
		fixed := kit.Must(t, c.Lock, "fixed", natslock.NoRenew())
		until := kit.Must(t, c.Lock, "until", natslock.Until(time.Now().Add(time.Minute)))
		reader, err := rwlock.New(c.Client).RLock(t.Context(), "rw", natslock.Meta(meta("r")))
		require.NoError(t, err)
		require.NoError(t, l.SetMeta(t.Context(), meta(strings.Repeat("x", size))), "it fits an acquire")
		sent := c.NC.Stats().OutMsgs
		refused(t, l.SetMeta(t.Context(), meta(strings.Repeat("x", size+1))), "the limit is")
		refused(t, fixed.SetMeta(t.Context(), meta("x")), "restart its TTL")
		refused(t, until.SetMeta(t.Context(), meta("x")), "restart its TTL")
		refused(t, reader.SetMeta(t.Context(), meta("x")), "readers share a record")
		require.Equal(t, sent, c.NC.Stats().OutMsgs)

		writer, err := rwlock.New(c.Client).Lock(t.Context(), "rw2")
		require.NoError(t, err)
		require.NoError(t, writer.SetMeta(t.Context(), meta("w")))
		for _, l := range []*natslock.Lock{l, fixed, until, reader, writer} {
			kit.Unlock(t, l)
		}
	})
}

// TestSetMetaEnded checks that a lock that has ended accepts no metadata, and that the error says
// how it ended.
func TestSetMetaEnded(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, other := kit.Join(t, s), kit.Join(t, s)
		released, lost, broken := kit.Must(t, c.Lock, "released"), kit.Must(t, c.Lock, "lost"), kit.Must(t, c.Lock, "broken")
		kit.Unlock(t, released)
		require.ErrorIs(t, released.SetMeta(t.Context(), meta("x")), natslock.ErrReleased)
		require.NoError(t, admin.New(other.Client).Break(t.Context(), admin.BreakRequest{Name: "broken", ID: broken.ID()}))
		require.ErrorIs(t, broken.SetMeta(t.Context(), meta("x")), natslock.ErrBroken, "the write finds it broken")
		require.Empty(t, shownMeta(t, other.Client, "broken"))
		c.Link.Cut()
		begun := time.Now()
		require.ErrorIs(t, lost.SetMeta(context.Background(), meta("x")), natslock.ErrLost)
		require.InDelta(t, 14*time.Second, time.Since(begun), float64(time.Second), "as long as it was valid")
		require.ErrorIs(t, lost.SetMeta(t.Context(), meta("x")), natslock.ErrLost)
		c.Link.Heal()
		_ = broken.Unlock(t.Context())
		_ = lost.Unlock(t.Context())
	})
}

// TestSetMetaContext checks that the outcome is open if there is no reply in time, and that a later
// renewal carries the metadata.
func TestSetMetaContext(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, f := kit.JoinFaulty(t, s)
		other := kit.Join(t, s)
		l := kit.Must(t, c.Lock, "l")
		over, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("enough"))
		sent := c.NC.Stats().OutMsgs
		err := l.SetMeta(over, meta("never asked for"))
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorContains(t, err, "enough")
		require.NotErrorIs(t, err, natslock.ErrUnavailable)
		require.Equal(t, sent, c.NC.Stats().OutMsgs)

		f.OnSend(func(int, kvstore.Write) faults.Fate { return faults.Drop })
		ctx, cancel2 := context.WithTimeout(t.Context(), time.Second)
		defer cancel2()
		err = l.SetMeta(ctx, meta("later"))
		require.ErrorIs(t, err, natslock.ErrUnavailable)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, `"l"`)
		require.Empty(t, shownMeta(t, other.Client, "l"))
		f.OnSend(nil)
		time.Sleep(6 * time.Second)
		require.Equal(t, meta("later"), shownMeta(t, other.Client, "l"))

		// The reply is lost, and the next renewal confirms the metadata.
		f.OnSend(func(int, kvstore.Write) faults.Fate {
			f.OnSend(nil)
			return faults.LoseAnswer
		})
		require.NoError(t, l.SetMeta(t.Context(), meta("last")))
		require.Equal(t, meta("last"), shownMeta(t, other.Client, "l"))
		kit.Unlock(t, l)
	})
}

// TestSetMetaOfARun checks that the record shows the current holder's metadata. A goroutine that
// has passed the lock on must not overwrite its successor's metadata.
func TestSetMetaOfARun(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, f := kit.JoinFaulty(t, s)
		other := kit.Join(t, s)
		first := kit.Must(t, c.Lock, "l", natslock.Meta(meta("first")))
		next := c.Settle(t, natslock.Meta(meta("next")))
		require.NoError(t, first.SetMeta(t.Context(), meta("of the first")))
		require.Equal(t, meta("of the first"), shownMeta(t, other.Client, "l"))

		// The holder leaves while its metadata is in flight.
		f.OnSend(func(int, kvstore.Write) faults.Fate {
			f.OnSend(nil)
			return faults.Delay(50 * time.Millisecond)
		})
		result := make(chan error, 1)
		go func() { result <- first.SetMeta(t.Context(), meta("too late")) }()
		synctest.Wait()
		kit.Unlock(t, first)
		l := next.Granted(t)
		require.ErrorIs(t, kit.Receive(t, result, "the end of SetMeta"), natslock.ErrReleased)
		time.Sleep(time.Second)
		require.Equal(t, meta("next"), shownMeta(t, other.Client, "l"))
		require.ErrorIs(t, first.SetMeta(t.Context(), meta("after")), natslock.ErrReleased)
		time.Sleep(6 * time.Second)
		require.Equal(t, meta("next"), shownMeta(t, other.Client, "l"))
		kit.Unlock(t, l)

		// The metadata of an idle lock does not pass to its next holder either.
		idle := kit.Must(t, c.Lock, "idle", natslock.Linger(time.Minute))
		require.NoError(t, idle.SetMeta(t.Context(), meta("idle")))
		kit.Unlock(t, idle)
		again := kit.Must(t, c.Lock, "idle", natslock.Linger(time.Minute))
		time.Sleep(time.Second)
		require.Empty(t, shownMeta(t, other.Client, "idle"))
		kit.Unlock(t, again)
	})
}

// TestSetMetaTogether sets metadata from several goroutines concurrently. Every call is confirmed,
// and the record has the metadata of one of them.
func TestSetMetaTogether(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, other := kit.Join(t, s), kit.Join(t, s)
		l := kit.Must(t, c.Lock, "l")
		all := map[string]string{}
		results := make(chan error)
		for _, v := range []string{"a", "b", "c", "d"} {
			all[v] = v
			go func() { results <- l.SetMeta(t.Context(), meta(v)) }()
		}
		for range all {
			require.NoError(t, kit.Receive(t, results, "a confirmation"))
		}
		shown := shownMeta(t, other.Client, "l")
		require.True(t, maps.Equal(meta(all[shown["v"]]), shown), "%v", shown)
		kit.Unlock(t, l)
	})
}

// TestSetMetaWithoutRoom checks that metadata is refused if the bucket has no room for it. The lock
// keeps its old metadata and is not lost.
func TestSetMetaWithoutRoom(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s, natslock.WithBucketConfig(kvstore.Config{MaxBytes: 64 << 10}))
		l := kit.Must(t, c.Lock, "l", natslock.TTL(5*time.Second), natslock.Meta(meta("small")))
		r := kit.NewRaw(t, s.Connect())
		for size := 4096; size > 0; size /= 2 {
			for i := 0; ; i++ {
				if _, err := r.JS.Publish(t.Context(), fmt.Sprintf("%slock.fill.%d.%d", kit.Subjects, size, i), make([]byte, size)); err != nil {
					break
				}
			}
		}
		err := l.SetMeta(t.Context(), meta(strings.Repeat("x", 2000)))
		require.ErrorIs(t, err, kvstore.ErrFull)
		require.ErrorContains(t, err, `lock "l"`)
		time.Sleep(time.Minute)
		kit.WantHeld(t, l)
		info, err := admin.New(c.Client).Inspect(t.Context(), admin.KindMutex, "l")
		require.NoError(t, err)
		require.Equal(t, meta("small"), info.Holder.Meta)
		kit.Unlock(t, l)
	})
}

// TestMaxPayload checks that metadata is refused if it exceeds the server's limit, and that the
// lease is unaffected. This holds even if only the write itself reveals the limit.
func TestMaxPayload(t *testing.T) {
	for _, blind := range []bool{false, true} {
		testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
			c := kit.Join(t, s, faults.WrapStore(func(kv kvstore.KV) kvstore.KV {
				if blind {
					return blindToSize{kv}
				}
				return kv
			}))
			meta := func(n int) map[string]string { return map[string]string{"k": strings.Repeat("x", n)} }
			l := kit.Must(t, c.Lock, "l", natslock.Meta(meta(10)))
			require.NoError(t, l.SetMeta(t.Context(), meta(20)))
			begun := time.Now()
			for what, err := range map[string]error{
				"SetMeta": l.SetMeta(t.Context(), meta(3000)),
				"Lock":    func() error { _, err := c.Lock(t.Context(), "m", natslock.Meta(meta(3000))); return err }(),
			} {
				require.ErrorIs(t, err, natslock.ErrInvalid, what)
				require.NotErrorIs(t, err, natslock.ErrUnavailable, what)
			}
			require.Less(t, time.Since(begun), time.Second)
			time.Sleep(2 * time.Minute)
			kit.WantHeld(t, l)
			require.Equal(t, meta(20), kit.Inspect(t, c.Client, "l").Holder.Meta)
			require.NoError(t, l.SetMeta(t.Context(), meta(1000)))
			kit.Unlock(t, l)
		}, testutil.WithConfig(func(o *server.Options) { o.MaxPayload = 3000 }))
	}
}
