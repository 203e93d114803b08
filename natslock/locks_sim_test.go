package natslock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// register is what is known of those inside, by name.
type register struct {
	t  *testing.T
	mu sync.Mutex

	work   map[string]context.Context // of the last holder
	tokens map[string]uint64
	grants int
	worst  time.Duration
}

// enter notes that the holder of locks begins to work.
func (r *register) enter(l *natslock.Locks, waited time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.grants++
	r.worst = max(r.worst, waited)
	for _, name := range l.Names() {
		if work := r.work[name]; work != nil {
			assert.Error(r.t, work.Err(), "two work under %q at %v", name, time.Now())
		}
		assert.Greater(r.t, l.Token(name), r.tokens[name], name)
		r.work[name], r.tokens[name] = l.Context(), l.Token(name)
	}
}

// For an hour of fake time twenty clients lock random sets of ten names. Some of them
// crash, and some lose the server for a while. No two clients are inside one lock, tokens
// rise, everybody gets its locks, and nothing is left in the end.
func TestLockAllHour(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		const clients, names, ttl, patient = 20, 10, 5 * time.Second, 10 * time.Minute
		end := time.Now().Add(time.Hour)
		r := newRaw(t, s.Connect())
		reg := &register{t: t, work: map[string]context.Context{}, tokens: map[string]uint64{}}
		var crashes, outages, refusals int
		var all sync.WaitGroup
		for i := range clients {
			rng := rand.New(rand.NewPCG(seed, uint64(i)))
			all.Go(func() {
				m := &member{rec: newRecorder()}
				for time.Now().Before(end) {
					if m.Client == nil {
						m.nc, m.link = s.ConnectLink(nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond))
						c, err := natslock.New(context.Background(), m.nc, natslock.WithTTL(ttl))
						if !assert.NoError(t, err) {
							return
						}
						m.Client = c
					}
					var set []string
					for range 1 + rng.IntN(5) {
						set = append(set, fmt.Sprint("n", rng.IntN(names)))
					}
					begun := time.Now()
					var l *natslock.Locks
					var err error
					if rng.IntN(5) == 0 {
						l, err = m.TryLockAll(context.Background(), set)
					} else {
						l, err = m.LockAll(context.Background(), set, natslock.MaxWait(patient))
						assert.NotErrorIs(t, err, natslock.ErrTimeout, "after %v", time.Since(begun))
					}
					if err != nil {
						if !errors.Is(err, natslock.ErrLocked) {
							assert.ErrorIs(t, err, natslock.ErrLost)
						}
						reg.mu.Lock()
						refusals++
						reg.mu.Unlock()
						time.Sleep(time.Duration(rng.IntN(2000)) * time.Millisecond)
						continue
					}
					reg.enter(l, time.Since(begun))
					work := time.NewTimer(time.Duration(rng.IntN(3000)) * time.Millisecond)
					fate := rng.IntN(40)
					if fate == 0 { // the server is away for a while, and the work goes on
						m.link.Cut()
						work.Reset(2 * ttl)
					}
					select {
					case <-work.C:
					case <-l.Context().Done():
					}
					switch fate {
					case 0:
						m.link.Heal()
						assert.ErrorIs(t, l.Unlock(context.Background()), natslock.ErrLost)
						reg.mu.Lock()
						outages++
						reg.mu.Unlock()
					case 1: // a crash: the process is gone, and its records are not
						m.link.Cut()
						<-l.Context().Done()
						m.nc.Close()
						_ = closeNow(m.Client)
						m.Client = nil
						reg.mu.Lock()
						crashes++
						reg.mu.Unlock()
					default:
						assert.NoError(t, l.Unlock(context.Background()))
					}
					time.Sleep(time.Duration(rng.IntN(6000)) * time.Millisecond)
				}
				if m.Client != nil {
					ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
					defer cancel()
					assert.NoError(t, m.Close(ctx))
				}
			})
		}
		all.Wait()
		time.Sleep(ttl + time.Second)
		require.Empty(t, r.live(">"), "nothing is left")
		t.Logf("%d grants, the longest wait %v; %d refusals, %d crashes, %d outages", reg.grants, reg.worst, refusals, crashes, outages)
		require.Greater(t, reg.grants, 2000)
		require.Positive(t, crashes)
		require.Positive(t, outages)
	})
}
