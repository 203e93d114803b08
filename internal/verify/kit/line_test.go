package kit

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
)

// TestLine checks that a line loses, delays and reports what a connection does.
func TestLine(t *testing.T) {
	InMemory(t, func(t *testing.T, m *kvstore.Memory) {
		ctx := context.Background()
		l := NewLine(m)
		s, other := l.store(), m.Open()
		defer other.Close()
		var events []kvstore.EventKind
		_, err := s.Watch(">", func(ev kvstore.Event) { events = append(events, ev.Kind) })
		require.NoError(t, err)
		var states []kvstore.ConnState
		s.OnConnection(func(st kvstore.ConnState) { states = append(states, st) })
		answers := map[string]error{}
		send := func(kv kvstore.KV, key string) error {
			_, err := kv.Send(kvstore.Write{Key: key, Value: []byte("v"), TTL: time.Hour}, func(a kvstore.Answer) { answers[key] = a.Err })
			return err
		}
		keys := func() (n int) {
			list, err := other.List(ctx, ">", 0)
			require.NoError(t, err)
			return len(list.Records)
		}

		require.NoError(t, send(s, "plain"))
		synctest.Wait()
		require.Contains(t, answers, "plain")
		require.Equal(t, []kvstore.EventKind{kvstore.Put}, events)

		l.Cut()
		require.ErrorIs(t, send(s, "cut"), kvstore.ErrUnavailable)
		_, err = s.Get(ctx, "plain", 0)
		require.ErrorIs(t, err, kvstore.ErrUnavailable)
		require.ErrorIs(t, s.Healthy(), kvstore.ErrUnavailable)
		require.NoError(t, send(other, "unseen"))
		synctest.Wait()
		require.Len(t, events, 1, "the notification is lost")
		l.Heal()
		time.Sleep(redial)
		synctest.Wait()
		require.Equal(t, []kvstore.EventKind{kvstore.Put, kvstore.Recheck}, events)
		require.Equal(t, []kvstore.ConnState{kvstore.Disconnected, kvstore.Connected}, states)

		l.Blackhole(true)
		require.NoError(t, send(s, "held"))
		begun := time.Now()
		_, err = s.Get(ctx, "plain", 0)
		require.ErrorIs(t, err, kvstore.ErrUnavailable)
		require.Equal(t, answerWait, time.Since(begun))
		require.NotContains(t, answers, "held")
		require.Equal(t, 2, keys(), "it is not there yet")
		s.Close()
		l.Blackhole(false)
		synctest.Wait()
		require.Equal(t, 3, keys(), "it has arrived, after its client was closed")
		require.NotContains(t, answers, "held")
		require.Len(t, events, 2)

		s = l.store()
		l.Blackhole(true)
		require.NoError(t, send(s, "late"))
		require.NoError(t, send(s, "lost"))
		l.Blackhole(false)
		synctest.Wait()
		require.Contains(t, answers, "late", "the answer came late")
		l.Blackhole(true)
		require.NoError(t, send(s, "gone"))
		l.Cut()
		l.Heal()
		time.Sleep(time.Second)
		require.NotContains(t, answers, "gone")
		require.Equal(t, 5, keys(), "what was under way when the line was cut is lost")
		require.Equal(t, 1, l.Close(), "a store is open")
		s.Close()
	})
}
