package ratios_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/natslock"
)

// BenchmarkHistory measures locks in a bucket with a history and in one without,
// alternately and on the same server: with one goroutine, and with 64 that have a lock
// each. "kept" is the fraction of the writes that the history contains.
func BenchmarkHistory(b *testing.B) {
	const rounds, each = 5, time.Second
	for _, goroutines := range []int{1, 64} {
		b.Run(fmt.Sprintf("goroutines=%d", goroutines), func(b *testing.B) {
			nc := Connect(b, Server(b))
			js, err := jetstream.New(nc)
			if err != nil {
				b.Fatal(err)
			}
			client := func(bucket string) *natslock.Client {
				c, err := natslock.New(b.Context(), nc, natslock.WithBucket(bucket))
				if err != nil {
					b.Fatal(err)
				}
				b.Cleanup(func() { _ = c.Close(b.Context()) })
				return c
			}
			with, without := client("with"), client("without")
			bucket, err := js.Stream(b.Context(), "KV_with")
			if err != nil {
				b.Fatal(err)
			}
			history, err := js.CreateStream(b.Context(), kvstore.HistoryStream(bucket.CachedInfo(), time.Hour, 0))
			if err != nil {
				b.Fatal(err)
			}
			for active := false; !active; time.Sleep(10 * time.Millisecond) {
				info, err := history.Info(b.Context())
				if err != nil {
					b.Fatal(err)
				}
				active = info.Sources[0].Active >= 0
			}
			rate := func(c *natslock.Client) float64 {
				return Rate(goroutines, each, func(i int) {
					l, err := c.Lock(b.Context(), fmt.Sprint("lock", i))
					if err == nil {
						err = l.Unlock(b.Context())
					}
					if err != nil {
						b.Error(err)
					}
				})
			}
			for b.Loop() {
				var sum [2]float64
				for range rounds {
					sum[0] += rate(without)
					sum[1] += rate(with)
				}
				b.ReportMetric(sum[0]/rounds, "without/s")
				b.ReportMetric(sum[1]/rounds, "with/s")
			}
			info, err := history.Info(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			if bucket, err = js.Stream(b.Context(), "KV_with"); err != nil {
				b.Fatal(err)
			}
			written := bucket.CachedInfo().State.LastSeq - bucket.CachedInfo().Config.FirstSeq + 1
			b.ReportMetric(float64(info.State.Msgs)/float64(written), "kept")
			b.ReportMetric(float64(info.State.Bytes)/float64(info.State.Msgs), "B/event")
			b.ReportMetric(0, "ns/op")
		})
	}
}
