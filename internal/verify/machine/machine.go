package machine

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/natslock/locks/internal/verify/tier"
)

// Part returns n in the proof tier, and a quarter of n in the default tier or under the race
// detector.
func Part[T int | float64 | time.Duration](n T) T {
	if Race || !tier.IsProof() {
		return n / 4
	}
	return n
}

// Quarter returns a quarter of n under the race detector, and n otherwise.
func Quarter[T int | float64 | time.Duration](n T) T {
	if Race {
		return n / 4
	}
	return n
}

// Half returns half of n under the race detector, and n otherwise. It is for a test that
// reaches its minimum counts in half the time, but not in a quarter.
func Half[T int | float64](n T) T {
	if Race {
		return n / 2
	}
	return n
}

// Lateness measures, until the end of the test, how much the machine delays a goroutine that
// sleeps briefly. The returned function returns the worst delay so far.
func Lateness(t testing.TB) func() time.Duration {
	var worst atomic.Int64
	end := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		const nap = 5 * time.Millisecond
		for {
			begun := time.Now()
			select {
			case <-end:
				return
			case <-time.After(nap):
				worst.Store(max(worst.Load(), int64(time.Since(begun)-nap)))
			}
		}
	})
	t.Cleanup(func() { close(end); wg.Wait() })
	return func() time.Duration { return time.Duration(worst.Load()) }
}
