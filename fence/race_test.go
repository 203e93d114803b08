package fence_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/fence"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/testutil"
)

var racing = flag.Int("racing", 1500, "how many writes a holder that was superseded sends in each race; the full run has 50000, and stops a leader")

// full reports whether the races run long enough to stop a server during them.
func full() bool { return *racing >= 50000 }

// race lets an older holder write continuously while a younger one opens the fence and writes, over
// and over. The stream's own log decides whether all went well.
type race struct {
	t       *testing.T
	s       jetstream.Stream
	opened  atomic.Uint64 // the greatest token whose Open has returned
	sent    atomic.Int64  // writes by holders that were already superseded when they sent them
	id      atomic.Uint64
	mu      sync.Mutex
	refused map[string]bool   // payloads
	stored  map[string]uint64 // sequences of the payloads that were acknowledged
	unknown int
}

// write sends messages with the payload "token opened id": the writer's token, and the greatest
// token whose Open had returned before the message was sent.
func (r *race) write(f *fence.Fence, token uint64, messages int) {
	ctx, cancel := context.WithTimeout(r.t.Context(), 5*time.Second)
	defer cancel()
	opened := r.opened.Load()
	texts := make([]string, messages)
	batch := make([]*nats.Msg, messages)
	for i := range batch {
		texts[i] = fmt.Sprintf("%d %d %d", token, opened, r.id.Add(1))
		batch[i] = &nats.Msg{Subject: data, Data: []byte(texts[i])}
	}
	var ack *jetstream.PubAck
	var err error
	if messages == 1 {
		ack, err = f.PublishMsg(ctx, batch[0])
	} else {
		ack, err = f.PublishBatch(ctx, batch...)
	}
	fence.Forget(f) // the server itself has to refuse every write
	if opened > token {
		r.sent.Add(1)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, text := range texts {
		switch {
		case err == nil:
			r.stored[text] = ack.Sequence - uint64(messages-1-i)
		case errors.Is(err, fence.ErrUnknown):
			r.unknown++
		default:
			r.refused[text] = true
		}
	}
}

// rounds runs the races. The younger holder of each round is the older one in the next.
func (r *race) rounds(writes int, js func() jetstream.JetStream, between func(round int)) {
	lanes := [][2]int{{1, 1}, {8, 2}, {2, 8}, {8, 1}, {3, 3}}
	perRound := int64(max(150, writes/80))
	for round, token := 0, uint64(1); r.sent.Load() < int64(writes); round, token = round+1, token+2 {
		with := lanes[round%len(lanes)]
		older, err := fence.Open(kit.Bounded(r.t), js(), stream, subject, token, fence.WithLanes(with[0]))
		require.NoError(r.t, err)
		r.opened.Store(token)
		var target atomic.Int64
		target.Store(r.sent.Load() + perRound)
		var wg sync.WaitGroup
		for w := range 4 {
			wg.Go(func() {
				for n := 0; r.sent.Load() < target.Load(); n++ {
					r.write(older, token, 1+(n+w)%2*4*(round%2))
				}
			})
		}
		wg.Go(func() {
			younger, err := fence.Open(kit.Bounded(r.t), js(), stream, subject, token+1, fence.WithLanes(with[1]))
			if err != nil {
				r.t.Error(err)
				target.Store(0) // tells the writers to stop
				return
			}
			r.opened.Store(token + 1)
			for n := 0; n < 200 && r.sent.Load() < target.Load(); n++ {
				r.write(younger, token+1, 1)
			}
		})
		between(round)
		wg.Wait()
	}
}

// judge checks the stream's log. No message in it was refused, or was sent by a holder after a
// greater token had opened the fence. All messages of a greater token follow those of smaller ones.
// Every acknowledged message occurs exactly once, at the acknowledged sequence.
func (r *race) judge() {
	seen := map[string]uint64{}
	var last, end uint64
	for _, m := range logOf(r.t, r.s, data) {
		text := string(m.Data())
		parts := strings.Fields(text)
		require.Len(r.t, parts, 3)
		token, err := strconv.ParseUint(parts[0], 10, 64)
		require.NoError(r.t, err)
		opened, err := strconv.ParseUint(parts[1], 10, 64)
		require.NoError(r.t, err)
		require.GreaterOrEqual(r.t, token, opened, "a stale write was stored: %s", text)
		require.GreaterOrEqual(r.t, token, last, "a stale write was stored behind a newer holder's: %s", text)
		require.False(r.t, r.refused[text], "a write that was refused is stored: %s", text)
		require.Zero(r.t, seen[text], "a write is stored twice: %s", text)
		is, err := m.Metadata()
		require.NoError(r.t, err)
		last, end = token, is.Sequence.Stream
		seen[text] = end
	}
	for text, sequence := range r.stored {
		require.Equal(r.t, sequence, seen[text], "the log, which ends at message %d, has a write elsewhere than acknowledged: %s", end, text)
	}
	r.t.Logf("%d stale writes sent, %d writes stored, %d refused, %d unknown", r.sent.Load(), len(seen), len(r.refused), r.unknown)
}

func newRace(t *testing.T, s jetstream.Stream) *race {
	return &race{t: t, s: s, refused: map[string]bool{}, stored: map[string]uint64{}}
}

func TestRace(t *testing.T) {
	srv := testutil.RunServer(t)
	a, b := kit.JetStream(t, srv.Connect()), kit.JetStream(t, srv.Connect())
	r := newRace(t, orders(t, a, nil))
	var turn atomic.Int64
	r.rounds(*racing, func() jetstream.JetStream {
		if turn.Add(1)%2 == 0 {
			return a
		}
		return b
	}, func(int) {})
	r.judge()
}

func TestRaceReplicated(t *testing.T) {
	tier.Proof(t)
	c := testutil.RunCluster(t, 3)
	var conns []jetstream.JetStream
	for range 3 {
		conns = append(conns, kit.JetStream(t, c.Connect(nats.MaxReconnects(-1))))
	}
	r := newRace(t, orders(t, conns[0], func(c *jetstream.StreamConfig) { c.Replicas = 3 }))
	var turn atomic.Int64
	stepDowns, stopped := 0, -1
	writes := *racing
	if !full() {
		writes /= 3
	}
	r.rounds(writes, func() jetstream.JetStream { return conns[turn.Add(1)%3] }, func(round int) {
		switch {
		case stopped >= 0:
			c.Restart(stopped)
			stopped = -1
		case full() && round%30 == 15:
			stopped = c.Index(c.WaitStreamLeader(t, stream))
			c.Kill(stopped)
		case round%3 == 1:
			c.StepDown(t, stream)
			stepDowns++
		}
	})
	if stopped >= 0 {
		c.Restart(stopped)
	}
	c.WaitStreamLeader(t, stream)
	t.Logf("%d step-downs", stepDowns)
	r.judge()
}
