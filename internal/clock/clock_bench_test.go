package clock_test

import (
	"testing"

	"github.com/natslock/locks/internal/clock"
)

func BenchmarkNow(b *testing.B) {
	for b.Loop() {
		clock.Now()
	}
}
