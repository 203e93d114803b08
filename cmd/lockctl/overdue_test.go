//go:build unix

package main_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
)

// A lock that its server has forgotten to remove is shown as overdue, by ls, info,
// their JSON and the doctor, and the next acquire gets it.
func TestOverdueIsShown(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	s := serve(t)
	c := client(t, s)
	take(t, c, "left", natslock.TTL(4*time.Second), natslock.NoRenew())
	s.Stop()
	s.ForgetTTLs()
	s.Restart()
	eventually(t, "it is overdue", func() bool {
		l := locks(t, s, "ls")
		return len(l) == 1 && l[0].Holder.Overdue
	})
	_, out, _ := run(t, s, "ls")
	require.Contains(t, out, "overdue")
	_, out, _ = run(t, s, "info", "left")
	require.Contains(t, out, "overdue: nobody holds it")
	row := doctor(t, s).row(t, "expiry")
	require.Equal(t, "warning", row.Status)
	require.Contains(t, row.Found, "the holder of mutex lock left")
	code, _, _ := run(t, s, "run", "left", "--", "true")
	require.Zero(t, code)
	require.Equal(t, "ok", doctor(t, s).row(t, "expiry").Status)
}
