package doctor

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/cmd/lockctl/internal/session"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

// TestOutlived checks that each kind of record that outlives its TTL or has none gets a row, which
// says how to remove it.
func TestOutlived(t *testing.T) {
	t.Parallel()
	lives := natslock.Holder{Expires: time.Now().Add(time.Hour)}
	held := func(name string, h admin.Holder, queue ...admin.Waiter) admin.Info {
		return admin.Info{Kind: admin.KindMutex, Name: name, Holder: &h, Queue: queue}
	}
	late := admin.Holder{Holder: natslock.Holder{Expires: time.Now().Add(-time.Hour)}, Overdue: true}
	for name, c := range map[string]struct {
		infos         []admin.Info
		found, repair []string
	}{
		"none": {[]admin.Info{held("a", admin.Holder{Holder: lives})}, []string{"no record of 1 lock outlives its TTL"}, []string{""}},
		"overdue": {[]admin.Info{held("a", late), held("b", admin.Holder{Holder: lives}, admin.Waiter{ID: "ID", Overdue: true})},
			[]string{"2 records whose TTL has ended but that the server has not removed, because it forgot TTLs in a restart or is late: the holder of mutex lock a"},
			[]string{`"lockctl doctor --repair" removes them`}},
		"without a TTL": {[]admin.Info{held("a", admin.Holder{}, admin.Waiter{ID: "ID"})},
			[]string{"1 record without a TTL, blocking other clients forever: the holder of mutex lock a", "1 record without a TTL in queues, blocking the waiters behind them forever: place ID of mutex lock a"},
			[]string{`"lockctl break NAME" frees the lock`, `"nats kv del natslock KEY"`}},
	} {
		d := doctor{g: &session.Globals{Bucket: "natslock"}}
		d.records(func(yield func(admin.Info, error) bool) {
			for _, info := range c.infos {
				if !yield(info, nil) {
					return
				}
			}
		}, &renewals{at: time.Now()})
		rows := d.Checks[:len(d.Checks)-1] // the last one is about renewals
		require.Len(t, rows, len(c.found), name)
		for i, row := range rows {
			require.Equal(t, c.found[i], row.Found, name)
			require.Contains(t, row.Repair, c.repair[i], name)
			require.Equal(t, c.repair[i] != "", row.Status == checkWarning, name)
		}
	}
}

// TestRemoved checks what --repair reports for each outcome. A visit that leaves records behind
// asks for another one.
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
