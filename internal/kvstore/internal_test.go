package kvstore

import (
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func TestParseTTL(t *testing.T) {
	for in, want := range map[string]time.Duration{
		"": 0, "never": 0, "0": 0, "0s": 0, "500ms": 0, "-5s": 0, "x": 0, "99999999999999999999": 0, "9999999999999s": 0,
		"1s": time.Second, "1.9s": time.Second, "15": 15 * time.Second, "2m": 2 * time.Minute, "24h0m0s": 24 * time.Hour,
	} {
		if got := parseTTL(in); got != want {
			t.Errorf("%q is %v, want %v", in, got, want)
		}
	}
}

func TestTTLHeader(t *testing.T) {
	for in, want := range map[time.Duration]string{
		1: "1s", time.Second: "1s", time.Second + 1: "2s", 1900 * time.Millisecond: "2s", maxTTL: "31622400s",
	} {
		if got, err := ttlHeader(in); got != want || err != nil {
			t.Errorf("%v is %q (%v), want %q", in, got, err, want)
		}
		// A header that was written never reads back as a shorter TTL.
		if back := parseTTL(want); back < in || back >= in+time.Second {
			t.Errorf("%v comes back as %v", in, back)
		}
	}
}

func TestLastSequence(t *testing.T) {
	for in, want := range map[string]uint64{
		"wrong last sequence: 0": 0, "wrong last sequence: 1763682000000000": 1763682000000000,
	} {
		if got, ok := lastSequence(in); got != want || !ok {
			t.Errorf("%q has %d (%v), want %d", in, got, ok, want)
		}
	}
	for _, in := range []string{"", "wrong last sequence", "wrong last sequence: ", "wrong last sequence: -1", "wrong last sequence: 18446744073709551616"} {
		if got, ok := lastSequence(in); ok {
			t.Errorf("%q has %d", in, got)
		}
	}
}

// Only one kind of reply is an acknowledgment. Any other leaves the outcome open, or says
// that another write came first or is in flight.
func TestAnswers(t *testing.T) {
	s := newWriter(&stream{line: &line{prefix: "$KV.b."}, name: "KV_b"}, nil)
	w := sentWrite{key: "lock.a", expect: 5}
	for data, want := range map[string]struct {
		revision uint64
		err      error
		last     uint64
	}{
		`{"stream":"KV_b","seq":7}`:                             {revision: 7},
		`{"stream":"KV_b","seq":7,"domain":"hub","error":null}`: {revision: 7},
		`{"stream":"KV_other","seq":7}`:                         {err: ErrUnavailable},
		`{"seq":7}`:                                             {err: ErrUnavailable},
		`{"stream":"KV_b","seq":0}`:                             {err: ErrUnavailable},
		`{"stream":"KV_b","seq":-7}`:                            {err: ErrUnavailable},
		`{"stream":"KV_b","seq":7,"duplicate":true}`:            {err: ErrUnavailable},
		`{"stream":"KV_b","seq":7,"duplicate":"?"}`:             {err: ErrUnavailable},
		`{"stream":"KV_b","seq":7,"error":{"code":503,"err_code":10077,"description":"full"}}`: {err: ErrUnavailable},
		`{}`:                         {err: ErrUnavailable},
		``:                           {err: ErrUnavailable},
		`null`:                       {err: ErrUnavailable},
		`+OK {"stream":"KV_b","seq"`: {err: ErrUnavailable},
		`{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 9"}}`:        {err: ErrConflict, last: 9},
		`{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 0"}}`:        {err: ErrConflict},
		`{"error":{"code":400,"err_code":10071,"description":"wrong last sequence"}}`:           {err: ErrUnavailable},
		`{"error":{"code":400,"err_code":10164,"description":"wrong last sequence"}}`:           {err: ErrInFlight},
		`{"error":{"code":400,"err_code":10165,"description":"invalid per-message TTL: 10s"}}`:  {err: ErrUnavailable},
		`{"error":{"code":400,"description":"wrong last sequence: 9"},"stream":"KV_b","seq":7}`: {err: ErrUnavailable},
	} {
		got := s.answer(w, &nats.Msg{Data: []byte(data)})
		var conflict *ConflictError
		errors.As(got.Err, &conflict)
		switch {
		case want.err == nil && (got.Err != nil || got.Revision != want.revision):
			t.Errorf("%s: %+v, want revision %d", data, got, want.revision)
		case want.err != nil && (!errors.Is(got.Err, want.err) || got.Revision != 0):
			t.Errorf("%s: %+v, want %v", data, got, want.err)
		case (conflict != nil) != (want.err == ErrConflict):
			t.Errorf("%s: %+v", data, got)
		case conflict != nil && *conflict != ConflictError{Key: w.key, Expected: 5, Last: want.last}:
			t.Errorf("%s: %+v", data, *conflict)
		}
	}
	none := s.answer(w, &nats.Msg{Header: nats.Header{hdrStatus: {"503"}}})
	if !errors.Is(none.Err, ErrNoStream) || !errors.Is(none.Err, ErrUnavailable) {
		t.Errorf("nobody there: %+v", none)
	}
}

// Two buckets with the same name do not receive each other's notifications.
func TestNotificationIDs(t *testing.T) {
	one, err := Config{}.StreamConfig()
	if err != nil {
		t.Fatal(err)
	}
	two, err := Config{}.StreamConfig()
	if err != nil || one.RePublish.Destination == two.RePublish.Destination {
		t.Fatalf("both are notified on %s (%v)", one.RePublish.Destination, err)
	}
}

func TestRemaining(t *testing.T) {
	now := time.Now()
	for _, c := range []struct{ ttl, age, want time.Duration }{
		{10 * time.Second, 3 * time.Second, 7 * time.Second},
		{10 * time.Second, 20 * time.Second, 0},
		{10 * time.Second, -time.Hour, 10 * time.Second}, // the server's clock is ahead
		{0, time.Second, -1},
	} {
		if got := (Record{Time: now.Add(-c.age), TTL: c.ttl}).Remaining(now); got != c.want {
			t.Errorf("%+v: got %v", c, got)
		}
	}
}

// A renewal may arrive while the timer of the previous lease fires.
func TestExpiredMeetsRenewal(t *testing.T) {
	var events []Event
	w := &watch{tracking: tracking{deliver: func(e Event) { events = append(events, e) }}}
	w.tracks.Store(true)
	w.track(Record{Key: "a", Revision: 1}, time.Hour)
	w.expired("a")
	if len(events) > 0 || w.expiries["a"] == nil {
		t.Fatalf("a running lease ended: %v", events)
	}
	w.expiries["a"].ends = time.Now()
	w.expired("a")
	if len(events) != 1 || events[0].Kind != Expired || len(w.expiries) > 0 {
		t.Fatalf("an ended lease goes on: %v", events)
	}
	w.expired("a")
	if len(events) != 1 {
		t.Fatal("a lease ended twice")
	}
}

// TestServers checks how many servers may reply for a stream. A stream that is being moved
// has both its old and its new peers, whatever its configuration says.
func TestServers(t *testing.T) {
	peers := func(n int) *jetstream.ClusterInfo {
		return &jetstream.ClusterInfo{Replicas: make([]*jetstream.PeerInfo, n)}
	}
	for _, c := range []struct {
		configured int
		cluster    *jetstream.ClusterInfo
		want       int
	}{{1, nil, 1}, {1, peers(0), 1}, {1, peers(1), 2}, {3, peers(2), 3}, {3, peers(0), 3}, {3, peers(5), 6}} {
		info := &jetstream.StreamInfo{Config: jetstream.StreamConfig{Replicas: c.configured}, Cluster: c.cluster}
		if n := servers(info); n != c.want {
			t.Errorf("%d configured, %v: %d, not %d", c.configured, c.cluster, n, c.want)
		}
	}
}
