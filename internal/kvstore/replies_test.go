package kvstore_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/testutil"
)

// FuzzReplies answers every request of a store with the same garbage, through a real
// server. No reply may make the store panic, hang, or believe in a record that was not
// there.
func FuzzReplies(f *testing.F) {
	srv := testutil.RunServer(f)
	maker := open(f, srv.Connect(), kvstore.Config{})
	create(f, maker, "lock.a", "")
	spy := srv.Connect()
	info, err := spy.Request("$JS.API.STREAM.INFO.KV_natslock", []byte(`{"subjects_filter":">"}`), 5*time.Second)
	check(f, err)
	type answer struct{ status, sequence, subject, ttl, pending, data string }
	var now atomic.Pointer[answer] // nil: reply truthfully
	reply := func(m *nats.Msg) {
		if err := spy.PublishMsg(m); err != nil {
			panic(err)
		}
	}
	_, err = spy.Subscribe("fuzz.API.>", func(m *nats.Msg) {
		a := now.Load()
		if a == nil {
			reply(&nats.Msg{Subject: m.Reply, Data: info.Data})
			return
		}
		r := nats.NewMsg(m.Reply)
		for name, value := range map[string]string{
			"Status": a.status, "Nats-Sequence": a.sequence, "Nats-UpTo-Sequence": a.sequence, "Nats-Subject": a.subject,
			"Nats-Time-Stamp": "2025-01-01T00:00:00Z", "Nats-TTL": a.ttl, "Nats-Num-Pending": a.pending,
		} {
			if value != "" {
				r.Header[name] = []string{value}
			}
		}
		r.Data = []byte(a.data)
		reply(r)
		if strings.HasSuffix(m.Subject, "DIRECT.GET.KV_natslock") { // the end of a list
			reply(&nats.Msg{Subject: m.Reply, Header: nats.Header{"Status": {"204"}, "Nats-Num-Pending": {"0"}}})
		}
	})
	check(f, err)
	check(f, spy.Flush())
	js, err := jetstream.NewWithAPIPrefix(srv.Connect(), "fuzz.API")
	check(f, err)

	f.Add("", "7", "$KV.natslock.lock.a", "5s", "0", "")
	f.Add("404", "", "", "", "", "")
	f.Add("204", "7", "", "", "1", "")
	f.Add("503", "", "", "", "", "")
	f.Add("", "18446744073709551615", "$KV.natslock.>", "9223372036854775807s", "", "x")
	for _, data := range []string{
		string(info.Data), strings.Replace(string(info.Data), `"total":1`, `"total":9999999`, 1), `{"stream":"KV_natslock","seq":7}`, `{"config":null,"state":{"subjects":{"":0}}}`,
		`{"message":{"subject":"$KV.natslock.lock.a","seq":7,"hdrs":"TkFUUy8xLjANCg0K","data":"eA==","time":"2025-01-01T00:00:00Z"}}`, `{"message":{"hdrs":"eA==","data":7}}`,
		`{"error":{"code":404,"err_code":10037}}`, `{"error":{"code":404,"err_code":10059}}`, `{"config":{"republish":{"dest":">"}},"cluster":{"leader":""}}`, `{`, ``, `null`,
	} {
		f.Add("", "", "", "", "", data)
	}
	f.Fuzz(func(t *testing.T, status, sequence, subject, ttl, pending, data string) {
		for _, v := range []string{status, sequence, subject, ttl, pending} {
			if strings.ContainsAny(v, "\r\n") {
				return // no header contains these
			}
		}
		now.Store(nil)
		s, err := kvstore.Open(t.Context(), js, kvstore.Config{NoCreate: true})
		check(t, err)
		defer s.Close()
		s.PassMany()
		now.Store(&answer{status, sequence, subject, ttl, pending, data})
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		defer cancel()
		begun := time.Now()
		r, err := s.Get(ctx, "lock.a", 0)
		if err == nil && (r.Key != "lock.a" || r.Revision == 0 || r.TTL < 0) {
			t.Fatalf("read %+v", r)
		}
		l, err := s.List(ctx, "lock.*", 0)
		for _, r := range l.Records {
			if err != nil || r.Deleted || r.TTL < 0 {
				t.Fatalf("listed %+v (%v)", l, err)
			}
		}
		_, _ = s.State(ctx, "lock.*")
		_ = s.Verify(ctx)
		if rev, err := s.Create(ctx, "lock.b", nil, time.Second); (err == nil) != (rev > 0) {
			t.Fatalf("created %d (%v)", rev, err)
		}
		if d := time.Since(begun); d > 10*time.Second {
			t.Fatalf("took %v", d)
		}
	})
}
