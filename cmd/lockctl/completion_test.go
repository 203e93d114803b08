//go:build unix

package main_test

import (
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"
	"github.com/creack/pty"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// complete returns the words that lockctl offers the shell when the cursor is at the end of line.
func complete(t *testing.T, s *testutil.Server, line string) []string {
	t.Helper()
	env := []string{"COMP_LINE=" + line}
	if s != nil {
		env = append(env, "NATS_TIMEOUT=20s") // long enough for a busy machine
	}
	p := startWith(t, s, "", env)
	require.Zero(t, p.wait())
	require.Empty(t, p.err.String())
	return strings.Fields(p.out.String())
}

// TestCompletionWithoutServer checks that completion gives up quietly and quickly when no server
// responds.
func TestCompletionWithoutServer(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	var mutes []string
	for range 16 {
		silent, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer silent.Close()
		mutes = append(mutes, "nats://"+silent.Addr().String())
	}
	began := time.Now()
	require.Empty(t, complete(t, nil, "lockctl -s "+strings.Join(mutes, ",")+" info ")) // a second each would take 16 s
	require.Less(t, time.Since(began), 12*time.Second)
}

// TestCompletionByTab presses Tab in each shell to complete commands, flags, values and names, and
// checks that what follows "--" is left to the shell.
func TestCompletionByTab(t *testing.T) {
	t.Parallel()
	s := testutil.RunServer(t)
	take(t, client(t, s), "orders.42", natslock.TTL(time.Hour))
	dir := t.TempDir()
	require.NoError(t, os.Symlink(binary, filepath.Join(dir, "lockctl")))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "deploy-script"), nil, 0o700))
	for shell, c := range map[string]struct{ args, setup string }{
		"bash": {"--norc -i", "source <(lockctl completion -c bash)"},
		"zsh":  {"-f -i", "autoload -U compinit && compinit -u && source <(lockctl completion -c zsh)"},
		"fish": {"--no-config -i", "lockctl completion -c fish | source"},
	} {
		t.Run(shell, func(t *testing.T) {
			t.Parallel()
			path, err := exec.LookPath(shell)
			if err != nil {
				t.Skip("no " + shell)
			}
			cmd := exec.Command(path, strings.Fields(c.args)...)
			cmd.Dir = dir
			cmd.Env = append(cleanEnv(), "PATH="+dir+":"+os.Getenv("PATH"), "HOME="+dir, "TERM=xterm", "NATS_URL="+s.URL(), "NATS_TIMEOUT=20s")
			terminal, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 40, Cols: 120})
			require.NoError(t, err)
			defer func() {
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
				_ = terminal.Close()
			}()
			var out kit.Log
			go func() { _, _ = io.Copy(&out, terminal) }()
			// types types text and waits for the shell to display want.
			types := func(text, want string) {
				t.Helper()
				before := len(out.String())
				_, err := terminal.WriteString(text)
				require.NoError(t, err)
				kit.Eventually(t, shell+" completes "+text, func() bool { return strings.Contains(ansi.Strip(out.String()[before:]), want) })
			}
			types(c.setup+" && echo set''up\r", "setup")
			for _, tab := range []struct{ text, want string }{
				{"lockctl inf", "info "},
				{"lockctl info or", "orders.42 "},
				{"lockctl ls --sor", "--sort "},
				{"lockctl ls --sort hel", "held "},
				{"lockctl run orders.42 -- ./dep", "./deploy-script "},
			} {
				types(tab.text+"\t", tab.want)
				types("\x15", "") // clears the line
			}
		})
	}
}

// TestReference checks that the reference page is up to date with the commands.
func TestReference(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "lockctl.md")
	code, _, errs := run(t, nil, "reference", file)
	require.Zero(t, code, errs)
	made, err := os.ReadFile(file)
	require.NoError(t, err)
	kept, err := os.ReadFile("../../docs/operate/lockctl.md")
	require.NoError(t, err)
	require.Equal(t, string(made), string(kept), "docs/operate/lockctl.md is out of date: make docs")
	require.NotContains(t, string(made), "|  |\n", "a flag, an argument or a field without a text")
}
