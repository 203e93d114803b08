package page

import (
	"errors"
	"html"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/mirror"
	"github.com/natslock/locks/natslock/admin"
)

// TestGroup checks that a group's page shows its workers and the partitions that are not where they
// should be, and that the page of a lock in the group links to it.
func TestGroup(t *testing.T) {
	s := newSource()
	token := uint64(0)
	set := func(name, member string, more ...string) {
		token++
		s.set(name, new(held("web", func(h *admin.Holder) {
			h.Token, h.Meta = token, map[string]string{"member": member}
			for i := 0; i < len(more); i += 2 {
				h.Meta[more[i]] = more[i+1]
			}
		})))
	}
	set("team.x.member.w0", "w0", "weight", "2", "partitions", "5")
	set("team.x.member.=3Cb>", "<b>", "weight", "1", "partitions", "5") // a worker with this ID would use another name
	set("team.x.part.0", "w0")
	set("team.x.part.1", "w0")
	set("team.x.part.3", "<i>")
	set("team.y.part.0", "w9")
	h := Handler(running(t, s), nil)
	text := func() string {
		page := get(t, h, "GET", "/group?name=team.x").Body.String()
		require.NotContains(t, page, "<i>")
		page = regexp.MustCompile(`<[^>]*>`).ReplaceAllString(page, " ")
		return strings.Join(strings.Fields(html.UnescapeString(page)), " ")
	}
	page := text()
	require.Contains(t, page, "team.x group partitions: 5, members: 1, unowned: 2, in motion: 1")
	require.Contains(t, page, "w0 2 2 5 web on vm:7 2027-01-15 08:00:00Z 0-1 <i> (leaving) - 1 0 web on vm:7 - 3")
	require.Contains(t, page, "Waiting 2 nobody w0 0 3 <i> w0 0 4 nobody w0 0 ")
	require.NotContains(t, page, "out of date")
	s.fail(errors.New("no connection"))
	require.Contains(t, text(), "no connection The data below may be out of date.")

	set("team.z.part.0", "w")
	s.set("team.z.member.w", new(held("web", func(h *admin.Holder) {
		h.Token, h.PID, h.Meta = 99, 8, map[string]string{"member": "w", "weight": "1", "partitions": "1"}
	})))
	page = regexp.MustCompile(`<[^>]*>`).ReplaceAllString(get(t, h, "GET", "/group?name=team.z").Body.String(), " ")
	page = strings.Join(strings.Fields(html.UnescapeString(page)), " ")
	require.Contains(t, page, "members: 1, unowned: 0, in motion: 1")
	require.Contains(t, page, "w 1 0 1 web on vm:8 2027-01-15 08:00:00Z w (leaving) - 1 0 web on vm:7 - 0")

	one := func(name string) string { return detailOf(s.Lock(mirror.ID{Name: name}), 0).Group }
	require.Equal(t, "team.x", one("team.x.part.3"))
	require.Equal(t, "team.x", one("team.x.member.w0"))
	set("team.part.0.x", "w0")
	require.Empty(t, one("team.part.0.x"))
	s.set("a.part.0", new(held("web")))
	require.Empty(t, one("a.part.0"), "no worker's")
}
