//go:build unix

package main_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
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
	kit.ForgetTTLs(t, s)
	s.Restart()
	kit.Eventually(t, "it is overdue", func() bool {
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

// "doctor --repair" removes what is overdue of the locks that its pattern matches, and
// leaves what lives alone.
func TestDoctorRepairs(t *testing.T) {
	t.Parallel()
	s := serve(t)
	c := client(t, s)
	for _, name := range []string{"left.a", "left.b", "right"} {
		take(t, c, name, natslock.TTL(time.Second), natslock.NoRenew())
	}
	s.Stop()
	kit.ForgetTTLs(t, s)
	s.Restart()
	hold(t, s, "held")
	kit.Eventually(t, "all are overdue", func() bool {
		n := 0
		for _, l := range locks(t, s, "ls") {
			if l.Holder.Overdue {
				n++
			}
		}
		return n == 3
	})
	row := doctor(t, s).row(t, "expiry")
	require.Equal(t, "warning", row.Status)
	require.Contains(t, row.Repair, "lockctl doctor --repair")
	d := doctor(t, s, "--repair", "left.>")
	require.Equal(t, "2 overdue records removed", d.row(t, "repair").Found)
	require.Len(t, locks(t, s, "ls"), 2)
	d = doctor(t, s, "--repair")
	require.Equal(t, "1 overdue record removed", d.row(t, "repair").Found)
	require.Equal(t, "ok", d.row(t, "expiry").Status)
	require.Zero(t, d.ExitCode)
	l := locks(t, s, "ls")
	require.Len(t, l, 1)
	require.Equal(t, "held", l[0].Name)
}
