//go:build unix

package main_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/testutil"
)

// Each role that "lockctl perms" prints, with each command, on three servers that want the
// certificates of their clients, in one of two accounts: it does what the role may, and names what
// is missing for the rest.
func TestRolesOnCluster(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	dir := t.TempDir()
	authority := newAuthority(t, dir)
	serverCert, serverKey := authority.issue("server")
	cert, key := authority.issue("client")
	roles := map[string][]string{
		"user": {"orders.>", "--own-only"}, "reader": {"orders.>"},
		"observer": {"--role", "observer"}, "some": {"orders.>", "--own-only", "--role", "observer"},
		"operator": {"--role", "operator"}, "team": {"orders.>", "--role", "operator"},
		"admin": {"--role", "admin"}, "lead": {"orders.>", "--role", "admin", "--history"},
	}
	users := func(account string) string {
		text := fmt.Sprintf("{ user: root%s, password: p }\n", account)
		for role, args := range roles {
			text += fmt.Sprintf("{ user: %s%s, password: p\n%s}\n", role, account, block(t, append(args, "--inbox-prefix", "_INBOX_"+role)...))
		}
		return text
	}
	c := testutil.RunCluster(t, 3, testutil.WithConfigText(fmt.Sprintf(
		"tls { cert_file: %q, key_file: %q, ca_file: %q, verify: true }\naccounts { A { jetstream: enabled, users: [ %s ] }, B { jetstream: enabled, users: [ %s ] } }",
		serverCert, serverKey, authority.file, users("A"), users("B"))))
	as := func(role, account string, args ...string) (code int, out, errs string) {
		all := []string{"-s", c.URLs(), "--tlscert", cert, "--tlskey", key, "--tlsca", authority.file, "--user", role + account, "--password", "p"}
		if role != "root" {
			all = append(all, "--inbox-prefix", "_INBOX_"+role)
		}
		return run(t, nil, append(all, args...)...)
	}
	root := func(args ...string) string {
		code, out, errs := as("root", "A", args...)
		require.Zero(t, code, "%q: %s", args, errs)
		return strings.TrimSpace(out)
	}
	root("init", "-f", "--history", "7d")
	for _, name := range []string{"orders.held", "users.held"} {
		root("acquire", name, "--ttl", "1h")
	}

	// The roles that may. Whoever may break writes records, and so takes locks that are free.
	const (
		all     = "user reader observer some operator team admin lead"
		takes   = "user reader operator team admin lead"
		waits   = "user reader admin lead"
		foreign = "operator admin"
		lists   = "reader observer operator team admin lead" // all locks at once
	)
	for _, c := range []struct {
		may  string
		code int // of those that may
		args string
	}{
		{all, 0, "ls orders.>"},
		{lists, 0, "ls"},
		{all, 0, "info orders.held"},
		{"observer operator admin", 0, "info users.held"},
		{all, 0, "check orders.> --held 2h"},
		{"observer lead", 0, "history orders.held"},
		{takes, 0, "run -n orders.new -- true"},
		{foreign, 0, "run -n users.new -- true"},
		{takes, 1, "run -n orders.held -- true"},
		{waits, 1, "run -w 1 orders.held -- true"},
		{"admin", 1, "run -w 1 users.held -- true"},
		{takes, 0, "run --read -n orders.r -- true"},
		{takes, 0, "run --write -n orders.r -- true"},
		{takes, 0, "run --permits 2 -n orders.p -- true"},
		{foreign, 0, "run --permits 2 -n users.p -- true"},
		{takes, 0, "elect --once orders.e -- true"},
		{foreign, 0, "elect --once users.e -- true"},
		{all, 0, "doctor orders.>"},
		{all, 0, "init -f"},
		{"admin lead", 0, "init -f --max-bytes 100000000"},
		{"lead", 0, "init -f --history 6d"},
		{takes, 0, "break -f --now orders.b"},
		{foreign, 0, "break -f --now users.b"},
		{takes, 0, "extend orders"},
		{takes, 0, "release orders"},
		{foreign, 0, "release users"},
	} {
		for role := range roles {
			may := slices.Contains(strings.Fields(c.may), role)
			args := strings.Fields(c.args)
			var handle string
			switch {
			case args[0] == "break":
				handle = root("acquire", args[len(args)-1], "--ttl", "1h")
			case args[0] == "extend", args[0] == "release":
				handle = root("acquire", args[1]+".s", "--ttl", "1h")
				args[1] = handle
			case args[0] == "init" && len(args) > 2: // something to do, in either direction
				root("init", "-f", "--max-bytes", "200000000", "--history", "7d")
			}
			code, out, errs := as(role, "A", args...)
			said := out + errs // of a doctor, the rows
			if may {
				require.Equal(t, c.code, code, "%s: %q: %s", role, args, said)
				require.NotContains(t, errs, "ermission", "%s: %q", role, args)
			} else {
				require.Equal(t, 77, code, "%s: %q: %s", role, args, said)
				require.Regexp(t, `(Publish|Subscription) to "|refused to .*: publish to `, said, "%s: %q", role, args)
				require.LessOrEqual(t, strings.Count(errs, "\n"), 1, "%s: %q: %s", role, args, errs)
			}
			if handle != "" && !(may && args[0] != "extend") {
				root("release", handle)
			}
		}
	}

	// The other account has none of it.
	code, _, errs := as("user", "B", "ls", "orders.>")
	require.Equal(t, 78, code, errs)
	require.Contains(t, errs, "there is no bucket natslock")
	code, _, errs = as("admin", "B", "init", "-f")
	require.Zero(t, code, errs)
	code, out, errs := as("user", "B", "run", "-n", "orders.held", "--", "echo", "inside")
	require.Zero(t, code, errs)
	require.Equal(t, "inside\n", out)
}
