//go:build unix

package main_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/plain"
	"github.com/natslock/locks/internal/verify/kit"
)

// TestShownNameCanBeUsed checks that every command accepts a name as any command prints it, on a
// terminal and in JSON, and that no two names look the same.
func TestShownNameCanBeUsed(t *testing.T) {
	t.Parallel()
	s := serve(t)
	c := client(t, s)
	names := []string{"\xff", "\xfe", "a.\xff.b", "\ufffd", `"a.\xff.b"`, `"`, "é", "\x1b[2J\n", "' *"}
	keepHeld(t, c, names...)
	code, table, errs := run(t, s, "ls")
	require.Zero(t, code, errs)
	inJSON := map[string]bool{}
	for _, l := range locks(t, s, "ls") {
		inJSON[l.Name] = true
	}
	require.Len(t, inJSON, len(names))
	for _, name := range names {
		shown := plain.Text(name)
		require.Contains(t, table, " "+shown+" ", "in the table")
		scripted := locks(t, s, "info", shown)[0].Name
		require.True(t, inJSON[scripted], "in JSON")
		require.Equal(t, scripted, locks(t, s, "ls", shown)[0].Name)
		for _, form := range []string{shown, scripted} {
			code, out, errs := run(t, s, "info", form)
			require.Zero(t, code, errs)
			require.Contains(t, out, "mutex "+shown+": held")
		}
	}
	events := watch(t, s, "--json")
	for _, name := range []string{"\xff", `"a.\xff.b"`, "\x1b[2J\n", "' *"} {
		shown := plain.Text(name)
		scripted := locks(t, s, "info", shown)[0].Name
		for _, form := range []string{shown, scripted} {
			code, _, errs := run(t, s, "acquire", "-n", form)
			require.Equal(t, 1, code, errs)
			code, _, errs = run(t, s, "check", "--held", "1h", form)
			require.Zero(t, code, errs)
			code, _, errs = run(t, s, "perms", form)
			require.Zero(t, code, errs)
		}
		// The name also appears in a command's environment and in an event.
		code, _, errs := run(t, s, "break", "-f", "--now", scripted)
		require.Zero(t, code, errs)
		code, out, errs := run(t, s, "run", scripted, "--", "sh", "-c", `"$0" info --json "$LOCK_NAME"`, binary)
		require.Zero(t, code, errs)
		var ls []lock
		require.NoError(t, json.Unmarshal([]byte(out), &ls))
		require.Equal(t, scripted, ls[0].Name)
		code, out, errs = run(t, s, "acquire", "--json", shown)
		require.Zero(t, code, errs)
		var taken lock
		require.NoError(t, json.Unmarshal([]byte(out), &taken))
		require.Equal(t, scripted, taken.Name)
		event, err := json.Marshal(scripted)
		require.NoError(t, err)
		kit.Eventually(t, "the event of "+shown, func() bool { return strings.Contains(events.out.String(), `"name":`+string(event)) })
	}
	code, _, errs = run(t, s, "info", "a\xff")
	require.Equal(t, 64, code)
	require.Equal(t, "lockctl: the argument \"a\\xff\" is not UTF-8; a lock name must be written as shown here, with its quotes\n", errs)
	code, _, errs = run(t, s, "info", `"a`)
	require.Equal(t, 64, code)
	require.Contains(t, errs, `"a begins with a double quote but is not a quoted name`)
}
