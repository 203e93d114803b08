package natslock_test

import (
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// BenchmarkCycle is an uncontended acquire and release, beside the two bare
// conditional publishes that it cannot do without: the ratio is what to read.
func BenchmarkCycle(b *testing.B) {
	s := testutil.RunServer(b)
	c, err := natslock.New(b.Context(), s.Connect())
	require.NoError(b, err)
	b.Cleanup(func() { _ = c.Close(b.Context()) })

	b.Run("lock", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			l, err := c.Lock(b.Context(), "bench")
			if err != nil {
				b.Fatal(err)
			}
			if err := l.Unlock(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("bare", func(b *testing.B) {
		b.ReportAllocs()
		p := &publisher{nc: s.Connect(), last: "0"}
		for b.Loop() {
			p.cycle(b)
		}
	})
}

// publisher makes the two conditional publishes that a lock cannot do without.
type publisher struct {
	nc   *nats.Conn
	last string
}

func (p *publisher) cycle(t testing.TB) {
	p.publish(t, "15s", "")
	p.publish(t, "1s", "DEL")
}

func (p *publisher) publish(t testing.TB, ttl, op string) {
	m := nats.NewMsg("$KV.natslock.lock.bare")
	m.Header.Set("Nats-Expected-Last-Subject-Sequence", p.last)
	m.Header.Set("Nats-TTL", ttl)
	if op != "" {
		m.Header.Set("KV-Operation", op)
	}
	m.Data = make([]byte, 100)
	r, err := p.nc.RequestMsgWithContext(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	p.last = sequence(t, r.Data)
}

// sequence reads the sequence of a publish acknowledgement.
func sequence(b testing.TB, ack []byte) string {
	const key = `"seq":`
	for i := 0; i+len(key) < len(ack); i++ {
		if string(ack[i:i+len(key)]) != key {
			continue
		}
		j := i + len(key)
		k := j
		for k < len(ack) && ack[k] >= '0' && ack[k] <= '9' {
			k++
		}
		return string(ack[j:k])
	}
	b.Fatalf("no sequence in %s", ack)
	return ""
}

// TestAllocations guards what an uncontended cycle costs, as a ratio to the two
// bare publishes in the same process, the server's share included in both.
func TestAllocations(t *testing.T) {
	s := testutil.RunServer(t)
	c := newClient(t, s.Connect())
	bare := &publisher{nc: s.Connect(), last: "0"}
	cycle := func() {
		l, err := c.Lock(t.Context(), "allocations")
		require.NoError(t, err)
		require.NoError(t, l.Unlock(t.Context()))
	}
	cycle()
	bare.cycle(t)
	locked, published := testing.AllocsPerRun(500, cycle), testing.AllocsPerRun(500, func() { bare.cycle(t) })
	t.Logf("a cycle %.0f, two bare publishes %.0f: %.2f times", locked, published, locked/published)
	require.Less(t, locked/published, 1.6)
}
