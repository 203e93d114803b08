package kit

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
)

// World is an in-memory bucket, in a bubble of fake time, for tests of the engine that build their own clients.
type World struct {
	WG sync.WaitGroup // the goroutines that the test starts

	memory *kvstore.Memory
	begun  time.Time
	closes []func(over context.Context)
}

// InWorld runs fn. Then it closes what fn has opened, using a context that has ended, and waits for the
// goroutines.
func InWorld(t *testing.T, fn func(t *testing.T, w *World)) {
	synctest.Test(t, func(t *testing.T) {
		w := &World{memory: kvstore.NewMemory(kvstore.DefaultBucket), begun: time.Now()}
		defer func() {
			over, cancel := context.WithCancel(context.Background())
			cancel()
			for _, end := range w.closes {
				end(over)
			}
			w.WG.Wait()
		}()
		fn(t, w)
	})
}

// Store opens the bucket for a client, with a fault injector in between.
func (w *World) Store() *faults.Store { return faults.New(w.memory.Open(), uint64(len(w.closes))) }

// OnEnd registers end to be called when the test function has returned.
func (w *World) OnEnd(end func(over context.Context)) { w.closes = append(w.closes, end) }

// Age returns the time since the test began.
func (w *World) Age() time.Duration { return time.Since(w.begun) }

// Keys returns the keys that have a record.
func (w *World) Keys(t *testing.T) []string {
	t.Helper()
	return KeysLeftInMemory(t, w.memory)
}
