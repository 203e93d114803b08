package lease_test

import (
	"testing"

	"github.com/natslock/locks/internal/lease"
)

func BenchmarkNow(b *testing.B) {
	for b.Loop() {
		lease.Now()
	}
}
