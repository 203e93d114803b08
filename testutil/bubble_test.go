package testutil_test

import (
	"context"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/testutil"
)

func TestBubbleDay(t *testing.T) {
	real := time.Now()
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		start := time.Now()
		require.Equal(t, time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC), start.UTC())
		kv := bucket(t, s.Connect(), 1)
		expired := 0
		for time.Since(start) < 24*time.Hour {
			_, err := kv.Create(t.Context(), "k", nil, jetstream.KeyTTL(15*time.Minute))
			require.NoError(t, err)
			time.Sleep(15*time.Minute - time.Second)
			_, err = kv.Get(t.Context(), "k")
			require.NoError(t, err, "a second before its end")
			time.Sleep(2 * time.Second)
			_, err = kv.Get(t.Context(), "k")
			require.ErrorIs(t, err, jetstream.ErrKeyNotFound, "a second after its end")
			time.Sleep(time.Minute) // until the delete marker has expired too
			expired++
		}
		require.Equal(t, 90, expired)
	})
	t.Logf("a day took %v", time.Since(real))
}

func TestBubbleIsClean(t *testing.T) {
	// The bubbles run one after the other, with real servers in between, because pools of the process
	// must not carry timers from one to the next.
	bubble := func() {
		testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
			nc, link := s.ConnectLink()
			require.NoError(t, nc.Flush())
			time.Sleep(time.Hour)
			link.Blackhole(true)
			asked := time.Now()
			require.ErrorIs(t, nc.FlushTimeout(2*time.Second), nats.ErrTimeout)
			require.Equal(t, 2*time.Second, time.Since(asked), "by the clock of the bubble")
		})
	}
	use := func(nc *nats.Conn) {
		for range 100 { // a timer for each processor
			require.NoError(t, nc.Flush())
		}
	}
	for range 3 {
		bubble()
		bubble()
		s := testutil.RunServer(t)
		use(s.Connect())
		bubble()
		use(s.Connect()) // connects to a server that was running before the bubble
		bubble()
		use(s.Connect())
		s.Stop()
	}
}

func TestBubbleRestart(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		nc := s.Connect()
		kv := bucket(t, nc, 1)
		rev, err := kv.Create(t.Context(), "k", []byte("v"), jetstream.KeyTTL(time.Hour))
		require.NoError(t, err)
		s.Stop()
		time.Sleep(10 * time.Minute)
		require.False(t, nc.IsConnected())
		s.Restart()
		time.Sleep(time.Second)
		e, err := kv.Get(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, rev, e.Revision())
		time.Sleep(50 * time.Minute)
		_, err = kv.Get(t.Context(), "k")
		require.ErrorIs(t, err, jetstream.ErrKeyNotFound)
	})
}

func TestBubbleInProcessServer(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		nc, err := nats.Connect(s.URL(), nats.InProcessServer(s))
		require.NoError(t, err)
		require.NoError(t, nc.Flush())
		nc.Close()

		nc, err = nats.Connect(s.URL(), s.Dialer())
		require.NoError(t, err)
		require.NoError(t, nc.Flush())
		nc.Close()
	})
}

func TestBubbleManyMessages(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		// Send a lot in both directions at once: on unbuffered pipes client and server could wait for
		// each other.
		const n = 20_000
		nc := s.Connect()
		got := make(chan *nats.Msg, n)
		_, err := nc.ChanSubscribe("x", got)
		require.NoError(t, err)
		for range n {
			require.NoError(t, nc.Publish("x", make([]byte, 300)))
		}
		for range n {
			<-got
		}
	})
}

func TestBubbleWithoutJetStream(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		js, err := jetstream.New(s.Connect())
		require.NoError(t, err)
		_, err = js.AccountInfo(t.Context())
		require.ErrorIs(t, err, jetstream.ErrJetStreamNotEnabled)
	}, testutil.WithoutJetStream())
}

func TestBubbleContextTimeout(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		nc, link := s.ConnectLink()
		link.Blackhole(true)
		ctx, cancel := context.WithTimeout(t.Context(), 7*time.Second)
		defer cancel()
		start := time.Now()
		_, err := nc.RequestWithContext(ctx, "nobody", nil)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 7*time.Second, time.Since(start))
		synctest.Wait()
		_, err = os.Stat(s.StoreDir())
		require.NoError(t, err)
	})
}
