package ratios_test

import (
	"testing"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
)

// BenchmarkNow reads the clock that counts suspended time.
func BenchmarkNow(b *testing.B) {
	for b.Loop() {
		clock.Now()
	}
}

// BenchmarkRecord writes and reads the record of a held lock, and compares this with the
// codec's own way of doing it by reflection.
func BenchmarkRecord(b *testing.B) {
	body := record.Body{
		Version: 1, Status: record.StatusHeld, ID: "4HGVAJRV23OBB3L7FBLEEYGCJ6", Client: "DVH5PFE5KDX3W3733QJSSJKXOC", Attempt: 1, TTL: 15,
		Since: 946684800000, Owner: "billing", Host: "web-1", PID: 4711, Started: 946684700000, Meta: map[string]string{"job": "nightly"},
	}
	value, err := body.Encode()
	if err != nil {
		b.Fatal(err)
	}
	type plain record.Body // without the methods
	for _, bm := range []struct {
		name string
		fn   func() error
	}{
		{"encode", func() error { _, err := body.Encode(); return err }},
		{"encode by reflection", func() error { _, err := msgpack.Marshal((*plain)(&body)); return err }},
		{"decode", func() error { _, err := record.Decode(value); return err }},
		{"decode by reflection", func() error { var p plain; return msgpack.Unmarshal(value, &p) }},
	} {
		b.Run(bm.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := bm.fn(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
