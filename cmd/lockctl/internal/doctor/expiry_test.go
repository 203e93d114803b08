package doctor

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/natslock"
)

// TestRemoved: what --repair says of each outcome. A visit that leaves records asks for
// another one.
func TestRemoved(t *testing.T) {
	for _, tc := range []struct {
		removed, left int
		err           error
		status, found string
	}{
		{0, 0, nil, checkOK, "0 overdue records removed"},
		{1, 0, nil, checkOK, "1 overdue record removed"},
		{repairMost, 7, nil, checkWarning, "10000 overdue records removed, 7 left"},
		{3, 7, fmt.Errorf("late: %w", context.DeadlineExceeded), checkWarning, "3 overdue records removed, 7 left"},
		{3, 7, natslock.ErrPermission, checkError, "3 overdue records removed, 7 left: " + natslock.ErrPermission.Error()},
	} {
		var d doctor
		d.removed(tc.removed, tc.left, tc.err)
		require.Len(t, d.Checks, 1)
		row := d.Checks[0]
		require.Equal(t, []string{"repair", tc.status, tc.found}, []string{row.Check, row.Status, row.Found})
		require.Equal(t, tc.status == checkOK, row.Repair == "")
	}
}
