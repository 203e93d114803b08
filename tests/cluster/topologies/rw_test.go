package topologies_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/history"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

// readingAndWriting checks that readers at all places share the lock, and that a writer waits for
// all of them and keeps later readers out. Each waiter is notified immediately.
func readingAndWriting(t *testing.T, n network) {
	ref := history.NewRecorder()
	r1, r2 := at(t, n.places[0], n.opts...), at(t, n.last(), n.opts...)
	w, r3 := at(t, n.last(), n.opts...), at(t, n.places[0], n.opts...)
	a, b := kit.Must(t, r1.rw.RLock, "doc"), kit.Must(t, r2.rw.RLock, "doc")
	ref.Granted(admin.KindRW, admin.Shared, a)
	ref.Granted(admin.KindRW, admin.Shared, b)
	require.NoError(t, a.Err())
	require.NoError(t, b.Err())
	_, err := w.rw.TryLock(t.Context(), "doc")
	require.ErrorIs(t, err, natslock.ErrLocked)

	writer := kit.Begin(t, func(ctx context.Context) (*natslock.Lock, error) { return w.rw.Lock(ctx, "doc") })
	kit.Eventually(t, "the gate stands", func() bool {
		info, err := admin.New(r1.Client).Inspect(t.Context(), admin.KindRW, "doc")
		return err == nil && info.Holder != nil
	})
	for _, p := range n.places { // a guard under the wrong name would guard nothing
		_, err = at(t, p, n.opts...).rw.TryRLock(t.Context(), "doc")
		require.ErrorIs(t, err, natslock.ErrLocked, "at %s", p.name)
	}
	reader := r3.await(t, r3.rw.RLock, "doc")
	kit.Unlock(t, a)
	w.io.patient(t, "read", "doc")
	require.False(t, writer.Over(), "one reader is left")
	limit := handedOver
	if n.silent {
		limit = byTimers
	}
	released := time.Now()
	kit.Unlock(t, b)
	l := writer.Granted(t)
	ref.Granted(admin.KindRW, admin.Exclusive, l)
	t.Logf("the writer: %v", writer.At.Sub(released))
	require.Less(t, writer.At.Sub(released), limit)
	r3.io.patient(t, "rw", "doc")
	require.False(t, reader.Over(), "it came behind the writer")
	released = time.Now()
	kit.Unlock(t, l)
	l = reader.Granted(t)
	ref.Granted(admin.KindRW, admin.Shared, l)
	t.Logf("the reader: %v", reader.At.Sub(released))
	require.Less(t, reader.At.Sub(released), handedOver)
	kit.Unlock(t, l)
	history.Verify(t, ref.History(), history.Options{Least: map[string]int{"grants": 4}})
}

// readerGone checks that a reader whose connection has ended keeps a writer out for its TTL but no
// longer.
func readerGone(t *testing.T, n network) {
	ref := history.NewRecorder()
	dead, next := at(t, n.last(), n.opts...), at(t, n.places[0], n.opts...)
	r := kit.Must(t, dead.rw.RLock, "left", natslock.TTL(2*time.Second))
	ref.Granted(admin.KindRW, admin.Shared, r)
	dead.nc.Close()
	closed := time.Now()
	l := kit.Must(t, next.rw.Lock, "left")
	ref.Granted(admin.KindRW, admin.Exclusive, l)
	took := time.Since(closed)
	t.Logf("after %v", took)
	require.Less(t, took, deadFor)
	require.ErrorIs(t, r.Err(), natslock.ErrLost)
	kit.Unlock(t, l)
	history.Verify(t, ref.History(), history.Options{Least: map[string]int{"grants": 2}})
}

// readingAndCounting has readers and writers share a number that only the lock guards.
func readingAndCounting(t *testing.T, n network) {
	ref := history.NewRecorder()
	count := 0
	var wg sync.WaitGroup
	const goroutines, rounds = 4, 4
	for i := range goroutines {
		u := at(t, n.place(i), n.opts...)
		wg.Go(func() {
			for k := range rounds {
				take, mode, writes := u.rw.RLock, admin.Shared, (i+k)%3 == 0
				if writes {
					take, mode = u.rw.Lock, admin.Exclusive
				}
				l, err := take(context.WithoutCancel(t.Context()), "rw_count")
				if !assert.NoError(t, err) {
					return
				}
				ref.Granted(admin.KindRW, mode, l)
				if writes {
					count++
				} else {
					seen := count
					assert.NoError(t, l.Err())
					assert.Equal(t, seen, count, "written under a reader")
				}
				assert.NoError(t, l.Unlock(context.Background()))
			}
		})
	}
	wg.Wait()
	require.Equal(t, 6, count)
	history.Verify(t, ref.History(), history.Options{Least: map[string]int{"grants": goroutines * rounds}})
}
