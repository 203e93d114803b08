package kvstore

import (
	"encoding/json"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// headers are header blocks that a server or a record's writer may have produced.
var headers = []string{
	"", "Nats-TTL: 5s\r\n", "KV-Operation: DEL\r\n", "KV-Operation: PURGE\r\n", "Nats-Marker-Reason: MaxAge\r\n", "Nats-Sequence: 8\r\n", "a\r\n", ":\r\n",
	"Nats-TTL: 9223372036854775807s\r\n", "Nats-TTL: never\r\n", "Status: 404\r\n", "Nats-Sequence: \r\n", "Nats-Subject: $KV.b.a.>\r\n",
}

const position = "Nats-Subject: $KV.b.k\r\nNats-Sequence: 7\r\nNats-Time-Stamp: 2025-01-01T00:00:00.5Z\r\n"

// FuzzRecord checks that reading a message neither panics nor yields a negative time,
// whatever its header contains.
func FuzzRecord(f *testing.F) {
	s := &stream{line: &line{prefix: "$KV.b."}}
	for _, h := range headers {
		f.Add("NATS/1.0\r\n" + h + position + "\r\n")
	}
	f.Add("NATS/1.0 404 Not Found\r\n\r\n")
	f.Fuzz(func(t *testing.T, block string) {
		h, _ := nats.DecodeHeadersMsg([]byte(block))
		r, err := s.record(h, nil)
		if err == nil && (r.TTL < 0 || r.TTL > 0 && r.Remaining(time.Now()) < 0) {
			t.Fatalf("%+v", r)
		}
	})
}

// FuzzAnswer checks that a reply to a write is an acknowledgment only if it says so for
// this stream, and a conflict only if it carries the sequence that the write met.
func FuzzAnswer(f *testing.F) {
	s := newWriter(&stream{line: &line{prefix: "$KV.b."}, name: "KV_b"}, nil)
	const plain = `{"stream":"KV_b", "seq":7}` // as the server writes it, so that the next ones are parsed without a decoder
	if a := s.answer(sentWrite{key: "lock.a"}, &nats.Msg{Data: []byte(plain)}); a.Revision != 7 || s.ackHead.Load() == nil {
		f.Fatalf("%+v", a)
	}
	for _, data := range []string{
		plain, `{"stream":"KV_b", "seq":07}`, `{"stream":"KV_b", "seq":-7}`, `{"stream":"KV_b", "seq":}`, `{"stream":"KV_b", "seq":7`, `{"stream":"KV_b", "seq":1234567890123456789012}`,
		`{"stream":"KV_b","seq":7}`, `{"stream":"KV_b","seq":7,"duplicate":true}`, `{"stream":"KV_a","seq":7}`, `{"stream":"KV_b","seq":1e3}`, `{}`, ``, `null`, `[]`, `7`,
		`{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 9"}}`, `{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: -9"}}`,
		`{"error":{"code":400,"err_code":10164,"description":"wrong last sequence"},"stream":"KV_b","seq":7}`, `{"Stream":"KV_b","SEQ":7}`, `{"stream":"KV_b","seq":7}{}`,
	} {
		f.Add("NATS/1.0\r\n\r\n", []byte(data))
		f.Add("NATS/1.0 503\r\n\r\n", []byte(data))
	}
	f.Fuzz(func(t *testing.T, block string, data []byte) {
		h, _ := nats.DecodeHeadersMsg([]byte(block))
		a := s.answer(sentWrite{key: "lock.a", expect: 5}, &nats.Msg{Header: h, Data: data})
		if (a.Err == nil) != (a.Revision > 0) {
			t.Fatalf("%+v", a)
		}
		var said struct {
			Error  *struct{ Description string }
			Stream string
			Seq    uint64
		}
		if json.Unmarshal(data, &said) != nil {
			said.Error = nil
		}
		if a.Err == nil && (said.Error != nil || said.Stream != "KV_b" || said.Seq != a.Revision) {
			t.Fatalf("%s is taken for %+v", data, a)
		}
		if conflict, ok := errors.AsType[*ConflictError](a.Err); ok {
			last := strconv.FormatUint(conflict.Last, 10)
			if d := said.Error.Description; len(d) < len(last) || conflict.Expected != 5 {
				t.Fatalf("%s is taken for %+v", data, conflict)
			}
		}
	})
}

// FuzzNotification checks that a message from any client on the notification subject
// becomes an event about a key, or no event, and that a timer it starts ends with the
// watch.
func FuzzNotification(f *testing.F) {
	for _, h := range headers {
		f.Add("NATS/1.0\r\n"+h+position+"\r\n", []byte("x"), true)
	}
	f.Add("", []byte(nil), false)
	f.Fuzz(func(t *testing.T, block string, data []byte, subscribed bool) {
		s := newWatcher(&stream{line: &line{prefix: "$KV.b."}})
		var events []Event
		w := &watch{s: s, tracking: tracking{expiries: make(map[string]*expiry), deliver: func(e Event) { events = append(events, e) }}}
		s.topics["n.k"] = &topic{watches: []*watch{w}}
		h, _ := nats.DecodeHeadersMsg([]byte(block))
		m := &nats.Msg{Header: h, Data: data}
		if subscribed {
			m.Sub = &nats.Subscription{Subject: "n.k"}
		}
		s.notify(m)
		w.end()
		if len(w.expiries) > 0 || len(events) > 1 || !subscribed && len(events) > 0 {
			t.Fatalf("%d timers, events %+v", len(w.expiries), events)
		}
		for _, e := range events {
			if checkKey(e.Record.Key) != nil || e.Record.TTL < 0 || (e.Kind == Deleted) != e.Record.Deleted || e.Kind != Put && e.Kind != Deleted {
				t.Fatalf("%+v", e)
			}
		}
	})
}
