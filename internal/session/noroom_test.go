package session

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
)

func metaOf(v string) map[string]string { return map[string]string{"v": v} }

func bodyMeta(l *Lease) map[string]string {
	l.s.Lock()
	defer l.s.Unlock()
	return l.Body.Meta
}

// The metadata of a SetMeta that returned nil stays when that of the next one finds no room.
func TestNoRoomAfterAConfirmedSetMeta(t *testing.T) {
	holding(t, record.Exclusive, nil, func(t *testing.T, l *Lease, kv *asked) {
		h := inside(t, l, t.Context())
		first, second := make(chan error, 1), make(chan error, 1)
		go func() { first <- h.SetMeta(t.Context(), metaOf("one")) }()
		require.Len(t, kv.sent(), 1)
		go func() { second <- h.SetMeta(t.Context(), metaOf("two")) }()
		require.Len(t, kv.sent(), 2)
		kv.sent()[0].answer(kvstore.Answer{Revision: 2})
		require.NoError(t, <-first)
		kv.sent()[1].answer(kvstore.Answer{Err: kvstore.ErrFull})
		require.ErrorIs(t, <-second, kvstore.ErrFull)
		require.Equal(t, metaOf("one"), bodyMeta(l))
	})
}

// A refused renewal that was sent before a SetMeta says nothing about the new metadata.
func TestNoRoomBeforeSetMeta(t *testing.T) {
	holding(t, record.Exclusive, nil, func(t *testing.T, l *Lease, kv *asked) {
		h := inside(t, l, t.Context())
		time.Sleep(20*time.Second + time.Millisecond)
		require.Len(t, kv.sent(), 1) // a renewal
		set := make(chan error, 1)
		go func() { set <- h.SetMeta(t.Context(), metaOf("one")) }()
		require.Len(t, kv.sent(), 2)
		kv.sent()[0].answer(kvstore.Answer{Err: kvstore.ErrFull})
		synctest.Wait()
		require.Equal(t, metaOf("one"), bodyMeta(l))
		kv.sent()[1].answer(kvstore.Answer{Revision: 2})
		require.NoError(t, <-set)
	})
}

// A SetMeta that finds no room is undone and puts no lock at risk.
func TestNoRoomIsNoRisk(t *testing.T) {
	var mu sync.Mutex
	risks := 0
	observe := func(_ context.Context, ev Event) {
		mu.Lock()
		defer mu.Unlock()
		if ev.Type == EventAtRisk {
			risks++
		}
	}
	holding(t, record.Exclusive, observe, func(t *testing.T, l *Lease, kv *asked) {
		h := inside(t, l, t.Context())
		set := make(chan error, 1)
		go func() { set <- h.SetMeta(t.Context(), metaOf("one")) }()
		kv.sent()[0].answer(kvstore.Answer{Err: kvstore.ErrTooLarge})
		require.ErrorIs(t, <-set, kvstore.ErrTooLarge)
		kv.sent()[1].answer(kvstore.Answer{Revision: 2})
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		require.Zero(t, risks)
	})
}
