//go:build unix

package main_test

import (
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOwner checks that lockctl names holders, waiters and leaders by user and command, unless the
// user chooses a name, and never shows the command's arguments, which can contain secrets.
func TestOwner(t *testing.T) {
	t.Parallel()
	s := serve(t)
	me, err := user.Current()
	require.NoError(t, err)
	host := hostName(t)
	name := func(p *process, command string) string {
		return fmt.Sprintf("%s@%s:%d %s", me.Username, host, p.cmd.Process.Pid, command)
	}

	p := start(t, s, "run", "x", "--", "/bin/sh", "-c", "sleep 60; : password=geheim")
	held := await(t, s, "x", "a holder", func(l lock) bool { return l.Holder != nil })
	require.Equal(t, name(p, "sh"), held.Holder.Owner)
	waiter := start(t, s, "run", "--owner", "night shift", "x", "--", "true")
	awaitQueue(t, s, "x", 1)
	for _, args := range [][]string{{"ls"}, {"info", "x"}, {"info", "x", "--json"}, {"run", "-n", "x", "--", "true"}} {
		_, out, errs := run(t, s, args...)
		require.Contains(t, out+errs, name(p, "sh"), "%q", args)
		require.NotContains(t, out+errs, "geheim", "%q", args)
	}
	_, out, _ := run(t, s, "info", "x")
	require.Contains(t, out, fmt.Sprintf("night shift on %s:%d", host, waiter.cmd.Process.Pid))
	v := display(t, s, nil, "top")
	v.resize(160, 24)
	v.shows(name(p, "sh"))

	leader := start(t, s, "elect", "e", "--", "sleep", "60")
	leads := await(t, s, "e", "a leader", func(l lock) bool { return l.Holder != nil })
	require.Equal(t, name(leader, "sleep"), leads.Holder.Owner)
	start(t, s, "elect", "--owner", "second", "f", "--", "sleep", "60")
	await(t, s, "f", "a leader with a name", func(l lock) bool { return l.Holder != nil && l.Holder.Owner == "second" })

	// A long name is cut between two characters, and control sequences are quoted.
	long := filepath.Join(t.TempDir(), strings.Repeat("ä", 100)+"\x1b[2J")
	require.NoError(t, os.WriteFile(long, []byte("#!/bin/sh\nexec sleep 60\n"), 0o755))
	p = start(t, s, "run", "long", "--", long)
	await(t, s, "long", "a holder", func(l lock) bool {
		return l.Holder != nil && l.Holder.Owner == name(p, strings.Repeat("ä", 32))
	})
	steering := filepath.Join(t.TempDir(), "\x1b[2J")
	require.NoError(t, os.WriteFile(steering, []byte("#!/bin/sh\nexec sleep 60\n"), 0o755))
	start(t, s, "run", "steering", "--", steering)
	await(t, s, "steering", "a holder", func(l lock) bool { return l.Holder != nil })
	_, out, _ = run(t, s, "info", "steering")
	require.NotContains(t, out, "\x1b")
	require.Contains(t, out, `\x1b[2J`)

	code, _, errs := run(t, s, "run", "--owner", strings.Repeat("x", 1025), "y", "--", "true")
	require.Equal(t, 64, code, errs)
	require.Contains(t, errs, "WithOwner: 1025 bytes; the limit is 1024")
}

func hostName(t *testing.T) string {
	t.Helper()
	host, err := os.Hostname()
	require.NoError(t, err)
	return host
}
