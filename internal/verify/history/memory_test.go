package history

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// TestTapsAgree checks that the same operations leave the same stream in memory and on a
// server, apart from the IDs, and that the tap of each records it.
func TestTapsAgree(t *testing.T) {
	script := func(t *testing.T, rec *Recorder, newClient func(opts ...natslock.Option) (*natslock.Client, error)) []Entry {
		ctx := context.Background()
		var clients []*Client
		for _, name := range []string{"a", "b"} {
			c, err := newClient(natslock.WithTTL(2*time.Second), natslock.WithTuning(natslock.Tuning{Turn: -1}), rec.Option())
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, c.Close(ctx)) })
			clients = append(clients, rec.Client(name, c))
		}
		for _, w := range []Want{
			{Kind: admin.KindMutex, Name: "m"}, {Kind: admin.KindRW, Name: "w"},
			{Kind: admin.KindRW, Name: "w", Mode: admin.Shared}, {Kind: admin.KindSemaphore, Name: "s", Permits: 1},
		} {
			first, err := clients[0].Acquire(ctx, w)
			require.NoError(t, err)
			time.Sleep(123 * time.Millisecond) // what two clients do at the same instant has no order
			got := make(chan *Held)
			go func() {
				second, err := clients[1].Acquire(ctx, w)
				if err != nil {
					t.Error(err)
				}
				got <- second
			}()
			time.Sleep(5 * time.Second) // long enough for some renewals
			require.NoError(t, first.Unlock(ctx))
			second := <-got
			require.NoError(t, second.Unlock(ctx))
			time.Sleep(5 * time.Second) // until the tombstones have ended
		}
		lost, err := clients[0].Acquire(ctx, Want{Kind: admin.KindMutex, Name: "lost"}, natslock.NoRenew())
		require.NoError(t, err)
		time.Sleep(5 * time.Second)
		require.ErrorIs(t, lost.Unlock(ctx), natslock.ErrLost)
		return rec.History().Stream
	}
	var server, memory []Entry
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		nc := s.Connect()
		first, err := natslock.New(t.Context(), nc) // creates the bucket
		require.NoError(t, err)
		require.NoError(t, first.Close(context.Background()))
		rec := NewRecorder()
		rec.Tap(t, nc)
		server = script(t, rec, func(opts ...natslock.Option) (*natslock.Client, error) { return natslock.New(t.Context(), nc, opts...) })
	})
	kit.InMemory(t, func(t *testing.T, m *kvstore.Memory) {
		rec := NewRecorder()
		rec.TapMemory(t, m)
		l := kit.NewLine(m)
		t.Cleanup(func() { require.Zero(t, l.Close()) })
		memory = script(t, rec, l.NewClient)
	})
	server, memory = alike(server), alike(memory)
	for i := range min(len(server), len(memory)) {
		require.Equal(t, server[i], memory[i])
	}
	require.Len(t, memory, len(server))
	require.Greater(t, len(memory), 60)
}

// alike strips random values and counts revisions from the first one.
func alike(stream []Entry) (list []Entry) {
	number := map[string]string{} // of each random ID and key
	for _, e := range stream {
		lock, role := lockOf(e.Key)
		for _, drawn := range []*string{&e.Key, &e.ID, &e.Owner} {
			if number[*drawn] == "" && *drawn != "" {
				number[*drawn] = role + " of " + lock + " " + string(rune('a'+len(number)))
			}
			*drawn = number[*drawn]
		}
		e.Revision -= stream[0].Revision
		if e.Token != 0 {
			e.Token = 1 // it has the revision of another record
		}
		list = append(list, e)
	}
	return list
}
