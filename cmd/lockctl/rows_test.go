package main

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

// TestRows checks that ls has a row for each lock and another for a waiting writer, and that
// readers and permits share a row unless the table is wide.
func TestRows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hold := func(owner string, set ...func(*admin.Holder)) admin.Holder {
			h := admin.Holder{Holder: natslock.Holder{Owner: owner, Host: "z", Token: 64, ID: "ID", Since: time.Now().Add(-90 * time.Second), Expires: time.Now().Add(12 * time.Second)}, TTL: 15 * time.Second, Revision: 7}
			for _, set := range set {
				set(&h)
			}
			return h
		}
		idle := func(h *admin.Holder) { h.Idle = true }
		broken := func(h *admin.Holder) { h.Broken = &admin.Broken{} }
		mutex := func(h admin.Holder) admin.Info { return admin.Info{Kind: admin.KindMutex, Name: "x", Holder: &h} }
		gate := hold("import")
		for name, c := range map[string]struct {
			info         admin.Info
			narrow, wide string
		}{
			"held":       {mutex(hold("web-1")), "mutex x exclusive web-1 on z 64 1m30s 12s - 0", "mutex x exclusive web-1 on z 64 1m30s 12s - 0 15s 7 ID"},
			"idle":       {mutex(hold("web-1", idle)), "mutex x idle web-1 on z 64 1m30s 12s - 0", ""},
			"broken":     {mutex(hold("web-1", broken)), "mutex x exclusive web-1 on z (broken) 64 1m30s 12s - 0", ""},
			"overdue":    {mutex(hold("web-1", func(h *admin.Holder) { h.Overdue = true })), "mutex x exclusive web-1 on z 64 1m30s overdue - 0", ""},
			"endless":    {mutex(hold("web-1", func(h *admin.Holder) { h.Expires, h.TTL = time.Time{}, 0 })), "mutex x exclusive web-1 on z 64 1m30s never - 0", "mutex x exclusive web-1 on z 64 1m30s never - 0 - 7 ID"},
			"unreadable": {mutex(hold("", func(h *admin.Holder) { h.Unreadable = true })), "mutex x exclusive unknown (unreadable record) 64 1m30s 12s - 0", ""},
			"free":       {admin.Info{Kind: admin.KindMutex, Name: "x", Queue: []admin.Waiter{{Goroutines: 2}}}, "mutex x free - - - - - 2", "mutex x free - - - - - 2 - - -"},
			"readers": {admin.Info{Kind: admin.KindRW, Name: "x", Readers: []admin.Holder{hold("one"), hold("two", broken)}}, "rw x shared one on z and 1 more (1 broken) - 1m30s 12s 2 0",
				"rw x shared one on z 64 1m30s 12s 2 0 15s 7 ID\nrw x shared two on z (broken) 64 1m30s 12s 15s 7 ID"},
			"idle readers": {admin.Info{Kind: admin.KindRW, Name: "x", Readers: []admin.Holder{hold("one", idle), hold("two", idle)}}, "rw x idle one on z and 1 more - 1m30s 12s 2 0",
				"rw x idle one on z 64 1m30s 12s 2 0 15s 7 ID\nrw x idle two on z 64 1m30s 12s 15s 7 ID"},
			"one is inside": {admin.Info{Kind: admin.KindRW, Name: "x", Readers: []admin.Holder{hold("one", idle), hold("two")}}, "rw x shared one on z and 1 more - 1m30s 12s 2 0", ""},
			"a writer waits": {admin.Info{Kind: admin.KindRW, Name: "x", Holder: &gate, Readers: []admin.Holder{hold("one"), hold("two")}},
				"rw x shared one on z and 1 more - 1m30s 12s 2 0\nrw x exclusive import on z (waits for readers) 64 1m30s 12s", ""},
			"permits": {admin.Info{Kind: admin.KindSemaphore, Name: "x", Permits: []admin.Holder{hold("one", func(h *admin.Holder) { h.Of, h.Slot = 3, 1 })}}, "semaphore x 1 of 3 one on z - 1m30s 12s - 0",
				"semaphore x slot 1 one on z 64 1m30s 12s - 0 15s 7 ID"},
		} {
			for wide, want := range map[bool]string{false: c.narrow, true: c.wide} {
				var lines []string
				for _, row := range (&lsCmd{Wide: wide}).rows(c.info, false) {
					var cells []string
					for _, cell := range row {
						if text := cell.(string); text != "" {
							cells = append(cells, text)
						}
					}
					lines = append(lines, strings.Join(cells, " "))
				}
				if want != "" {
					require.Equal(t, want, strings.Join(lines, "\n"), name)
				}
			}
			require.True(t, strings.HasSuffix((&lsCmd{}).rows(c.info, true)[0][9].(string), "also another kind"), name)
		}
	})
}
