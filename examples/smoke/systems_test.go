//go:build unix

package smoke_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/testutil"
)

// says runs an example to completion and matches each line of its output, except the log, with the
// pattern for that line. It returns the lines that follow those with a pattern.
func says(t *testing.T, s *testutil.Server, name string, patterns ...string) (more []string) {
	t.Helper()
	p := start(t, s, name)
	p.mustEnd()
	lines := strings.Split(strings.TrimSpace(p.out.String()), "\n")
	lines = slices.DeleteFunc(lines, func(l string) bool { return strings.Contains(l, " WARN ") || strings.Contains(l, " INFO ") }) // logged by the library
	require.GreaterOrEqual(t, len(lines), len(patterns))
	for i, pattern := range patterns {
		require.Regexp(t, "^(?:"+pattern+")$", lines[i])
	}
	return lines[len(patterns):]
}

// gocell checks that every way a lock can end has its own cause, and that 100 locks share a few
// goroutines.
func gocell(t *testing.T, s *testutil.Server) {
	require.Empty(t, says(t, s, "gocell",
		"held: held",
		"released twice: <nil> <nil> and released",
		"request t-17 is over: the parent ended: the user left",
		"released with a context that has ended: <nil>",
		"broken: <nil> and lost",
		`locks: 100 goroutines: \d`,
		"drained: <nil>",
		"not drained: true and shut down",
	))
}

// spindle kills the leading process, and checks that another process takes over with a greater
// token and that all others exit when the program does.
func spindle(t *testing.T, s *testutil.Server) {
	p := start(t, s, "spindle")
	p.mustEnd()
	killed := p.find(`(?m)^killed: (\w+) <nil>$`)
	next := p.find(`(?m)^took over: (\w+) after \S+ with a higher token: true$`)
	require.Len(t, killed, 1)
	require.Len(t, next, 1)
	require.NotEqual(t, killed[0][1], next[0][1])
	ended := p.find(`(\w+): ended: election "spindle.leader": context canceled`)
	require.Len(t, ended, 2)
	for _, e := range ended {
		require.NotEqual(t, killed[0][1], e[1])
	}
}

// machinery checks that a lock ends on time without an unlock, and that no period has two reports.
func machinery(t *testing.T, s *testutil.Server) {
	reports := says(t, s, "machinery",
		"locked already: true",
		"locked after 3 retries: true",
		"freed in time: true true true <nil>",
	)
	seen := map[string]bool{}
	for _, r := range reports {
		require.Regexp(t, `^report of \d\d:\d\d:\d\d by worker \d$`, r)
		period, _, _ := strings.Cut(r, " by ")
		require.False(t, seen[period], "twice in a period: %v", reports)
		seen[period] = true
	}
	require.GreaterOrEqual(t, len(seen), 2, "%v", reports)
}

// grove checks that only the owner can extend or release a lock, and that the lock's key is the one
// that the comment names.
func grove(t *testing.T, s *testutil.Server) {
	require.Empty(t, says(t, s, "grove",
		"released before being held: invalid argument: .*",
		"extended by the owner: <nil>",
		"acquired twice: true",
		"acquired with 5 tries: true",
		"acquired with more: <nil>",
		"extended by the first: true",
		"released by the first: true",
		"held by the second: true true",
		"its key exists: <nil>",
		"released by the owner: <nil>",
		"its key was deleted: true",
	))
}

// distkit checks the outcome of each form of acquire, and that no reader overtakes a waiting
// writer.
func distkit(t *testing.T, s *testutil.Server) {
	require.Empty(t, says(t, s, "distkit",
		"invalid TTL: true",
		"not acquired; it is held by billing-1",
		"timed out after 50 ms: true",
		"guard: <nil> <nil> 0s",
		"guard: 0s and no longer the owner: true",
		"one-shot write alongside a reader is refused: true",
		"one-shot read after that: <nil>",
		"one-shot read past a waiting writer is refused: true",
		"bounded read past the writer times out: true",
		"the reader unlocks: <nil>",
		"the writer unlocks: <nil>",
		"tokens increase: true <nil>",
		"closed: <nil> <nil>",
	))
}
