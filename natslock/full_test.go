package natslock_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/kvstore"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// TestFullBucket: a full bucket on one server refuses new locks, and never ends a lease. A
// server takes a replacement that is not larger than what it replaces, so the record of a
// lease has one size from its grant on.
func TestFullBucket(t *testing.T) {
	for name, opts := range map[string][]natslock.LockOption{
		"plain": {natslock.TTL(time.Second)}, "linger": {natslock.TTL(time.Second), natslock.Linger(time.Hour)},
		"meta": {natslock.TTL(time.Second), natslock.Meta(map[string]string{"a": "b"})},
	} {
		t.Run(name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				c := join(t, s, natslock.WithBucketConfig(kvstore.Config{MaxBytes: 64 << 10}))
				l := mustLock(t, c.Client, "l", opts...)
				r := newRaw(t, s.Connect())
				for size := 4096; size > 0; size /= 2 {
					for i := 0; ; i++ {
						if _, err := r.js.Publish(t.Context(), fmt.Sprintf("%slock.fill.%d.%d", subjects, size, i), make([]byte, size)); err != nil {
							break
						}
					}
				}
				_, err := c.TryLock(t.Context(), "other")
				require.ErrorIs(t, err, natslock.ErrUnavailable)
				time.Sleep(3 * time.Minute) // 540 renewals
				wantHeld(t, l)
				require.NoError(t, l.Unlock(context.Background()))
			})
		})
	}
}
