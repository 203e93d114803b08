package faults_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// FuzzStored stores an arbitrary value under the keys of a mutex and of a place in its queue, as
// any user with write permission can. Then it inspects, lists, tries and breaks the lock. The
// record must keep all clients out and never be overwritten, a break by the ID shown must work, and
// nothing else may happen.
func FuzzStored(f *testing.F) {
	s := testutil.RunServer(f)
	c := kit.NewClient(f, s.Connect(), natslock.WithTTL(time.Second))
	other := kit.NewClient(f, s.Connect(), natslock.WithTTL(time.Second))
	nc := s.Connect()
	for _, value := range foreign(f) {
		f.Add(value, false)
		f.Add(value, true)
	}
	for _, b := range []map[string]any{
		{"v": 1, "s": 1, "id": "A", "c": "C", "a": 1, "l": 15, "at": 1, "o": "o", "h": "h", "p": 7, "ps": 2, "d": map[string]string{"k": "v"}},
		{"v": 1, "s": 1, "id": "A", "r": 3, "t": uint64(1) << 63, "l": 15, "f": true},
		{"v": 1, "s": 2, "id": "A", "t": 9, "l": 15, "m": 1},
		{"v": 1, "s": 3, "id": "A", "t": 9, "l": 15, "bb": "me", "br": "\x1b[2J", "ba": 3},
		{"v": 1, "s": 4, "id": "A", "l": 0},
		{"v": 1, "s": 5, "id": "A", "l": 0, "t": 9},
	} {
		value, err := msgpack.Marshal(b)
		require.NoError(f, err)
		f.Add(value, false)
		f.Add(value, true)
	}
	put := func(t *testing.T, key, value, operation string) {
		m := nats.NewMsg(kit.Subjects + key)
		m.Data = []byte(value)
		m.Header.Set("Nats-TTL", "60s") // longer than one run of the fuzz target takes
		if operation != "" {
			m.Header.Set("KV-Operation", operation)
		}
		ack, err := nc.RequestMsg(m, kit.Patience)
		require.NoError(t, err)
		require.NotContains(t, string(ack.Data), "error")
	}
	f.Fuzz(func(t *testing.T, value []byte, deleted bool) {
		ctx, cancel := context.WithTimeout(t.Context(), kit.Patience)
		defer cancel()
		operation := ""
		if deleted {
			operation = "DEL"
		}
		put(t, "wait.x.A", string(value), operation)
		defer put(t, "wait.x.A", "", "DEL")
		put(t, "lock.x", string(value), operation)
		defer put(t, "lock.x", "", "DEL")
		info, err := admin.New(c).Inspect(ctx, admin.KindMutex, "x")
		require.NoError(t, err)
		for got, err := range admin.New(c).List(ctx, ">") {
			require.NoError(t, err)
			require.Equal(t, "x", got.Name)
			require.Equal(t, info, got)
		}
		require.Equal(t, deleted, info.Holder == nil)
		if deleted {
			return
		}
		require.NotZero(t, info.Holder.Token)
		_, err = c.TryLock(ctx, "x")
		if err == nil {
			now, err := admin.New(other).Inspect(ctx, admin.KindMutex, "x")
			require.NoError(t, err)
			t.Fatalf("%+v was overwritten: %+v", info, now)
		}
		require.ErrorIs(t, err, natslock.ErrLocked)
		require.Less(t, len(err.Error()), 4096+4*len(value))
		if err := admin.New(c).Break(ctx, admin.BreakRequest{Kind: admin.KindMutex, Name: "x", ID: info.Holder.ID, Reason: "fuzz"}); err != nil && !errors.Is(err, natslock.ErrReleased) {
			// The record may be so large that the fields of a break do not fit.
			require.True(t, strings.Contains(err.Error(), "bytes") && len(value) > 8<<10, "%v", err)
		}
	})
}
