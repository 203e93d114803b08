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
		nc := s.Connect()
		last := "0"
		publish := func(ttl, op string) {
			m := nats.NewMsg("$KV.natslock.lock.bare")
			m.Header.Set("Nats-Expected-Last-Subject-Sequence", last)
			m.Header.Set("Nats-TTL", ttl)
			if op != "" {
				m.Header.Set("KV-Operation", op)
			}
			m.Data = make([]byte, 100)
			r, err := nc.RequestMsgWithContext(b.Context(), m)
			if err != nil {
				b.Fatal(err)
			}
			last = sequence(b, r.Data)
		}
		for b.Loop() {
			publish("15s", "")
			publish("1s", "DEL")
		}
	})
}

// sequence reads the sequence of a publish acknowledgement.
func sequence(b *testing.B, ack []byte) string {
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
