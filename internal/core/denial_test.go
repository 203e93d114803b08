package core

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/record"
)

// TestDenial checks that a "no" stands if it was true at some moment during the call.
func TestDenial(t *testing.T) {
	holder := stored(7, "A", 1, record.StatusHeld)
	for _, c := range []struct {
		name   string
		d      Denial
		busy   bool
		holder record.Entry
		queued bool
		want   Doubt
	}{
		{"held, by the leader", Denial{Leader: true}, true, holder, false, NoDoubt},
		{"queued for, by the leader", Denial{Leader: true}, true, record.Entry{}, true, NoDoubt},
		{"held, by a replica", Denial{}, true, holder, false, AskLeader},
		{"held, by a replica that has what the leader named", Denial{Named: 7}, true, holder, false, AskClock},
		{"held, by a replica that lags behind that", Denial{Named: 8}, true, holder, false, AskLeader},
		{"queued for, by a replica", Denial{Named: 7}, true, record.Entry{}, true, AskLeader},
		{"busy by what is not known", Denial{Leader: true}, true, record.Entry{}, false, AskLeader},
		{"free, and another was quicker", Denial{Leader: true}, false, record.Entry{}, false, AskLeader},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Equal(t, c.want, c.d.LockRead(c.busy, c.holder, c.queued))
		})
	}
	d := Denial{Named: 7}
	require.Equal(t, NoDoubt, d.ClockRead(false))
	require.Equal(t, AskLeader, d.ClockRead(true), "an overdue record holds nothing")
}
