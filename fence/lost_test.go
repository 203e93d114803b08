package fence_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/fence"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/testutil"
)

// fate is what happens to one of the publishes to a subject.
type fate int

const (
	pass       fate = iota
	loseAnswer      // the server stores the message, but its ack is lost
	loseAll         // the message never reaches the server
	late            // the message arrives after the next one, and its ack is lost
)

// suffer applies fates to successive publishes to a subject. Any further publishes pass.
func suffer(t *testing.T, js jetstream.JetStream, to string, fates ...fate) jetstream.JetStream {
	var delayed []func() (*jetstream.PubAck, error)
	return &hooked{js, func(m *nats.Msg, send func() (*jetstream.PubAck, error)) (*jetstream.PubAck, error) {
		if m.Subject != to || len(fates) == 0 {
			return send()
		}
		f := fates[0]
		fates = fates[1:]
		switch f {
		case loseAnswer:
			_, err := send()
			require.NoError(t, err)
		case late:
			copied := *m
			copied.Header = nats.Header{}
			for k, v := range m.Header {
				copied.Header[k] = v
			}
			delayed = append(delayed, func() (*jetstream.PubAck, error) { return js.PublishMsg(kit.Bounded(t), &copied) })
		case pass:
			ack, err := send()
			for _, d := range delayed {
				_, err := d()
				require.Error(t, err, "a late message was stored")
			}
			delayed = nil
			return ack, err
		}
		return nil, context.DeadlineExceeded
	}}
}

// TestOpenLostAnswers checks that Open, if replies are lost, finds out whether its message was
// stored, and stores it exactly once.
func TestOpenLostAnswers(t *testing.T) {
	for name, fates := range map[string][]fate{
		"answer": {loseAnswer}, "request": {loseAll}, "both": {loseAll, loseAnswer}, "late": {late, pass},
		"late twice": {late, loseAll, late, pass},
	} {
		t.Run(name, func(t *testing.T) {
			js := kit.JetStream(t, testutil.RunServer(t).Connect())
			s := orders(t, js, nil)
			older := open(t, js, 10)
			f, err := fence.Open(kit.Bounded(t), suffer(t, js, subject, fates...), stream, subject, 20)
			require.NoError(t, err)
			require.Len(t, logOf(t, s, subject), 2)
			publish(t, f, "x")
			stale(t, older, fence.ErrSuperseded)
			require.Equal(t, []string{"x"}, stored(t, s, data))
		})
	}
}

// TestFirstOpenLostAnswers covers a stream's first fence, which has no earlier sequence to compare
// with.
func TestFirstOpenLostAnswers(t *testing.T) {
	js := kit.JetStream(t, testutil.RunServer(t).Connect())
	s := orders(t, js, nil)
	f, err := fence.Open(kit.Bounded(t), suffer(t, js, subject, loseAll, loseAnswer), stream, subject, 20)
	require.NoError(t, err)
	require.Len(t, logOf(t, s, subject), 1)
	publish(t, f, "x")
}

// TestOpenUnanswered checks that an Open that gets no reply returns an error and shuts nobody out,
// and that the next holder can still open the fence.
func TestOpenUnanswered(t *testing.T) {
	srv := testutil.RunServer(t)
	js := kit.JetStream(t, srv.Connect())
	s := orders(t, js, nil)
	older := open(t, js, 10)
	nc, link := srv.ConnectLink()
	// Only the fence's own write goes into the black hole.
	holed := once(kit.JetStream(t, nc), subject, 1, func() { link.Blackhole(true) })
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := fence.Open(ctx, holed, stream, subject, 20)
	require.ErrorIs(t, err, fence.ErrUnknown)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	publish(t, older, "nothing is excluded")
	link.Blackhole(false)
	require.NoError(t, nc.FlushWithContext(kit.Bounded(t)))
	// The write arrives now, so the fence has moved after all.
	require.Eventually(t, func() bool { return markOf(t, s, subject).Token == 20 }, kit.Patience, time.Millisecond)
	stale(t, older, fence.ErrSuperseded)
	open(t, js, 30)
}

// TestWriteLostAnswer checks that a write whose reply is lost is sent only once, and that the next
// write succeeds.
func TestWriteLostAnswer(t *testing.T) {
	js := kit.JetStream(t, testutil.RunServer(t).Connect())
	s := orders(t, js, nil)
	f, err := fence.Open(kit.Bounded(t), suffer(t, js, data, loseAnswer, loseAll), stream, subject, 20)
	require.NoError(t, err)
	for _, text := range []string{"text-1", "text-2"} {
		_, err = f.Publish(kit.Bounded(t), data, []byte(text))
		require.ErrorIs(t, err, fence.ErrUnknown)
		require.NotContains(t, err.Error(), text, "an error shows no value")
		require.NoError(t, f.Err())
	}
	publish(t, f, "next")
	require.Equal(t, []string{"text-1", "next"}, stored(t, s, data))
}

// TestLateWrite covers a write that arrives long after its sender gave up. The server stores it if
// the fence is still open, and refuses it if the same or a greater token has opened the fence in
// the meantime.
func TestLateWrite(t *testing.T) {
	for name, c := range map[string]struct {
		token  uint64 // opens the fence in the meantime
		stored int
	}{"same fence": {0, 4}, "same token": {10, 0}, "greater token": {20, 0}} {
		t.Run(name, func(t *testing.T) {
			srv := testutil.RunServer(t)
			js := kit.JetStream(t, srv.Connect())
			s := orders(t, js, nil)
			nc, link := srv.ConnectLink()
			f := open(t, kit.JetStream(t, nc), 10, fence.WithLanes(2))
			link.Blackhole(true)
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			_, err := f.Publish(ctx, data, []byte("late"))
			require.ErrorIs(t, err, fence.ErrUnknown)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			m := &nats.Msg{Subject: data, Data: []byte("late")}
			_, err = f.PublishBatch(ctx, m, m, m)
			require.ErrorIs(t, err, fence.ErrUnknown)
			if c.token > 0 {
				publish(t, open(t, js, c.token), "first")
			}
			link.Blackhole(false)
			// This request follows the late writes on the same connection, so its reply comes after
			// theirs.
			_, err = nc.RequestWithContext(kit.Bounded(t), "orders.last", nil)
			require.NoError(t, err)
			var late int
			for _, text := range stored(t, s, data) {
				late += strings.Count(text, "late")
			}
			require.Equal(t, c.stored, late)
		})
	}
}

// TestPausedHolder pauses a holder until its lock has ended, and then lets it write again.
func TestPausedHolder(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, srv *testutil.Server) {
		js := kit.JetStream(t, srv.Connect())
		s := orders(t, js, nil)
		paused, link := lockOf(t, srv)
		f := open(t, kit.JetStream(t, srv.Connect()), paused.Token())
		publish(t, f, "before the pause")
		link.Cut()
		next, _ := lockOf(t, srv) // waits for the lease to end
		younger := open(t, js, next.Token())
		publish(t, younger, "next")
		for range 10 {
			stale(t, f, fence.ErrSuperseded)
			fence.Forget(f)
		}
		publish(t, younger, "next")
		require.Equal(t, []string{"before the pause", "next", "next"}, stored(t, s, data))
	})
}
