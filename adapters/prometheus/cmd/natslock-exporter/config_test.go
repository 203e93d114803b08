package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	lockadmin "github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

func natsUser(name string) nats.Option { return nats.UserInfo(name, "secret") }

// observer returns the permissions that "lockctl perms --role observer" prints.
func observer(t *testing.T, pattern string) lockadmin.PermissionSet {
	t.Helper()
	p, err := lockadmin.Permissions(lockadmin.Access{Role: lockadmin.RoleObserver, Pattern: pattern})
	require.NoError(t, err)
	return p
}

// permissions returns a server configuration with the users of TestRefused.
func permissions(t *testing.T) string {
	t.Helper()
	admin, err := lockadmin.Permissions(lockadmin.Access{Role: lockadmin.RoleAdmin})
	require.NoError(t, err)
	reader := observer(t, ">")
	deaf := reader
	deaf.Subscribe = nil
	for _, perm := range reader.Subscribe {
		if strings.HasPrefix(perm.Subject, "_INBOX.") {
			deaf.Subscribe = append(deaf.Subscribe, perm)
		}
	}
	blind := reader
	blind.Publish = nil
	for _, perm := range reader.Publish {
		if strings.Contains(perm.Subject, ".STREAM.INFO.") {
			blind.Publish = append(blind.Publish, perm)
		}
	}
	var users strings.Builder
	for name, set := range map[string]lockadmin.PermissionSet{
		"admin": admin, "reader": reader, "deaf": deaf, "blind": blind, "narrow": observer(t, "orders.>"),
	} {
		fmt.Fprintf(&users, "{user: %s, password: secret, %s}\n", name, set)
	}
	users.WriteString("{user: root, password: secret}\n")
	return "authorization { users = [\n" + users.String() + "] }\n"
}

func deleteBucket(t *testing.T, s *testutil.Server) {
	t.Helper()
	js, err := jetstream.New(s.Connect())
	require.NoError(t, err)
	require.NoError(t, js.DeleteStream(t.Context(), "KV_natslock"))
}

// TestPatternInQuotes checks that names and patterns are accepted in the form that lockctl prints.
func TestPatternInQuotes(t *testing.T) {
	t.Parallel()
	var c cli
	parser, err := newParser(&c)
	require.NoError(t, err)
	_, err = parser.Parse([]string{"--names", `"\xff.>"`, "--pattern", `"\xff.*"`, "--pattern", ">"})
	require.NoError(t, err)
	require.Equal(t, "\xff.>", c.Names)
	require.Equal(t, []string{"\xff.*", ">"}, c.Pattern)
	require.Equal(t, 64, mainCode([]string{"--pattern", "\xff.*"}))
}
