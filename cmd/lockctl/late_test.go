//go:build unix

package main_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
)

// TestLateRenewal checks that check reports a late renewal while it is overdue, and that watch and
// history report it afterwards.
func TestLateRenewal(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	s := remembered(t)
	w := watch(t, s, "--json")
	// Observers expect a renewal after 5 s and consider it late after 10 s, and the lease is valid
	// for 14 s. The client renews after 1 s, when it begins to watch the lock. The test then drops
	// its writes between 2 s and 11.5 s, which leaves several seconds for a check before the late
	// renewal and for one after it.
	c, f := kit.Faulty(t, s.Connect(), 1, natslock.WithTTL(15*time.Second))
	begun := time.Now()
	f.OnSend(func(int, kvstore.Write) faults.Fate {
		if since := time.Since(begun); since > 2*time.Second && since < 11500*time.Millisecond {
			return faults.Drop
		}
		return faults.Pass
	})
	l, err := c.Lock(t.Context(), "x")
	require.NoError(t, err)
	check := func() int {
		code, out, errs := run(t, s, "check", "--late", "1500ms")
		require.Contains(t, []int{0, 1}, code, errs)
		if code == 1 {
			require.Regexp(t, `^mutex x is renewed late: \S+ last renewed it ([6-9]\.\d|1\d)s ago \(limit 1.5s\)\n$`, out)
		}
		return code
	}
	require.Zero(t, check())
	kit.Eventually(t, "a late renewal", func() bool { return check() == 1 })
	kit.Eventually(t, "the renewal", func() bool { return strings.Contains(w.out.String(), `"late"`) })
	evs := eventsOf(t, w, 2)
	require.Equal(t, []string{"granted", "late"}, kinds(evs))
	require.Greater(t, *evs[1].After, 10.0)
	require.Nil(t, evs[0].After)
	require.Zero(t, check())
	require.Equal(t, []string{"gap", "granted", "late"}, kinds(remembers(t, s, "x")))
	_, out, _ := run(t, s, "history", "x")
	require.Regexp(t, `  late      mutex +x  \S+:\d+  token \d{16}  1\ds after the last renewal, TTL 15s  held 1\ds\n$`, out)
	require.NoError(t, l.Unlock(t.Context()))
	require.NoError(t, c.Close(t.Context()))
}
