package show

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/natslock/admin"
)

// TestGaps checks that gaps for unknown locks are summed up in one line, and that gaps with further
// information are kept out of it.
func TestGaps(t *testing.T) {
	t.Parallel()
	at := func(s int) time.Time { return time.Date(2026, 11, 23, 12, 0, s, 0, time.Local) }
	gap := func(s int, missed uint64) admin.Event {
		return admin.Event{Type: admin.EventGap, Time: at(s), Until: at(s + 1), Missed: missed}
	}
	var g Gaps
	require.Empty(t, g.Line())
	named, remade := gap(0, 1), gap(0, 0)
	named.Name, remade.Cause = "x", kvstore.ErrRemade
	for _, ev := range []admin.Event{named, remade, gap(0, 0)} {
		require.False(t, g.Add(ev))
	}
	require.True(t, g.Add(gap(1, 1)))
	require.Contains(t, g.Line(), "1 write to the bucket missing in 1 gap from "+clockMillis(at(1))+" to "+clockMillis(at(2))+", for other locks or")
	require.True(t, g.Add(gap(5, 196)))
	require.Contains(t, g.Line(), "197 writes to the bucket missing in 2 gaps from "+clockMillis(at(1))+" to "+clockMillis(at(6))+", ")
	require.Contains(t, GapLine(named), clockMillis(at(0))+"  gap       mutex         x  at least 1 event of it missing until "+clockMillis(at(1)))
	require.Contains(t, GapObject(named), `"missed":1,"remade":false,"kind":"mutex","name":"x"`)
	require.Contains(t, GapObject(gap(0, 1)), `"kind":null,"name":null`)
}
