package history

import (
	"cmp"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"
)

// tap returns the changes recorded so far.
type tap interface{ all() []Entry }

// serverTap records every change to the bucket, and to any bucket that replaces it,
// independently of the clients and the library.
type serverTap struct {
	nc  *nats.Conn
	sub *nats.Subscription

	mu   sync.Mutex
	seen int64 // messages
	got  []Entry
}

// Tap starts recording the default bucket's changes.
func (r *Recorder) Tap(t testing.TB, nc *nats.Conn) {
	t.Helper()
	p := &serverTap{nc: nc}
	var err error
	// A synchronous subscription would drop messages in a test that takes a day.
	p.sub, err = nc.Subscribe("natslock.natslock.>", func(m *nats.Msg) {
		e, ok := r.entry(m)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.seen++
		if ok {
			p.got = append(p.got, e)
		}
	})
	require.NoError(t, err)
	require.NoError(t, p.sub.SetPendingLimits(-1, -1))
	require.NoError(t, nc.Flush())
	r.taps = append(r.taps, p)
}

// stream returns the changes recorded so far.
func (r *Recorder) stream() (all []Entry, tapped bool) {
	for _, p := range r.taps {
		tapped = true
		all = append(all, p.all()...)
	}
	return all, tapped
}

// all waits until all received messages have been recorded, and returns the changes.
func (p *serverTap) all() []Entry {
	_ = p.nc.Flush() // afterwards every message that the server has sent has arrived
	for ; ; time.Sleep(time.Millisecond) {
		waiting, _, _ := p.sub.Pending()
		delivered, err := p.sub.Delivered()
		p.mu.Lock()
		if err != nil || waiting == 0 && delivered == p.seen {
			defer p.mu.Unlock()
			return slices.Clone(p.got)
		}
		p.mu.Unlock()
	}
}

// entry parses a republished message.
func (r *Recorder) entry(m *nats.Msg) (Entry, bool) {
	const prefix = "$KV.natslock."
	subject := last(m, "Nats-Subject")
	stamp, err := time.Parse(time.RFC3339Nano, last(m, "Nats-Time-Stamp"))
	if err != nil || len(subject) <= len(prefix) {
		return Entry{}, false
	}
	e := Entry{Key: subject[len(prefix):], At: r.at(stamp), TTL: never, Deleted: m.Header.Get("KV-Operation") != ""}
	e.Revision, _ = strconv.ParseUint(last(m, "Nats-Sequence"), 10, 64)
	if ttl, err := time.ParseDuration(m.Header.Get("Nats-TTL")); err == nil {
		e.TTL = ttl
	} else if s, err := strconv.Atoi(m.Header.Get("Nats-TTL")); err == nil {
		e.TTL = time.Duration(s) * time.Second
	}
	r.value(&e, m.Data)
	return e, true
}

// value parses a record's value.
func (r *Recorder) value(e *Entry, data []byte) {
	var body struct {
		ID      string `msgpack:"id"`
		Client  string `msgpack:"c"`
		Status  int    `msgpack:"s"`
		Renewal uint64 `msgpack:"r"`
		Token   uint64 `msgpack:"t"`
		Grants  uint64 `msgpack:"g"`
		Mode    int    `msgpack:"m"`
		Since   int64  `msgpack:"at"`
	}
	if msgpack.Unmarshal(data, &body) == nil {
		e.ID, e.Owner, e.Status, e.Renewal, e.Token, e.Grants, e.Shared = body.ID, body.Client, body.Status, body.Renewal, body.Token, body.Grants, body.Mode == 1
		if body.Since != 0 {
			e.Since = r.at(time.UnixMilli(body.Since))
		}
	}
}

// last returns a header's last value, because the server appends its own values to the
// writer's.
func last(m *nats.Msg, name string) string {
	if v := m.Header.Values(name); len(v) > 0 {
		return v[len(v)-1]
	}
	return ""
}

func byRevision(a, b Entry) int {
	if c := cmp.Compare(a.Revision, b.Revision); c != 0 {
		return c
	}
	if a.Remade != b.Remade { // a bucket is created before it is written to
		if a.Remade {
			return -1
		}
		return 1
	}
	return 0
}
