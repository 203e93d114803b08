package testutil_test

import (
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/testutil"
)

// inBoth runs a test in a bubble and over TCP. pause lets the time d pass in the bubble, and hardly
// any over TCP.
func inBoth(t *testing.T, fn func(t *testing.T, s *testutil.Server, pause func(d time.Duration))) {
	t.Run("bubble", func(t *testing.T) {
		testutil.Bubble(t, func(t *testing.T, s *testutil.Server) { fn(t, s, time.Sleep) })
	})
	t.Run("tcp", func(t *testing.T) {
		fn(t, testutil.RunServer(t), func(time.Duration) { time.Sleep(20 * time.Millisecond) })
	})
}

// echo subscribes to "x" and returns the channel that receives its messages.
func echo(t *testing.T, s *testutil.Server) chan *nats.Msg {
	t.Helper()
	nc := s.Connect()
	got := make(chan *nats.Msg, 1000)
	_, err := nc.ChanSubscribe("x", got)
	require.NoError(t, err)
	require.NoError(t, nc.Flush())
	return got
}

func TestLinkCutAndHeal(t *testing.T) {
	inBoth(t, func(t *testing.T, s *testutil.Server, pause func(time.Duration)) {
		states := make(chan string, 10)
		nc, link := s.ConnectLink(
			nats.DisconnectErrHandler(func(_ *nats.Conn, err error) { states <- "down" }),
			nats.ReconnectHandler(func(*nats.Conn) { states <- "up" }))
		require.NoError(t, nc.Flush())
		require.Equal(t, 1, link.Dials())

		link.Cut()
		require.Equal(t, "down", <-states)
		kit.Eventually(t, "it tries to come back", func() bool { return link.Dials() > 2 })
		pause(time.Minute)
		require.False(t, nc.IsConnected())
		_, err := link.Dial("tcp", "127.0.0.1:1")
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		kit.Eventually(t, "the server notices", func() bool { return s.Server().NumClients() == 0 })

		link.Heal()
		require.Equal(t, "up", <-states)
		require.NoError(t, nc.Flush())
		require.Empty(t, states)
	})
}

func TestLinkBlackholeDeliversLate(t *testing.T) {
	inBoth(t, func(t *testing.T, s *testutil.Server, pause func(time.Duration)) {
		got := echo(t, s)
		nc, link := s.ConnectLink()
		back := make(chan *nats.Msg, 1000)
		_, err := nc.ChanSubscribe("x", back)
		require.NoError(t, err)
		require.NoError(t, nc.Flush())

		link.Blackhole(true)
		for range 100 {
			require.NoError(t, nc.Publish("x", []byte("late")))
		}
		require.ErrorIs(t, nc.FlushTimeout(100*time.Millisecond), nats.ErrTimeout)
		pause(30 * time.Second)
		require.True(t, nc.IsConnected(), "nobody noticed")
		require.Empty(t, got)
		require.Empty(t, back)
		_, err = link.Dial("tcp", "127.0.0.1:1")
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		var ne net.Error
		require.True(t, errors.As(err, &ne) && ne.Timeout())

		link.Blackhole(false)
		for range 100 {
			<-got
			<-back
		}
		require.NoError(t, nc.Flush())
		require.Equal(t, 2, link.Dials(), "the client's and this test's")
	})
}

func TestLinkBlackholeThenCutLoses(t *testing.T) {
	inBoth(t, func(t *testing.T, s *testutil.Server, pause func(time.Duration)) {
		got := echo(t, s)
		up := make(chan struct{}, 1)
		nc, link := s.ConnectLink(nats.ReconnectHandler(func(*nats.Conn) { up <- struct{}{} }))
		require.NoError(t, nc.Flush())
		link.Blackhole(true)
		require.NoError(t, nc.Publish("x", nil))
		require.Error(t, nc.FlushTimeout(50*time.Millisecond))
		link.Cut()
		link.Heal()
		<-up
		require.NoError(t, nc.Flush())
		pause(time.Second)
		require.Empty(t, got)
	})
}

// TestLinkBlackholeOutlivesConnection checks that data written into a black hole still arrives
// after the client has given up the connection, so that a publish can be applied long after it
// timed out.
func TestLinkBlackholeOutlivesConnection(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		got := echo(t, s)
		down := make(chan error, 1)
		nc, link := s.ConnectLink(
			nats.PingInterval(10*time.Second), nats.MaxPingsOutstanding(1),
			nats.DisconnectErrHandler(func(_ *nats.Conn, err error) { down <- err }))
		require.NoError(t, nc.Flush())
		link.Blackhole(true)
		require.NoError(t, nc.Publish("x", nil))
		require.ErrorIs(t, <-down, nats.ErrStaleConnection)
		time.Sleep(30 * time.Second)
		require.Empty(t, got)
		require.False(t, nc.IsConnected())

		link.Heal()
		<-got
		time.Sleep(time.Second)
		require.True(t, nc.IsConnected())
		require.Empty(t, got)
	})
}

func TestLinkBlackholeForAClosedClient(t *testing.T) {
	inBoth(t, func(t *testing.T, s *testutil.Server, pause func(time.Duration)) {
		got := echo(t, s)
		nc, link := s.ConnectLink()
		require.NoError(t, nc.Flush())
		link.Blackhole(true)
		require.NoError(t, nc.Publish("x", nil))
		nc.Close()
		pause(time.Second)
		require.Empty(t, got)
		link.Heal()
		<-got
		kit.Eventually(t, "the connection ends then", func() bool { return s.Server().NumClients() == 1 })
	})
}

func TestLinkBlockWrites(t *testing.T) {
	inBoth(t, func(t *testing.T, s *testutil.Server, pause func(time.Duration)) {
		got := echo(t, s)
		nc, link := s.ConnectLink()
		in := make(chan *nats.Msg, 1)
		_, err := nc.ChanSubscribe("in", in)
		require.NoError(t, err)
		require.NoError(t, nc.Flush())

		link.BlockWrites(true)
		require.NoError(t, nc.Publish("x", nil)) // buffered; the flusher gets stuck
		pause(10 * time.Second)
		require.Empty(t, got)
		require.NoError(t, s.Connect().Publish("in", nil))
		if t.Name() == "TestLinkBlockWrites/tcp" {
			<-in // the other direction still works
		}

		link.BlockWrites(false)
		<-got
		if t.Name() == "TestLinkBlockWrites/bubble" {
			<-in
		}
		require.NoError(t, nc.Flush())
	})
}

func TestLinkBlockWritesEndsWithTheConnection(t *testing.T) {
	inBoth(t, func(t *testing.T, s *testutil.Server, pause func(time.Duration)) {
		nc, link := s.ConnectLink()
		require.NoError(t, nc.Flush())
		link.BlockWrites(true)
		require.NoError(t, nc.Publish("x", nil))
		pause(10 * time.Second)
		// The cleanup can close the link and the client despite the blocked write.
	})
}

func TestLinkConnDeadlines(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		_, link := s.ConnectLink()
		c, err := link.Dial("tcp", "127.0.0.1:4222")
		require.NoError(t, err)
		buf := make([]byte, 4096)
		n, err := c.Read(buf)
		require.NoError(t, err)
		require.Contains(t, string(buf[:n]), "INFO {")

		start := time.Now()
		require.NoError(t, c.SetReadDeadline(start.Add(time.Second)))
		_, err = c.Read(buf)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.Equal(t, time.Second, time.Since(start))

		link.BlockWrites(true)
		require.NoError(t, c.SetWriteDeadline(start.Add(3*time.Second)))
		_, err = c.Write([]byte("PING\r\n"))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.Equal(t, 3*time.Second, time.Since(start))
		require.NoError(t, c.SetDeadline(time.Time{}))
		link.BlockWrites(false)

		link.Blackhole(true)
		require.NoError(t, c.SetReadDeadline(time.Now().Add(time.Hour)))
		_, err = c.Read(buf)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		link.Heal()

		require.NoError(t, c.Close())
		require.NoError(t, c.Close())
		_, err = c.Read(buf)
		require.ErrorIs(t, err, net.ErrClosed)
		_, err = c.Write(buf)
		require.ErrorIs(t, err, net.ErrClosed)
	})
}
