package protocol_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/testutil"
)

// step is one step of the exchange: a message with its replies, a subscription, or a
// notification that arrives on a subscription.
type step struct {
	By, Does string

	Subject string
	Headers map[string]string
	Record  string          // the name of the vector in the body
	JSON    json.RawMessage // the body, if it is not a vector
	Answers []message

	Subscribe string

	Notification string
	Message      *message
}

// message is what a client receives. Texts and records are compared byte for byte. Of a
// reply that contains a server's configuration or clock, only a part is compared.
type message struct {
	Headers map[string]string
	Record  string
	Text    string
	Has     json.RawMessage
}

// anyTime stands for the server's time in a header of a message.
const anyTime = "<time>"

// peer is one client of the exchange.
type peer struct {
	nc   *nats.Conn
	subs map[string]*nats.Subscription
}

// TestExchange replays the exchange in the vectors on a real server, in a bubble, where a
// record of one second outlasts any pause of the machine. The library does not take part,
// but in the end it must find no fault in the bucket.
func TestExchange(t *testing.T) {
	v := read(t)
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		peers := map[string]*peer{}
		for i, e := range v.Exchange {
			p := peers[e.By]
			if p == nil {
				p = &peer{s.Connect(), map[string]*nats.Subscription{}}
				peers[e.By] = p
			}
			t.Logf("%d: %s %s", i, e.By, e.Does)
			p.do(t, v, e)
		}
		js, err := jetstream.New(s.Connect())
		require.NoError(t, err)
		info, err := kvstore.Inspect(t.Context(), js, kvstore.Config{})
		require.NoError(t, err)
		findings, err := kvstore.Examine(kvstore.Config{}, info)
		require.NoError(t, err)
		for _, f := range findings {
			require.Equal(t, kvstore.Fine, f.Level, "%+v", f)
		}
	})
}

func (p *peer) do(t *testing.T, v vectors, e step) {
	t.Helper()
	switch {
	case e.Subscribe != "":
		sub, err := p.nc.SubscribeSync(e.Subscribe)
		require.NoError(t, err)
		p.subs[e.Subscribe] = sub
	case e.Notification != "":
		require.Contains(t, p.subs, e.Notification)
		m, err := p.subs[e.Notification].NextMsg(kit.Patience)
		require.NoError(t, err)
		require.Equal(t, e.Notification, m.Subject)
		v.compare(t, *e.Message, m)
	default:
		out := &nats.Msg{Subject: e.Subject, Reply: p.nc.NewInbox(), Header: nats.Header{}, Data: e.body(t, v)}
		for name, value := range e.Headers {
			out.Header.Set(name, value)
		}
		answers, err := p.nc.SubscribeSync(out.Reply)
		require.NoError(t, err)
		require.NoError(t, p.nc.PublishMsg(out))
		require.NotEmpty(t, e.Answers)
		for _, want := range e.Answers {
			m, err := answers.NextMsg(kit.Patience)
			require.NoError(t, err)
			v.compare(t, want, m)
		}
		require.NoError(t, answers.Unsubscribe())
	}
}

// body returns the body of the message that the step sends.
func (e step) body(t *testing.T, v vectors) []byte {
	t.Helper()
	if e.Record != "" {
		require.Contains(t, v.Records, e.Record)
		return v.Records[e.Record].bytes(t)
	}
	var compact bytes.Buffer
	if e.JSON != nil {
		require.NoError(t, json.Compact(&compact, e.JSON))
	}
	return compact.Bytes()
}

// compare requires that the server has sent the message in the vectors.
func (v vectors) compare(t *testing.T, want message, got *nats.Msg) {
	t.Helper()
	if want.Has != nil {
		var part, all any
		require.NoError(t, json.Unmarshal(want.Has, &part))
		require.NoError(t, json.Unmarshal(got.Data, &all), "%s", got.Data)
		require.True(t, within(part, all), "the answer is %s", got.Data)
		return
	}
	headers := map[string]string{}
	for name, values := range got.Header {
		headers[name] = strings.Join(values, ", ")
	}
	if at, found := headers["Nats-Time-Stamp"]; found {
		_, err := time.Parse(time.RFC3339Nano, at)
		require.NoError(t, err)
		headers["Nats-Time-Stamp"] = anyTime
	}
	if want.Headers == nil {
		want.Headers = map[string]string{}
	}
	require.Equal(t, want.Headers, headers)
	data := []byte(want.Text)
	if want.Record != "" {
		require.Contains(t, v.Records, want.Record)
		data = v.Records[want.Record].bytes(t)
	}
	require.Equal(t, string(data), string(got.Data))
}

// within reports whether part is contained in all. Of objects, only the fields that part has
// are compared.
func within(part, all any) bool {
	fields, object := part.(map[string]any)
	if !object {
		return part == all
	}
	of, object := all.(map[string]any)
	for name, value := range fields {
		if !object || !within(value, of[name]) {
			return false
		}
	}
	return object
}
