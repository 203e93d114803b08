package kvstore_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/testutil"
)

// Waiting for a replica that lags by less than a millisecond costs about that much, and even a
// replica that lags by 70 ms is waited for.
func TestLagCostsWhatItLasts(t *testing.T) {
	for what, get := range map[string]struct {
		behind func(m *nats.Msg, old []byte, before uint64) *nats.Msg // the replica's reply, or nil for the true one
		ask    func(t *testing.T, s *kvstore.Store, rev uint64) error
	}{
		"one key, without the leader's read": {
			func(m *nats.Msg, _ []byte, _ uint64) *nats.Msg {
				return status(m, "DIRECT.GET", "404")
			},
			func(t *testing.T, s *kvstore.Store, rev uint64) error {
				_, err := s.Get(t.Context(), "lock.b", rev)
				return err
			},
		},
		"the leader": {
			func(m *nats.Msg, old []byte, _ uint64) *nats.Msg {
				if strings.Contains(m.Subject, "STREAM.INFO") {
					return &nats.Msg{Data: old}
				}
				return status(m, "DIRECT.GET", "404")
			},
			func(t *testing.T, s *kvstore.Store, rev uint64) error {
				_, err := s.Get(t.Context(), "lock.b", rev)
				return err
			},
		},
		"a list": {
			func(m *nats.Msg, _ []byte, before uint64) *nats.Msg {
				r := status(m, "DIRECT.GET.KV_natslock", "204")
				if r != nil {
					r.Header.Set("Nats-Num-Pending", "0")
					r.Header.Set("Nats-UpTo-Sequence", fmt.Sprint(before))
				}
				return r
			},
			func(t *testing.T, s *kvstore.Store, rev uint64) error {
				s.PassMany()
				_, err := s.List(t.Context(), "lock.*", rev)
				return err
			},
		},
		"keys that the leader names": {
			func(m *nats.Msg, _ []byte, _ uint64) *nats.Msg {
				return status(m, "DIRECT.GET", "404")
			},
			func(t *testing.T, s *kvstore.Store, rev uint64) error {
				_, err := s.List(t.Context(), "lock.*", rev)
				return err
			},
		},
	} {
		for _, lag := range []time.Duration{500 * time.Microsecond, 70 * time.Millisecond} {
			t.Logf("%s: %v", what, lag)
			testutil.Bubble(t, func(t *testing.T, srv *testutil.Server) {
				var old []byte
				var before uint64
				var until time.Time
				s := openProxied(t, srv, func(nc *nats.Conn, m *nats.Msg) bool {
					r := (*nats.Msg)(nil)
					if strings.Contains(m.Subject, "STREAM.MSG.GET") {
						r = status(m, "STREAM", "503")
					} else if time.Now().Before(until) {
						r = get.behind(m, old, before)
					}
					if r != nil {
						r.Subject = m.Reply
						check(t, nc.PublishMsg(r))
					}
					return r != nil
				})
				s.Replicated()
				before = create(t, s, "lock.a", "")
				m, err := srv.Connect().Request("$JS.API.STREAM.INFO.KV_natslock", nil, time.Second)
				check(t, err)
				old = m.Data
				rev := create(t, s, "lock.b", "")
				begun := time.Now()
				until = begun.Add(lag)
				check(t, get.ask(t, s, rev))
				if d := time.Since(begun); d < lag || d > 2*lag+time.Millisecond {
					t.Errorf("%s: a lag of %v cost %v", what, lag, d)
				}
			})
		}
	}
}

// status returns a reply to requests on subject, and nil for other requests.
func status(m *nats.Msg, subject, status string) *nats.Msg {
	if !strings.Contains(m.Subject+".", "."+subject+".") {
		return nil
	}
	return &nats.Msg{Header: nats.Header{"Status": {status}}}
}

// Where replicas can lag, Named asks the leader for the keys and a replica for their records.
func TestNamed(t *testing.T) {
	srv := testutil.RunServer(t)
	nc := srv.Connect()
	s := open(t, nc, kvstore.Config{})
	create(t, s, "a.1", "1")
	create(t, s, "a.2", "2")
	create(t, s, "b", "3")
	for _, replicated := range []bool{false, true} {
		if replicated {
			s.Replicated()
		}
		sent := nc.Stats().OutMsgs
		l, err := s.List(t.Context(), "a.*", 0, kvstore.Named())
		check(t, err)
		if len(l.Records) != 2 || l.Records[0].Key != "a.1" || l.Records[1].Key != "a.2" {
			t.Fatalf("listed %v", l.Records)
		}
		requests, want := nc.Stats().OutMsgs-sent, uint64(1)
		if replicated {
			want = 2
		}
		if requests != want {
			t.Fatalf("%d requests, not %d", requests, want)
		}
	}
}

// A key that the leader named but the replica lacks is read individually. A key that has ended
// since is left out.
func TestNamedKeys(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, srv *testutil.Server) {
		lacks := false
		s := openProxied(t, srv, func(nc *nats.Conn, m *nats.Msg) bool {
			if !lacks || !strings.Contains(string(m.Data), "multi_last") {
				return false
			}
			r := status(m, "DIRECT.GET", "404")
			r.Subject = m.Reply
			check(t, nc.PublishMsg(r))
			return true
		})
		create(t, s, "a.1", "1")
		rev := create(t, s, "a.2", "2")
		create(t, s, "b", "3")
		named := func(want ...string) {
			t.Helper()
			l, err := s.List(t.Context(), ">", rev, kvstore.Named("a.1", "a.2", "a.3"))
			check(t, err)
			var got []string
			for _, r := range l.Records {
				got = append(got, r.Key)
			}
			equal(t, "keys", fmt.Sprint(got), fmt.Sprint(want))
			if l.Revision < rev {
				t.Errorf("a state of revision %d", l.Revision)
			}
		}
		named("a.1", "a.2")
		s.Replicated()
		named("a.1", "a.2")
		lacks = true
		named("a.1", "a.2")
		if _, err := s.List(t.Context(), ">", rev, kvstore.Named("a.*")); !errors.Is(err, kvstore.ErrInvalidKey) {
			t.Error(err)
		}
	})
}

// A list that is too long for one request contains only keys, whose records are then read in
// parts.
func TestInParts(t *testing.T) {
	m := kvstore.NewMemory(kvstore.DefaultBucket).Open()
	defer m.Close()
	for _, s := range []kvstore.KV{m, open(t, testutil.RunServer(t).Connect(), kvstore.Config{})} {
		last := uint64(0)
		for i := range 1025 {
			if i == 1024 {
				l, err := s.List(t.Context(), "a.*", last, kvstore.InParts())
				check(t, err)
				if len(l.Keys) != 0 || len(l.Records) != i {
					t.Fatalf("of %d: %d keys, %d records", i, len(l.Keys), len(l.Records))
				}
			}
			last = create(t, s, fmt.Sprint("a.", i), "")
		}
		l, err := s.List(t.Context(), "a.*", last, kvstore.InParts())
		check(t, err)
		if len(l.Keys) != 1025 || len(l.Records) != 0 || l.Revision < last {
			t.Fatalf("%d keys, %d records, revision %d", len(l.Keys), len(l.Records), l.Revision)
		}
		l, err = s.List(t.Context(), ">", last, kvstore.Named(l.Keys[:300]...))
		check(t, err)
		if len(l.Records) != 300 {
			t.Fatalf("%d records", len(l.Records))
		}
	}
}
