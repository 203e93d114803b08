package kit

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
)

// The bucket's subject prefix and stream name.
const (
	Subjects   = "$KV.natslock."
	StreamName = "KV_natslock"
)

// Tap counts what is published to the bucket's subjects, whether or not the server accepts it.
type Tap struct {
	nc  *nats.Conn
	sub *nats.Subscription
}

// NewTap counts what is published to a key, which may be a pattern.
func NewTap(t testing.TB, nc *nats.Conn, key string) *Tap {
	t.Helper()
	return NewTapOf(t, nc, Subjects+key)
}

// NewTapOf counts what is published to a subject.
func NewTapOf(t testing.TB, nc *nats.Conn, subject string) *Tap {
	t.Helper()
	sub, err := nc.SubscribeSync(subject)
	require.NoError(t, err)
	require.NoError(t, sub.SetPendingLimits(-1, -1))
	require.NoError(t, nc.Flush())
	return &Tap{nc: nc, sub: sub}
}

// Take returns the messages published since the last call. It first waits for everything that
// the given connections have published so far.
func (p *Tap) Take(t testing.TB, by ...*nats.Conn) []*nats.Msg {
	t.Helper()
	for _, nc := range by {
		require.NoError(t, nc.Flush()) // the server has handled what nc sent
	}
	require.NoError(t, p.nc.Flush()) // what the server has passed on has arrived
	n, _, err := p.sub.Pending()
	require.NoError(t, err)
	msgs := make([]*nats.Msg, n)
	for i := range msgs {
		msgs[i], err = p.sub.NextMsg(time.Second)
		require.NoError(t, err)
	}
	return msgs
}

// Stages counts the keys published to since the last call, by the stage of the write.
func (p *Tap) Stages(t *testing.T, by ...*nats.Conn) map[string]int {
	t.Helper()
	keys, n := map[string]bool{}, map[string]int{}
	for _, m := range p.Take(t, by...) {
		stage := Stage(kvstore.Write{Key: m.Subject[len(Subjects):], Value: m.Data, Delete: m.Header.Get("KV-Operation") != ""})
		if !keys[stage+m.Subject] {
			keys[stage+m.Subject] = true
			n[stage]++
		}
	}
	return n
}

// Raw accesses the bucket as any other program would, without the library.
type Raw struct {
	t  testing.TB
	NC *nats.Conn
	JS jetstream.JetStream
}

// NewRaw accesses the bucket over the given connection.
func NewRaw(t testing.TB, nc *nats.Conn) *Raw {
	t.Helper()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	return &Raw{t: t, NC: nc, JS: js}
}

// Stream returns the bucket's stream.
func (r *Raw) Stream() jetstream.Stream {
	r.t.Helper()
	s, err := r.JS.Stream(context.Background(), StreamName)
	require.NoError(r.t, err)
	return s
}

// Put writes value under key unconditionally.
func (r *Raw) Put(key string, value []byte, ttl time.Duration, hdr ...string) uint64 {
	r.t.Helper()
	m := nats.NewMsg(Subjects + key)
	m.Data = value
	for i := 0; i < len(hdr); i += 2 {
		m.Header.Set(hdr[i], hdr[i+1])
	}
	var opts []jetstream.PublishOpt
	if ttl > 0 {
		opts = append(opts, jetstream.WithMsgTTL(ttl))
	}
	ack, err := r.JS.PublishMsg(context.Background(), m, opts...)
	require.NoError(r.t, err)
	return ack.Sequence
}

// Remove writes a tombstone as the nats command does.
func (r *Raw) Remove(key string) uint64 {
	r.t.Helper()
	return r.Put(key, nil, 0, "KV-Operation", "DEL")
}

// Get returns the record under key, or nil if there is none.
func (r *Raw) Get(key string) *jetstream.RawStreamMsg {
	r.t.Helper()
	m, err := r.Stream().GetLastMsgForSubject(context.Background(), Subjects+key)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil
	}
	require.NoError(r.t, err)
	return m
}

// Live returns the keys under pattern that have a record other than a tombstone.
func (r *Raw) Live(pattern string) []string {
	r.t.Helper()
	info, err := r.Stream().Info(context.Background(), jetstream.WithSubjectFilter(Subjects+pattern))
	require.NoError(r.t, err)
	var keys []string
	for subject := range info.State.Subjects {
		key := strings.TrimPrefix(subject, Subjects)
		if m := r.Get(key); m != nil && m.Header.Get("KV-Operation") == "" {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// Reconfigure changes the bucket's settings as an administrator would.
func (r *Raw) Reconfigure(change func(*jetstream.StreamConfig)) {
	r.t.Helper()
	sc := r.Stream().CachedInfo().Config
	change(&sc)
	_, err := r.JS.UpdateStream(r.t.Context(), sc)
	require.NoError(r.t, err)
}
