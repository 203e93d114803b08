//go:build unix

package main_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/testutil"
)

// A user of some names that asks for more learns it once, and that a narrower pattern works.
func TestRefusedUser(t *testing.T) {
	t.Parallel()
	s := testutil.RunServer(t, testutil.WithConfigText(userList(map[string]string{
		"plain": block(t, "orders.>", "--own-only"),
		"quiet": block(t, "orders.>", "--own-only", "--inbox-prefix", "_INBOX_quiet.a"),
	})))
	withBucket(t, s, "--user", "root", "--password", "p")
	for _, name := range []string{"users", "orders.1", "items", "zebras"} { // the refused ones are neither first nor alone
		hold(t, s, name, "--user", "root", "--password", "p")
	}
	for _, c := range []struct {
		args []string
		said string
	}{
		{[]string{"watch"}, `cannot watch locks >: .*; watch the names that this user may see, such as "orders\.>"`},
		{[]string{"watch", "*.1"}, `cannot watch locks \*\.1: .*`},
		{[]string{"ls"}, `list locks ">": .*; list the names that this user may read, such as "orders\.>"`},
		{[]string{"partitions", "--watch"}, `cannot watch locks >: .*; watch the names that this user may see, such as "orders\.>"`},
		{[]string{"info", "users"}, `inspect lock "users": .*`},
		{[]string{"break", "-f", "users"}, `inspect lock "users": .*`},
		{[]string{"run", "users", "--", "true"}, `acquire lock "users": .*`},
		{[]string{"run", "-n", "users", "--", "true"}, `acquire lock "users": .*`},
		{[]string{"acquire", "users"}, `acquire lock "users": .*`},
	} {
		code, out, errs := run(t, s, append([]string{"--user", "plain", "--password", "p"}, c.args...)...)
		require.Equal(t, 77, code, "%q: %s", c.args, errs)
		require.Empty(t, out, "%q", c.args)
		lines := strings.Split(regexp.MustCompile(`^lockctl: watching .*\n`).ReplaceAllString(errs, ""), "\n")
		require.Len(t, lines, 2, "%q: %s", c.args, errs)
		require.Regexp(t, "^lockctl: "+c.said+"$", lines[0], "%q", c.args)
		require.Contains(t, lines[0], "permissions violation", "%q", c.args)
	}
	ls := func(user string, flags ...string) (int, string) {
		code, _, errs := run(t, s, append([]string{"--user", user, "--password", "p"}, append(flags, "ls", "orders.>")...)...)
		return code, errs
	}
	code, errs := ls("plain")
	require.Zero(t, code, errs)
	code, errs = ls("quiet")
	require.Equal(t, 77, code, errs)
	require.Equal(t, 1, strings.Count(errs, "lockctl: "), errs)
	require.Contains(t, errs, "name their prefix with --inbox-prefix")
	code, errs = ls("quiet", "--inbox-prefix", "_INBOX_quiet.a")
	require.Zero(t, code, errs)
	p := start(t, s, "--user", "plain", "--password", "p", "watch", "orders.>")
	said(t, p, "watching orders.>")
}
