package protocol_test

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/natslock/locks/internal/verify/kit"
)

// This file acts as another client through single writes and reads, as docs/protocol
// describes them. It shares no code with the library. Its leases outlast the tests, so it
// renews nothing.

// lease is the TTL of all the raw client's records.
const lease = "60s"

// never is a revision that no record has.
const never = 999_999_999_999_999_999

// fields are the fields of a record.
type fields map[string]any

// stored is a record as it was read or notified. Revision 0 means that there is none.
type stored struct {
	key      string
	revision uint64
	deleted  bool
	end      time.Time // when the TTL ends, by the server's clock
	fields
}

func (s stored) live() bool { return s.revision > 0 && !s.deleted }

func (s stored) text(field string) string {
	text, _ := s.fields[field].(string)
	return text
}

func (s stored) number(field string) uint64 {
	switch n := s.fields[field].(type) {
	case int64:
		return uint64(n)
	case uint64:
		return n
	}
	return 0
}

// raw is a client that does what a test says and nothing else.
type raw struct {
	t      testing.TB
	nc     *nats.Conn
	client string
	notify string // the subject prefix of notifications
}

func newRaw(t testing.TB, nc *nats.Conn) *raw {
	t.Helper()
	l := &raw{t: t, nc: nc, client: rand.Text()}
	var info struct {
		Config struct {
			Republish struct{ Dest string }
			Metadata  map[string]string
		}
	}
	l.api("STREAM.INFO.KV_natslock", nil, &info)
	require.Equal(t, "3", info.Config.Metadata["natslock.protocol"])
	l.notify = strings.TrimSuffix(info.Config.Republish.Dest, ">")
	return l
}

// api makes a request to the JetStream API.
func (l *raw) api(subject string, request, answer any) {
	l.t.Helper()
	body, err := json.Marshal(request)
	require.NoError(l.t, err)
	m, err := l.nc.Request("$JS.API."+subject, body, kit.Patience)
	require.NoError(l.t, err)
	require.NoError(l.t, json.Unmarshal(m.Data, answer))
}

// record returns the record of a claim.
func (l *raw) record(status int, id string, more fields) fields {
	f := fields{"v": 1, "s": status, "id": id, "c": l.client, "l": 60, "a": 1, "o": "plain"}
	for name, value := range more {
		f[name] = value
	}
	return f
}

// write repeats a conditional write until the server has either stored it, at the returned
// revision, or refused it because the last revision is a different one.
func (l *raw) write(key string, body fields, expect uint64, ttl string, more ...string) (revision, last uint64, ok bool) {
	l.t.Helper()
	data, err := msgpack.Marshal(body)
	require.NoError(l.t, err)
	m := &nats.Msg{Subject: "$KV.natslock." + key, Header: nats.Header{}, Data: data}
	m.Header.Set("Nats-Expected-Last-Subject-Sequence", decimal(expect))
	m.Header.Set("Nats-TTL", ttl)
	for i := 0; i < len(more); i += 2 {
		m.Header.Set(more[i], more[i+1])
	}
	for {
		answer, err := l.nc.RequestMsg(m, kit.Patience)
		require.NoError(l.t, err)
		var ack struct {
			Seq   uint64
			Error *struct {
				ErrCode     int `json:"err_code"`
				Description string
			}
		}
		require.NoError(l.t, json.Unmarshal(answer.Data, &ack))
		switch {
		case ack.Error == nil:
			return ack.Seq, 0, true
		case ack.Error.ErrCode == 10071:
			n, err := strconv.ParseUint(strings.TrimPrefix(ack.Error.Description, "wrong last sequence: "), 10, 64)
			require.NoError(l.t, err)
			return 0, n, false
		default: // another write is in flight
			require.Equal(l.t, 10164, ack.Error.ErrCode, ack.Error.Description)
		}
	}
}

// remove writes a tombstone and requires that the record is at the expected revision.
func (l *raw) remove(key string, status int, id string, expect uint64) uint64 {
	l.t.Helper()
	revision, last, ok := l.write(key, fields{"v": 1, "s": status, "id": id, "c": l.client, "l": 0}, expect, "1s", "KV-Operation", "DEL")
	require.True(l.t, ok, "delete %s at %d: it is at %d", key, expect, last)
	return revision
}

// probe has the leader name the last revision of a key. The reply proves all subscriptions
// made before.
func (l *raw) probe(key string) (last uint64) {
	l.t.Helper()
	_, last, ok := l.write(key, fields{"v": 1, "s": 4, "id": "probe", "l": 0}, never, "1s", "KV-Operation", "DEL")
	require.False(l.t, ok)
	return last
}

// of parses a message from a direct get or a notification.
func (l *raw) of(m *nats.Msg) stored {
	l.t.Helper()
	last := func(name string) string { // the server's headers follow the writer's
		values := m.Header[name]
		require.NotEmpty(l.t, values, name)
		return values[len(values)-1]
	}
	s := stored{key: strings.TrimPrefix(last("Nats-Subject"), "$KV.natslock."), deleted: m.Header.Get("KV-Operation") != ""}
	var err error
	s.revision, err = strconv.ParseUint(last("Nats-Sequence"), 10, 64)
	require.NoError(l.t, err)
	at, err := time.Parse(time.RFC3339Nano, last("Nats-Time-Stamp"))
	require.NoError(l.t, err)
	ttl, err := time.ParseDuration(m.Header.Get("Nats-TTL"))
	require.NoError(l.t, err)
	s.end = at.Add(ttl)
	d := msgpack.NewDecoder(bytes.NewReader(m.Data))
	d.UseLooseInterfaceDecoding(true)
	var all map[string]any
	require.NoError(l.t, d.Decode(&all))
	s.fields = all
	return s
}

// read reads the record under a key.
func (l *raw) read(key string) stored {
	l.t.Helper()
	m, err := l.nc.Request("$JS.API.DIRECT.GET.KV_natslock.$KV.natslock."+key, nil, kit.Patience)
	require.NoError(l.t, err)
	if m.Header.Get("Nats-Sequence") == "" {
		require.Equal(l.t, "404", m.Header.Get("Status"))
		return stored{key: key}
	}
	return l.of(m)
}

// overdue reports whether a record has ended by the server's clock although the server has
// not removed it.
func (l *raw) overdue(s stored) bool {
	l.t.Helper()
	var info struct{ TS time.Time }
	l.api("STREAM.INFO.KV_natslock", nil, &info)
	require.False(l.t, info.TS.IsZero())
	return s.live() && !info.TS.Before(s.end.Add(300*time.Millisecond))
}

// watch subscribes to the changes of the keys that match a pattern.
func (l *raw) watch(pattern string) *nats.Subscription {
	l.t.Helper()
	sub, err := l.nc.SubscribeSync(l.notify + pattern)
	require.NoError(l.t, err)
	l.t.Cleanup(func() { _ = sub.Unsubscribe() })
	return sub
}

// next returns the next notification.
func (l *raw) next(sub *nats.Subscription) stored {
	l.t.Helper()
	m, err := sub.NextMsg(kit.Patience)
	require.NoError(l.t, err)
	return l.of(m)
}

// take claims a lock that nobody holds. The lock's tombstone may end in the meantime.
func (l *raw) take(key string) (id string, revision uint64) {
	l.t.Helper()
	id = rand.Text()
	revision, last, ok := l.write(key, l.record(1, id, nil), l.read(key).revision, lease)
	if !ok {
		require.Zero(l.t, last)
		revision, _, ok = l.write(key, l.record(1, id, nil), 0, lease)
		require.True(l.t, ok)
	}
	return id, revision
}

// received returns the next message of a subscription.
func received(t testing.TB, sub *nats.Subscription) *nats.Msg {
	t.Helper()
	m, err := sub.NextMsg(kit.Patience)
	require.NoError(t, err)
	return m
}

func decimal(n uint64) string { return strconv.FormatUint(n, 10) }

// reading returns the keys of a lock's live readers, from a reply of the leader that
// contains the gate at the given revision.
func (l *raw) reading(gate uint64, name string) (readers []string) {
	l.t.Helper()
	var info struct {
		State struct {
			LastSeq  uint64 `json:"last_seq"`
			Subjects map[string]int
		}
	}
	l.api("STREAM.INFO.KV_natslock", map[string]string{"subjects_filter": "$KV.natslock.read." + name + ".*"}, &info)
	require.GreaterOrEqual(l.t, info.State.LastSeq, gate)
	for subject := range info.State.Subjects {
		key := strings.TrimPrefix(subject, "$KV.natslock.")
		if !l.read(key).deleted {
			readers = append(readers, key)
		}
	}
	return readers
}

// publish publishes to a stream on the condition that the last sequence of the guard
// subject is the expected one. It returns the new sequence, or 0 if the server refused.
func (l *raw) publish(subject, data, guard string, expect uint64) uint64 {
	l.t.Helper()
	m := &nats.Msg{Subject: subject, Data: []byte(data), Header: nats.Header{}}
	m.Header.Set("Nats-Expected-Last-Subject-Sequence", decimal(expect))
	m.Header.Set("Nats-Expected-Last-Subject-Sequence-Subject", guard)
	answer, err := l.nc.RequestMsg(m, kit.Patience)
	require.NoError(l.t, err)
	var ack struct{ Seq uint64 }
	require.NoError(l.t, json.Unmarshal(answer.Data, &ack))
	return ack.Seq
}
