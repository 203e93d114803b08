//go:build unix

package main_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// fisk are the parts of fisk's ApplicationModel that the nats command reads of a plugin.
type fisk struct {
	Name, Help string
	Commands   []struct {
		Name, Help string
		Flags      []struct {
			Name, Help          string
			Short               rune
			Default             []string
			Boolean, Cumulative bool
		}
		Args []struct {
			Name, Help           string
			Required, Cumulative bool
		}
	}
}

// The model has the commands that are of use in a plugin, each with the flags of the
// connection, and refuses what the nats command cannot register.
func TestPluginModel(t *testing.T) {
	t.Parallel()
	code, out, errs := run(t, nil, "--fisk-introspect")
	require.Zero(t, code, errs)
	var m fisk
	require.NoError(t, json.Unmarshal([]byte(out), &m))
	require.NotEmpty(t, m.Name)
	require.NotEmpty(t, m.Help)
	var names []string
	for _, c := range m.Commands {
		names = append(names, c.Name)
		require.NotEmpty(t, c.Help, c.Name)
		flags, shorts := map[string]bool{}, map[rune]bool{}
		for _, f := range c.Flags {
			require.NotEmpty(t, f.Help, f.Name)
			require.False(t, flags[f.Name], "%s --%s twice", c.Name, f.Name)
			require.False(t, f.Short != 0 && shorts[f.Short], "%s -%c twice", c.Name, f.Short)
			require.NotContains(t, "hs", string(f.Short), "the nats command has it")
			flags[f.Name], shorts[f.Short] = true, true
			require.Empty(t, f.Default, "a default would be passed on as if the user had set it")
		}
		for _, want := range []string{"server", "context", "creds", "bucket", "js-domain", "timeout"} {
			require.True(t, flags[want], "%s --%s", c.Name, want)
		}
		require.NotContains(t, flags, "help")
		require.LessOrEqual(t, len(c.Args), 1, "the nats command passes several on in any order")
	}
	for _, want := range []string{"break", "info", "ls", "watch"} {
		require.Contains(t, names, want)
	}
	for _, none := range []string{"run", "elect", "lock", "acquire", "guard"} {
		require.NotContains(t, names, none)
	}
}

// lockctl as a plugin of the real nats command: the flags of both reach it.
func TestPluginOfNats(t *testing.T) {
	t.Parallel()
	nats, err := exec.LookPath("nats")
	if err != nil {
		t.Skip("there is no nats command on the PATH: go install github.com/nats-io/natscli/nats@latest")
	}
	s := serve(t)
	p, _ := hold(t, s, "x")
	home := t.TempDir()
	asks := func(args ...string) (string, error) {
		t.Helper()
		cmd := exec.Command(nats, args...)
		cmd.Env = append(cleanEnv(), "HOME="+home, "XDG_DATA_HOME="+home, "XDG_CONFIG_HOME="+home) // nats asks the system for the home
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	link := filepath.Join(home, "lockctl")
	require.NoError(t, os.Symlink(binary, link))
	out, err := asks("plugins", "register", "lock", link)
	require.NoError(t, err, out)
	for _, args := range [][]string{
		{"--server", s.URL(), "lock", "ls", "--wide"},
		{"lock", "ls", "--server", s.URL()},
		{"lock", "info", "x", "-s", s.URL(), "--json"},
	} {
		out, err = asks(args...)
		require.NoError(t, err, out)
		require.Contains(t, out, "x", "%q", args)
		require.True(t, slices.ContainsFunc(strings.Fields(out), func(w string) bool { return strings.Contains(w, "@") }), out)
	}
	out, err = asks("lock", "break", "x", "-f", "--reason", "by a plugin", "-s", s.URL())
	require.NoError(t, err, out)
	require.Equal(t, 75, p.wait())
	require.Contains(t, p.err.String(), "by a plugin")
	out, err = asks("lock", "info", "none", "--bucket", "none", "-s", s.URL())
	require.Error(t, err)
	require.Contains(t, out, "there is no bucket none")
}
