package doctor

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/natslock/admin"
)

// TestRenewals checks the limits: a renewal is late a second after a third of the TTL, and up to a
// tenth of the demand may be late.
func TestRenewals(t *testing.T) {
	t.Parallel()
	at := time.Now()
	// of returns the doctor's counts for records with this TTL, given the age of each record's last
	// write.
	of := func(ttl time.Duration, ages ...time.Duration) *renewals {
		r := &renewals{at: at}
		for _, age := range ages {
			r.count(ttl, at.Add(ttl-age), func() string { return "it" })
		}
		return r
	}
	const s = time.Second
	in := func(n int, age time.Duration) (ages []time.Duration) {
		for range n {
			ages = append(ages, age)
		}
		return ages
	}
	for name, tc := range map[string]struct {
		*renewals
		status, found string
	}{
		"none":         {of(15 * s), checkOK, "none needed"},
		"in time":      {of(15*s, 0, 5*s, 6*s), checkOK, "3 records to renew: a demand of 0.6 a second, 0.6 confirmed in time"},
		"read later":   {of(15*s, -3*s), checkOK, "1 record to renew: a demand of 0.2 a second, 0.2 confirmed"},
		"late":         {of(15*s, 0, 6*s+1, 10*s), checkWarning, "a demand of 0.6 a second, 0.2 confirmed in time; 2 late, the latest by 5.0s: it"},
		"a tenth late": {of(15*s, append(in(9, 5*s), 14*s)...), checkOK, "a demand of 2.0 a second, 1.8 confirmed in time; 1 late, the latest by 9.0s"},
		"a ninth late": {of(15*s, append(in(8, 5*s), 14*s)...), checkWarning, "1 late"},
		"a short TTL":  {of(s, 2*s/3), checkOK, "a demand of 3.0 a second"},
		"short, late":  {of(s, 2*s/3+s/100), checkWarning, "1 late"},
		"no TTL":       {of(0, s), checkOK, "none needed"},
	} {
		status, found, repair := tc.judge()
		require.Equal(t, tc.status, status, name)
		require.Contains(t, found, tc.found, name)
		require.Equal(t, status == checkOK, repair == "", name)
	}
}

// TestRenewed checks that records that no client renews add no demand.
func TestRenewed(t *testing.T) {
	t.Parallel()
	require.True(t, renewed(admin.Holder{}))
	require.True(t, renewed(admin.Holder{Lingers: true, Idle: true}))
	for _, h := range []admin.Holder{{Fixed: true}, {Unreadable: true}, {Overdue: true}, {Broken: &admin.Broken{}}} {
		require.False(t, renewed(h), "%+v", h)
	}
}
