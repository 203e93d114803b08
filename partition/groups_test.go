package partition

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

// TestGroups checks that Groups finds groups among other locks, including a group whose name lies
// within another group's names.
func TestGroups(t *testing.T) {
	token := uint64(0)
	mutex := func(name string, meta ...string) admin.Info {
		token++
		h := admin.Holder{Holder: natslock.Holder{Token: token}}
		if len(meta) > 0 {
			h.Meta = map[string]string{}
			for i, key := range []string{idKey, weightKey, countKey}[:len(meta)] {
				h.Meta[key] = meta[i]
			}
		}
		return admin.Info{Kind: admin.KindMutex, Name: name, Holder: &h}
	}
	over := mutex("ended.part.1", "gone")
	over.Holder.Overdue = true
	readers := mutex("rw.member.x", "x", "1", "4")
	readers.Kind = admin.KindRW
	again := mutex("restarted.member.r", "r", "1", "1")
	again.Holder.PID = 7
	groups := Groups([]admin.Info{
		mutex("a"), mutex("member.x"), mutex("part.1", "x"), over, readers,
		mutex("left.part.2", "gone"), // the last worker is leaving
		mutex("b.a.member.y", "y", "1", "2"),
		mutex("b.a.part.1", "y"),
		mutex("b.member.late", "late", "1", "9"),
		mutex("b.member.w=2E1", "w.1", "2", "3"),
		mutex("b.part.0", "w.1"), mutex("b.part.01", "w.1"), mutex("b.part.x", "w.1"),
		mutex("nobody.part.3"), mutex("nobody.member.z"),
		mutex("*.member.v", "v", "1", "2"),
		again, mutex("restarted.part.0", "r"), // the partition still belongs to the previous process
	})
	var shown []string
	for _, g := range groups {
		text := g.Group + ":" + strconv.Itoa(g.Count)
		for _, m := range g.Members {
			text += " " + m.ID
		}
		for _, p := range g.Partitions {
			text += " [" + p.Member + ">" + p.Planned + "]"
			if p.Former {
				text += "'"
			}
		}
		for _, m := range g.Refused {
			text += " not " + m.ID
		}
		shown = append(shown, text)
	}
	require.Equal(t, []string{
		"b:9 late [w.1>late] [>late] [>late] [>late] [>late] [>late] [>late] [>late] [>late] not w.1",
		"b.a:2 y [>y] [y>y]",
		"left:3 [>] [>] [gone>]",
		"restarted:1 r [r>r]'",
	}, shown)
}
