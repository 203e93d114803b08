package doctor_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// TestDoctorCountsRenewals checks that the demand includes the records of all kinds of locks.
func TestDoctorCountsRenewals(t *testing.T) {
	t.Parallel()
	s := testutil.RunServer(t)
	withBucket(t, s)
	row := doctor(t, s).row(t, "renewals")
	require.Equal(t, "ok", row.Status)
	require.Contains(t, row.Found, "none needed")

	c := client(t, s)
	take(t, c, "a.held", natslock.TTL(time.Minute))
	take(t, c, "a.fixed", natslock.NoRenew())
	idle := take(t, c, "a.idle", natslock.TTL(10*time.Second), natslock.Linger(time.Hour))
	require.NoError(t, idle.Unlock(context.Background()))
	waits(t, s, "a.held", natslock.TTL(30*time.Second))
	d := doctor(t, s, "a.>")
	require.Equal(t, "ok", d.row(t, "renewals").Status)
	require.Equal(t, 3, d.Renewals.Records)
	require.InDelta(t, 3./60+3./10+3./15, d.Renewals.Demand, 1e-3, "of the lock, the idle lock, and the place, which has 15 s")
	require.InDelta(t, d.Renewals.Demand, d.Renewals.Confirmed, 1e-3)
	require.Zero(t, d.Renewals.Late)
}

// TestDoctorFindsLateRenewals checks that the doctor warns of a lock whose client is cut off and
// therefore cannot renew it.
func TestDoctorFindsLateRenewals(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	s := serve(t)
	nc, link := s.ConnectLink()
	cut, err := natslock.New(t.Context(), nc)
	require.NoError(t, err)
	take(t, cut, "b.1", natslock.TTL(9*time.Second))
	link.Cut()
	var d diagnosis
	kit.Eventually(t, "a warning", func() bool {
		d = doctor(t, s, "b.>")
		return d.row(t, "renewals").Status == "warning"
	})
	require.Equal(t, 1, d.Renewals.Late)
	require.InDelta(t, 1./3, d.Renewals.Demand, 1e-3)
	require.Zero(t, d.Renewals.Confirmed)
	require.Greater(t, d.Renewals.Latest, 1.)
	require.Contains(t, d.row(t, "renewals").Found, "the holder of mutex lock b.1")
	require.Contains(t, d.row(t, "renewals").Repair, "many-locks.md")
}
