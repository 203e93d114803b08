package kvstore_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/testutil"
)

// Missing counts what a history lacks and reports whether the bucket was re-created.
func TestHistoryMissing(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, srv *testutil.Server) {
		nc := srv.Connect()
		js := kit.JetStream(t, nc)
		s := open(t, nc, kvstore.Config{})
		bucket, err := js.Stream(t.Context(), "KV_natslock")
		check(t, err)
		sc := kvstore.HistoryStream(bucket.CachedInfo(), 0, 0) // an age would be measured by the real clock
		kept, err := js.CreateStream(t.Context(), sc)
		check(t, err)
		copied := func(n uint64) {
			t.Helper()
			for range 60 {
				info, err := kept.Info(t.Context())
				check(t, err)
				if info.State.LastSeq >= n {
					return
				}
				time.Sleep(time.Second)
			}
			t.Fatalf("the history never has %d writes", n)
		}
		missing := func(since time.Time) (missing, all uint64, err error) {
			t.Helper()
			h, err := s.History(t.Context())
			check(t, err)
			return h.Missing(t.Context(), since)
		}
		wantMissing := func(since time.Time, want, of uint64) {
			t.Helper()
			n, all, err := missing(since)
			check(t, err)
			equal(t, "missing", n, want)
			equal(t, "of", all, of)
		}
		wantMissing(time.Time{}, 0, 0)
		create(t, s, "lock.a", "1")
		copied(1)
		wantMissing(time.Time{}, 0, 1)
		wantMissing(time.Now().Add(time.Minute), 0, 0)

		without := sc
		without.Sources = nil
		_, err = js.UpdateStream(t.Context(), without)
		check(t, err)
		revision := create(t, s, "lock.b", "2")
		for range 3 {
			a := send(t, s, kvstore.Write{Key: "lock.b", Expect: revision, Value: []byte("3"), TTL: time.Hour})
			check(t, a.Err)
			revision = a.Revision
		}
		wantMissing(time.Time{}, 0, 1) // it merely lags behind
		_, err = js.UpdateStream(t.Context(), sc)
		check(t, err)
		copied(2)
		wantMissing(time.Time{}, 3, 5)

		check(t, js.DeleteStream(t.Context(), "KV_natslock"))
		again := open(t, nc, kvstore.Config{})
		a := send(t, again, kvstore.Write{Key: "lock.c", Value: []byte("4"), TTL: time.Hour})
		check(t, a.Err)
		copied(3)
		_, _, err = missing(time.Time{})
		wantErr(t, err, kvstore.ErrRemade)
	})
}

// A history can be read even while the connection drains, when each request gets only one
// reply.
func TestHistoryDraining(t *testing.T) {
	nc := testutil.RunServer(t).Connect()
	s := open(t, nc, kvstore.Config{})
	bucket, err := kit.JetStream(t, nc).Stream(t.Context(), "KV_natslock")
	check(t, err)
	_, err = kit.JetStream(t, nc).CreateStream(t.Context(), kvstore.HistoryStream(bucket.CachedInfo(), 0, 0))
	check(t, err)
	create(t, s, "lock.a", "1")
	create(t, s, "lock.b", "2")
	h, err := s.History(t.Context())
	check(t, err)
	started, finish := make(chan struct{}), make(chan struct{})
	_, err = nc.Subscribe("work", func(*nats.Msg) { close(started); <-finish })
	check(t, err)
	defer close(finish)
	check(t, nc.Publish("work", nil))
	kit.Receive(t, started, "the handler")
	check(t, nc.Drain())
	var values string
	for r, err := range h.Read(t.Context(), []string{">"}, time.Time{}) {
		check(t, err)
		values += string(r.Value)
	}
	equal(t, "written", values, "12")
}
