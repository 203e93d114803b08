package protocol_test

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"
)

// This file is a locker that is written from docs/protocol.md: it shares no code with the
// library. It is small because its leases outlast the tests, so it renews nothing.

// lease is the TTL of all its records.
const lease = "60s"

// never is a revision that no record has.
const never = 999_999_999_999_999_999

// fields are those of a record.
type fields map[string]any

// stored is a record as it was read or notified. Revision 0 is none.
type stored struct {
	key      string
	revision uint64
	deleted  bool
	end      time.Time // of the TTL, by the server's clock
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

// ticket is the order of a place in its queue.
func (s stored) ticket() uint64 { return cmp.Or(s.number("t"), s.revision) }

// locker is the second implementation.
type locker struct {
	t      testing.TB
	nc     *nats.Conn
	client string
	notify string // the prefix of the subjects of notifications
}

func newLocker(t testing.TB, nc *nats.Conn) *locker {
	t.Helper()
	l := &locker{t: t, nc: nc, client: rand.Text()}
	var info struct {
		Config struct {
			Republish struct{ Dest string }
			Metadata  map[string]string
		}
	}
	l.api("STREAM.INFO.KV_natslock", nil, &info)
	require.Equal(t, "2", info.Config.Metadata["natslock.protocol"])
	l.notify = strings.TrimSuffix(info.Config.Republish.Dest, ">")
	return l
}

// api does a request of the JetStream API.
func (l *locker) api(subject string, request, answer any) {
	l.t.Helper()
	body, err := json.Marshal(request)
	require.NoError(l.t, err)
	m, err := l.nc.Request("$JS.API."+subject, body, patience)
	require.NoError(l.t, err)
	require.NoError(l.t, json.Unmarshal(m.Data, answer))
}

// record is a record of a claim.
func (l *locker) record(status int, id string, more fields) fields {
	f := fields{"v": 1, "s": status, "id": id, "c": l.client, "l": 60, "a": 1, "o": "plain"}
	for name, value := range more {
		f[name] = value
	}
	return f
}

// write sends a conditional write until the server has stored it, at the revision that it
// returns, or has refused it because the last revision is another one.
func (l *locker) write(key string, body fields, expect uint64, ttl string, more ...string) (revision, last uint64, ok bool) {
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
		answer, err := l.nc.RequestMsg(m, patience)
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

// remove writes a tombstone. It requires that the record is at the expected revision.
func (l *locker) remove(key string, status int, id string, expect uint64) uint64 {
	l.t.Helper()
	revision, last, ok := l.write(key, fields{"v": 1, "s": status, "id": id, "c": l.client, "l": 0}, expect, "1s", "KV-Operation", "DEL")
	require.True(l.t, ok, "delete %s at %d: it is at %d", key, expect, last)
	return revision
}

// probe has the leader name the last revision of a key. The answer proves the
// subscriptions that were made before.
func (l *locker) probe(key string) (last uint64) {
	l.t.Helper()
	_, last, ok := l.write(key, fields{"v": 1, "s": 4, "id": "probe", "l": 0}, never, "1s", "KV-Operation", "DEL")
	require.False(l.t, ok)
	return last
}

// of reads a message of a direct get or a notification.
func (l *locker) of(m *nats.Msg) stored {
	l.t.Helper()
	last := func(name string) string { // the server's headers are behind the writer's
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
func (l *locker) read(key string) stored {
	l.t.Helper()
	m, err := l.nc.Request("$JS.API.DIRECT.GET.KV_natslock.$KV.natslock."+key, nil, patience)
	require.NoError(l.t, err)
	if m.Header.Get("Nats-Sequence") == "" {
		require.Equal(l.t, "404", m.Header.Get("Status"))
		return stored{key: key}
	}
	return l.of(m)
}

// overdue says whether the server's clock shows that a record has ended, although the
// server has not removed it.
func (l *locker) overdue(s stored) bool {
	l.t.Helper()
	var info struct{ TS time.Time }
	l.api("STREAM.INFO.KV_natslock", nil, &info)
	require.False(l.t, info.TS.IsZero())
	return s.live() && !info.TS.Before(s.end.Add(300*time.Millisecond))
}

// queue lists the places under a pattern, in the order of their tickets.
func (l *locker) queue(pattern string) (places []stored) {
	l.t.Helper()
	sub, err := l.nc.SubscribeSync(l.nc.NewInbox())
	require.NoError(l.t, err)
	defer func() { require.NoError(l.t, sub.Unsubscribe()) }()
	body, err := json.Marshal(map[string]any{"multi_last": []string{"$KV.natslock." + pattern}, "batch": 1024, "max_bytes": 1 << 23})
	require.NoError(l.t, err)
	require.NoError(l.t, l.nc.PublishRequest("$JS.API.DIRECT.GET.KV_natslock", sub.Subject, body))
	for {
		m, err := sub.NextMsg(patience)
		require.NoError(l.t, err)
		if m.Header.Get("Nats-Sequence") == "" { // the end, or nothing at all
			require.Contains(l.t, []string{"204", "404"}, m.Header.Get("Status"))
			break
		}
		if s := l.of(m); s.live() && s.number("s") == 2 {
			places = append(places, s)
		}
	}
	slices.SortFunc(places, func(a, b stored) int { return cmp.Compare(a.ticket(), b.ticket()) })
	return places
}

// watch subscribes to the changes of the keys that match a pattern.
func (l *locker) watch(pattern string) *nats.Subscription {
	l.t.Helper()
	sub, err := l.nc.SubscribeSync(l.notify + pattern)
	require.NoError(l.t, err)
	l.t.Cleanup(func() { _ = sub.Unsubscribe() })
	return sub
}

// next is the next notification.
func (l *locker) next(sub *nats.Subscription) stored {
	l.t.Helper()
	m, err := sub.NextMsg(patience)
	require.NoError(l.t, err)
	return l.of(m)
}

// held is a mutex that the locker holds.
type held struct {
	l             *locker
	key, id       string
	revision      uint64
	token, ticket uint64
}

// backstop is after how long a waiter reads by itself.
const backstop = time.Second

// lock takes a mutex as the chapter about it says. asked is called when the place in the
// queue is stored.
func (l *locker) lock(name string, asked func(ticket uint64)) held {
	l.t.Helper()
	h := held{l: l, key: "lock." + name, id: rand.Text()}
	place, placeID := "", rand.Text()
	var ok bool
	if h.revision, _, ok = l.write(h.key, l.record(1, h.id, nil), 0, lease); !ok {
		place = "wait." + name + "." + placeID
		h.ticket, _, ok = l.write(place, l.record(2, placeID, nil), 0, lease)
		require.True(l.t, ok)
		asked(h.ticket)
		for !l.first(name, placeID) {
		}
		h.revision = l.claim(h)
		l.remove(place, 5, placeID, h.ticket)
	}
	h.token = h.revision << 6
	return h
}

// first waits behind the predecessor. It returns true if the place is the first one.
func (l *locker) first(name, placeID string) bool {
	l.t.Helper()
	queue := l.queue("wait." + name + ".*")
	i := slices.IndexFunc(queue, func(s stored) bool { return s.text("id") == placeID })
	require.GreaterOrEqual(l.t, i, 0, "a list without the own place")
	if i == 0 {
		return true
	}
	before := queue[i-1]
	sub := l.watch(before.key)
	defer func() { require.NoError(l.t, sub.Unsubscribe()) }()
	for last := l.probe(before.key); last == before.revision; {
		m, err := sub.NextMsg(backstop)
		if err != nil { // a notification may be lost
			last = l.read(before.key).revision
			continue
		}
		switch s := l.of(m); {
		case s.deleted && s.number("s") == 5 && s.text("id") == before.text("id"):
			return true
		case s.deleted || s.text("id") != before.text("id"):
			return false
		default: // its renewal
			before = s
			last = s.revision
		}
	}
	return false
}

// claim waits at the head of the queue until the lock is its own.
func (l *locker) claim(h held) uint64 {
	l.t.Helper()
	sub := l.watch(h.key)
	defer func() { require.NoError(l.t, sub.Unsubscribe()) }()
	for try, expect := 2, uint64(0); ; try++ {
		revision, last, ok := l.write(h.key, l.record(1, h.id, fields{"a": try}), expect, lease)
		switch {
		case ok:
			return revision
		case last == 0:
			expect = 0
			continue
		}
		s := l.read(h.key)
		for s.live() { // only a read says that it is free
			_, _ = sub.NextMsg(backstop)
			s = l.read(h.key)
		}
		expect = s.revision
	}
}

// unlock releases the mutex.
func (h held) unlock() { h.l.t.Helper(); h.l.remove(h.key, 4, h.id, h.revision) }

// inside counts the holders that are inside at a time.
type inside struct{ n atomic.Int32 }

func (i *inside) enter(t testing.TB) { require.EqualValues(t, 1, i.n.Add(1), "holders at a time") }
func (i *inside) leave()             { i.n.Add(-1) }

// received is the next message of a subscription.
func received(t testing.TB, sub *nats.Subscription) *nats.Msg {
	t.Helper()
	m, err := sub.NextMsg(patience)
	require.NoError(t, err)
	return m
}

func decimal(n uint64) string { return strconv.FormatUint(n, 10) }

// reading returns the keys of the readers of a lock that are live, from an answer of the
// leader that contains a gate at a revision.
func (l *locker) reading(gate uint64, name string) (readers []string) {
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

// publish publishes to a stream on the condition that the last sequence of a subject is
// the expected one. It returns the sequence, or 0 if the server has refused that.
func (l *locker) publish(subject, data, guard string, expect uint64) uint64 {
	l.t.Helper()
	m := &nats.Msg{Subject: subject, Data: []byte(data), Header: nats.Header{}}
	m.Header.Set("Nats-Expected-Last-Subject-Sequence", decimal(expect))
	m.Header.Set("Nats-Expected-Last-Subject-Sequence-Subject", guard)
	answer, err := l.nc.RequestMsg(m, patience)
	require.NoError(l.t, err)
	var ack struct{ Seq uint64 }
	require.NoError(l.t, json.Unmarshal(answer.Data, &ack))
	return ack.Seq
}
