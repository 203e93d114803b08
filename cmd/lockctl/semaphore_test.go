//go:build unix

package main_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSemaphore checks that two commands run with a permit each while a third waits, that breaking
// a permit lets it in, and that all commands show this state.
func TestSemaphore(t *testing.T) {
	t.Parallel()
	s := serve(t)
	_, one := hold(t, s, "x", "--permits", "2", "--meta", "who=one")
	_, zero := hold(t, s, "x", "--permits", "2")
	code, _, errs := run(t, s, "run", "--permits", "2", "-n", "x", "--", "true")
	require.Equal(t, 1, code)
	require.Contains(t, errs, `semaphore "x" has no free permit; one is held by`)
	slot := filepath.Join(t.TempDir(), "slot")
	third := start(t, s, "run", "--permits", "2", "x", "--", "sh", "-c", "echo $LOCK_SLOT $LOCK_TOKEN > "+slot)
	awaitQueue(t, s, "x", 1)

	_, out, _ := run(t, s, "ls")
	require.Regexp(t, `(?m)^semaphore +x +2 of 2 +\S+.* and 1 more +- .* 1$`, out)
	_, out, _ = run(t, s, "ls", "--wide")
	require.Regexp(t, `(?m)^semaphore +x +slot 0 `, out)
	require.Regexp(t, `(?m)^semaphore +x +slot 1 `, out)
	_, out, _ = run(t, s, "info", "x")
	require.Contains(t, out, "semaphore x: 2 of 2 permits taken")
	require.Regexp(t, `(?m)^  slot 1 `, out)
	require.Regexp(t, `(?m)^  queue of 1$`, out)
	require.Contains(t, out, "one of 2")
	_, out, _ = run(t, s, "info", "--json", "x")
	var infos []struct {
		Kind, Mode string
		Permits    []struct {
			holder
			Slot, Of int
		}
		Queue []struct{ Of int }
	}
	require.NoError(t, json.Unmarshal([]byte(out), &infos))
	require.Len(t, infos, 1)
	l := infos[0]
	require.Equal(t, []string{"semaphore", "shared"}, []string{l.Kind, l.Mode})
	require.Len(t, l.Permits, 2)
	require.Equal(t, []int{0, 2, 1, 2}, []int{l.Permits[0].Slot, l.Permits[0].Of, l.Permits[1].Slot, l.Permits[1].Of})
	require.Equal(t, map[string]string{"who": "one"}, l.Permits[1].Meta)
	require.Equal(t, 2, l.Queue[0].Of)

	code, _, errs = run(t, s, "break", "-f", "x")
	require.Equal(t, 64, code)
	require.Contains(t, errs, "several holders: choose one with --id")
	code, out, errs = run(t, s, "break", "-f", "--kind", "semaphore", "--id", l.Permits[1].ID, "x")
	require.Zero(t, code, errs)
	require.Contains(t, out, "semaphore x")
	require.Regexp(t, `(?m)^  slot 1 `, out)
	gone(t, one)
	require.Zero(t, third.wait())
	text, err := os.ReadFile(slot)
	require.NoError(t, err)
	require.Equal(t, "1", strings.Fields(string(text))[0])
	require.True(t, running(zero), "the other holder goes on")
}
