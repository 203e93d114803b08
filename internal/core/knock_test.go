package core

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/record"
)

// TestKnocks: who is asked for an idle lease.
func TestKnocks(t *testing.T) {
	lingers := stored(10, "you", 1, record.StatusHeld)
	lingers.Lingers = true
	require.True(t, Knocks(lingers, 0, false, false))
	require.True(t, Knocks(lingers, 0, true, false), "its release is on the way")
	require.False(t, Knocks(lingers, 1, false, false), "others are queued")
	require.False(t, Knocks(lingers, 0, true, true), "the client knows")
	require.True(t, Knocks(lingers, 0, false, true))
	for _, change := range []func(e *record.Entry){
		func(e *record.Entry) { e.Lingers = false }, func(e *record.Entry) { e.Unreadable = true }, func(e *record.Entry) { e.Status = record.StatusBroken },
	} {
		e := lingers
		change(&e)
		require.False(t, Knocks(e, 0, false, false))
	}
}

// TestKnockFound: what its client makes of the question that has revision 20.
func TestKnockFound(t *testing.T) {
	e := stored(10, "you", 1, record.StatusHeld)
	require.Equal(t, KnockWait, KnockFound(e, "you", 20, false))
	require.Equal(t, KnockRefused, KnockFound(e, "you", 20, true))
	e.InUse = 19
	require.Equal(t, KnockWait, KnockFound(e, "you", 20, false), "it was asked by somebody else")
	e.InUse = 20
	require.Equal(t, KnockRefused, KnockFound(e, "you", 20, false))
	require.Equal(t, KnockGone, KnockFound(e, "me", 20, false))
	require.Equal(t, KnockGone, KnockFound(ended(11, "you", record.StatusGone), "you", 20, true))
}
