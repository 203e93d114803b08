//go:build unix

package smoke_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/testutil"
)

// says runs an example to its end. Each line of its output begins with the pattern of the
// same line, and lines without a pattern may follow. It returns those.
func says(t *testing.T, s *testutil.Server, name string, patterns ...string) (more []string) {
	t.Helper()
	p := start(t, s, name)
	p.mustEnd()
	lines := strings.Split(strings.TrimSpace(p.out.String()), "\n")
	require.GreaterOrEqual(t, len(lines), len(patterns))
	for i, pattern := range patterns {
		require.Regexp(t, "^(?:"+pattern+")$", lines[i])
	}
	return lines[len(patterns):]
}

// Each end of a lock has its cause, and 100 locks share a few goroutines.
func gocell(t *testing.T, s *testutil.Server) {
	require.Empty(t, says(t, s, "gocell",
		"a renewal after the end is refused: true",
		"held: held",
		"released twice: <nil> <nil> and released",
		"request t-17 is over: the parent ended: the user has left",
		"released with a context that has ended: <nil>",
		"broken: <nil> and lost",
		`locks: 100 goroutines: \d`,
		"drained: <nil>",
		"not drained: true and shut down",
	))
}

// The process that leads is killed, and another process leads with a greater token. All
// others end when the program does.
func spindle(t *testing.T, s *testutil.Server) {
	p := start(t, s, "spindle")
	p.mustEnd()
	killed := p.find(`(?m)^killed: (\w+) <nil>$`)
	next := p.find(`(?m)^took over: (\w+) after \S+ with a greater token: true$`)
	require.Len(t, killed, 1)
	require.Len(t, next, 1)
	require.NotEqual(t, killed[0][1], next[0][1])
	ended := p.find(`(\w+): ends: election "spindle.leader": context canceled`)
	require.Len(t, ended, 2)
	for _, e := range ended {
		require.NotEqual(t, killed[0][1], e[1])
	}
}
