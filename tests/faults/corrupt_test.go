package faults_test

import (
	"bytes"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// foreign returns values that no known version of this library has written.
func foreign(t testing.TB) map[string][]byte {
	t.Helper()
	pack := func(v any) []byte {
		b, err := msgpack.Marshal(v)
		require.NoError(t, err)
		return b
	}
	return map[string][]byte{
		"text":          []byte("held by nobody you know"),
		"empty":         nil,
		"JSON":          []byte(`{"v":1,"id":"x","s":1}`),
		"zeros":         make([]byte, 100),
		"a number":      pack(42),
		"other map":     pack(map[string]any{"holder": "me", "since": 17}),
		"version 2":     pack(map[string]any{"v": 2, "s": 1, "id": "x", "l": 10}),
		"no id":         pack(map[string]any{"v": 1, "s": 1, "l": 10}),
		"no status":     pack(map[string]any{"v": 1, "id": "x", "l": 10}),
		"odd status":    pack(map[string]any{"v": 1, "s": 99, "id": "x", "l": 10}),
		"negative TTL":  pack(map[string]any{"v": 1, "s": 1, "id": "x", "l": -10}),
		"wrong types":   pack(map[string]any{"v": "1", "s": []int{1}, "id": 7}),
		"large":         bytes.Repeat([]byte{0x81}, 20<<10),
		"cut off":       pack(map[string]any{"v": 1, "s": 1, "id": "x", "l": 10})[:9],
		"deeply nested": bytes.Repeat([]byte{0x91}, 10_000),
	}
}

func TestCorruptRecord(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, operator := kit.Join(t, s), kit.Join(t, s)
		r := kit.NewRaw(t, s.Connect())
		for what, value := range foreign(t) {
			rev := r.Put("lock.l", value, 0)
			w := c.Await(t, "l")
			time.Sleep(20 * time.Second)
			require.False(t, w.Over(), "%s: held by an unknown owner", what)

			_, err := c.TryLock(t.Context(), "l")
			require.ErrorIs(t, err, natslock.ErrLocked)
			var locked *natslock.LockedError
			require.ErrorAs(t, err, &locked)
			require.Nil(t, locked.Holder, what)
			require.False(t, locked.Own)
			require.Equal(t, 1, locked.Queued)
			require.ErrorContains(t, err, "unknown")

			limited := operator.Await(t, "l", natslock.MaxWait(time.Second))
			err = limited.Failed(t)
			var timeout *natslock.TimeoutError
			require.ErrorAs(t, err, &timeout)
			require.Nil(t, timeout.Holder)
			synctest.Wait() // until its place is deleted, which Lock does not wait for

			info := kit.Inspect(t, operator.Client, "l")
			require.NotNil(t, info.Holder, what)
			require.True(t, info.Holder.Unreadable)
			require.Equal(t, rev, info.Holder.Revision)
			require.Equal(t, record.Token(rev, 0), info.Holder.Token)
			require.Zero(t, info.Holder.Expires)
			n := 0
			for info, err := range admin.New(operator.Client).List(t.Context(), ">") {
				require.NoError(t, err)
				require.Equal(t, "l", info.Name)
				require.True(t, info.Holder.Unreadable)
				require.Len(t, info.Queue, 1)
				n++
			}
			require.Equal(t, 1, n)

			begun := time.Now()
			require.Equal(t, rev, r.Get("lock.l").Sequence, "never overwritten")
			r.Remove("lock.l")
			l := w.Granted(t)
			require.Less(t, w.At.Sub(begun), 50*time.Millisecond, "deleted by hand")
			kit.Unlock(t, l)
			time.Sleep(2 * time.Second)
		}
	})
}

func TestCorruptRecordExpires(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		r := kit.NewRaw(t, s.Connect())
		for what, value := range foreign(t) {
			begun := time.Now()
			r.Put("lock.l", value, 7*time.Second)
			w := c.Await(t, "l")
			l := w.Granted(t)
			require.GreaterOrEqualf(t, w.At.Sub(begun), 7*time.Second, what)
			require.LessOrEqualf(t, w.At.Sub(begun), 7500*time.Millisecond, what)
			kit.Unlock(t, l)
			time.Sleep(2 * time.Second)
		}
	})
}

// TestCorruptRecordIsBroken checks that an operator can break an unreadable record. It contains
// neither a token nor an ID, so both are derived from its revision.
func TestCorruptRecordIsBroken(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, operator := kit.Join(t, s), kit.Join(t, s, natslock.WithTTL(20*time.Second))
		r := kit.NewRaw(t, s.Connect())
		ctx := t.Context()
		id := func(rev uint64) string { return fmt.Sprintf("unreadable-%d", rev) }
		for what, value := range foreign(t) {
			rev := r.Put("lock.l", value, 0)
			require.Equal(t, id(rev), kit.Inspect(t, operator.Client, "l").Holder.ID)
			w := c.Await(t, "l")
			require.ErrorIs(t, admin.New(operator.Client).Break(ctx, admin.BreakRequest{Kind: admin.KindMutex, Name: "l", ID: id(rev - 1)}), natslock.ErrReleased)
			begun := time.Now()
			require.NoError(t, admin.New(operator.Client).Break(ctx, admin.BreakRequest{Kind: admin.KindMutex, Name: "l", ID: id(rev), Reason: "rubbish"}), what)
			h := kit.Inspect(t, operator.Client, "l").Holder
			require.NotNil(t, h.Broken, what)
			require.Equal(t, "rubbish", h.Broken.Reason)
			require.Equal(t, record.Token(rev, 0), h.Token)
			require.Equal(t, id(rev), h.ID, "it stays what it was called")
			require.NoError(t, admin.New(operator.Client).Break(ctx, admin.BreakRequest{Kind: admin.KindMutex, Name: "l", ID: id(rev), Reason: "again"}))
			w.Granted(t)
			require.LessOrEqual(t, w.At.Sub(begun), 20500*time.Millisecond, "it has an end now")
			kit.Unlock(t, w.Value)
			time.Sleep(2 * time.Second)

			rev = r.Put("lock.l", value, time.Hour)
			w = c.Await(t, "l")
			begun = time.Now()
			require.NoError(t, admin.New(operator.Client).Break(ctx, admin.BreakRequest{Kind: admin.KindMutex, Name: "l", ID: id(rev), Reason: "rubbish", Immediately: true}), what)
			w.Granted(t)
			require.Less(t, w.At.Sub(begun), 50*time.Millisecond)
			kit.Unlock(t, w.Value)
			time.Sleep(2 * time.Second)
		}
	})
}

// TestCorruptQueue checks that an unreadable record in the queue is not a place.
func TestCorruptQueue(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		holder, c, other := kit.Join(t, s), kit.Join(t, s), kit.Join(t, s)
		r := kit.NewRaw(t, s.Connect())
		l := kit.Must(t, holder.Lock, "l")
		values := foreign(t)
		i := 0
		rubbish := func() {
			for _, v := range values {
				r.Put("wait.l."+string(rune('a'+i)), v, 0)
				i++
			}
		}
		rubbish()
		first := other.Await(t, "l")
		rubbish()
		second := c.Await(t, "l")
		require.Len(t, kit.Inspect(t, c.Client, "l").Queue, 2)
		time.Sleep(time.Minute)
		begun := time.Now()
		kit.Unlock(t, l)
		kit.Unlock(t, first.Granted(t))
		kit.Unlock(t, second.Granted(t))
		require.Less(t, time.Since(begun), 100*time.Millisecond)
		got, err := other.TryLock(t.Context(), "l")
		require.NoError(t, err, "nor does it queue")
		kit.Unlock(t, got)
		synctest.Wait()
		for info, err := range admin.New(c.Client).List(t.Context(), ">") {
			require.NoError(t, err)
			t.Errorf("listed: %+v", info)
		}
	})
}

// TestCorruptKeys checks that keys that do not belong to the library are not shown as locks.
func TestCorruptKeys(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		r := kit.NewRaw(t, s.Connect())
		kit.Must(t, c.Lock, "l")
		for _, k := range []string{"lock", "lock.=", "lock.=zz", "lock.a=2eb", "lock.a b", "wait", "wait.x", "foreign.l", "x", "read.l"} {
			if k == "lock.a b" {
				continue // a subject cannot contain a space
			}
			r.Put(k, []byte("?"), 0)
		}
		n := 0
		for info, err := range admin.New(c.Client).List(t.Context(), ">") {
			require.NoError(t, err)
			require.Equal(t, "l", info.Name)
			n++
		}
		require.Equal(t, 1, n)
	})
}
