package cohort_test

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// TestCohortStorm has goroutines of three clients take several locks at a time in random order,
// with and without lingering and with leases that cannot share a record. No lock may have two
// holders, nobody may wait for long, and nothing may be left behind.
func TestCohortStorm(t *testing.T) {
	for seed := range uint64(4) {
		testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
			names := []string{"a", "b", "c", "d"}
			inside := map[string]bool{}
			var mu sync.Mutex
			var all sync.WaitGroup
			for c := range 3 {
				m := kit.Join(t, s)
				t.Cleanup(func() { assert.NoError(t, kit.CloseNow(m.Client)) })
				for g := range 4 {
					rng := rand.New(rand.NewPCG(seed, uint64(10*c+g)))
					all.Go(func() {
						for range 25 {
							var own []string
							for _, i := range rng.Perm(len(names))[:1+rng.IntN(3)] {
								own = append(own, names[i])
							}
							var opts []natslock.LockOption
							if rng.IntN(2) == 0 {
								opts = append(opts, natslock.Linger(time.Minute))
							}
							if rng.IntN(3) == 0 {
								opts = append(opts, natslock.TTL(time.Minute))
							}
							take, tries := m.LockAll, rng.IntN(4) == 0
							if tries {
								take = m.TryLockAll
							}
							begun := time.Now()
							locks, err := take(t.Context(), own, opts...)
							assert.Less(t, time.Since(begun), 10*time.Second, "%v", own)
							if err != nil {
								assert.True(t, tries && errors.Is(err, natslock.ErrLocked), "%v: %v", own, err)
								continue
							}
							mu.Lock()
							for _, name := range own {
								assert.False(t, inside[name], "two holders of %s", name)
								inside[name] = true
							}
							mu.Unlock()
							time.Sleep(time.Duration(rng.IntN(5)) * time.Millisecond)
							mu.Lock()
							for _, name := range own {
								inside[name] = false
							}
							mu.Unlock()
							assert.NoError(t, locks.Unlock(t.Context()))
						}
					})
				}
			}
			all.Wait()
			time.Sleep(2 * time.Minute) // by now nothing lingers
			kit.WantNothing(t, s)
			require.False(t, t.Failed())
		})
	}
}
