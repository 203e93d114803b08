package core

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/record"
)

// TestRequestsRecall: who is asked for an idle lease.
func TestRequestsRecall(t *testing.T) {
	lingers := stored(10, "you", 1, record.StatusHeld)
	lingers.Lingers = true
	require.True(t, RequestsRecall(lingers, 0, false, false))
	require.True(t, RequestsRecall(lingers, 0, true, false), "its release is on the way")
	require.False(t, RequestsRecall(lingers, 1, false, false), "others are queued")
	require.False(t, RequestsRecall(lingers, 0, true, true), "the client knows")
	require.True(t, RequestsRecall(lingers, 0, false, true))
	for _, change := range []func(e *record.Entry){
		func(e *record.Entry) { e.Lingers = false }, func(e *record.Entry) { e.Unreadable = true }, func(e *record.Entry) { e.Status = record.StatusBroken },
	} {
		e := lingers
		change(&e)
		require.False(t, RequestsRecall(e, 0, false, false))
	}
}

// TestRecallFound: what its client makes of the question that has revision 20.
func TestRecallFound(t *testing.T) {
	e := stored(10, "you", 1, record.StatusHeld)
	require.Equal(t, RecallWait, RecallFound(e, "you", 20, false))
	require.Equal(t, RecallRefused, RecallFound(e, "you", 20, true))
	e.InUse = 19
	require.Equal(t, RecallWait, RecallFound(e, "you", 20, false), "it was asked by somebody else")
	e.InUse = 20
	require.Equal(t, RecallRefused, RecallFound(e, "you", 20, false))
	require.Equal(t, RecallGranted, RecallFound(e, "me", 20, false))
	require.Equal(t, RecallGranted, RecallFound(ended(11, "you", record.StatusGone), "you", 20, true))
}
