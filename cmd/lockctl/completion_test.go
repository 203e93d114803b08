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
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// complete returns the words that lockctl offers a shell for a line, with the cursor at its
// end.
func complete(t *testing.T, s *testutil.Server, line string) []string {
	t.Helper()
	env := []string{"COMP_LINE=" + line}
	if s != nil {
		env = append(env, "NATS_TIMEOUT=20s") // it does answer, if the machine lets it
	}
	p := startWith(t, s, "", env)
	require.Zero(t, p.wait())
	require.Empty(t, p.err.String())
	return strings.Fields(p.out.String())
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	s := testutil.RunServer(t)
	for _, name := range []string{"info", "completion"} {
		require.Contains(t, complete(t, s, "lockctl "), name)
	}
	require.NotContains(t, complete(t, s, "lockctl "), "guard")
	require.Equal(t, []string{"--sort"}, complete(t, s, "lockctl ls --sor"))
	require.ElementsMatch(t, []string{"name", "held", "expires", "queue"}, complete(t, s, "lockctl ls --sort "))
	require.Empty(t, complete(t, s, "lockctl info "), "no bucket")

	c := client(t, s) // makes the bucket
	// Only the first two can be typed as they are, in any shell.
	for _, name := range []string{"deploy", "orders.42", "$(touch pwned)", "a b", "`id`", "-rf", "x;y", "a\nb", "~root", "e\x1b[2J"} {
		take(t, c, name)
	}
	hold(t, s, "deploy", "--read")
	for _, line := range []string{"info ", "break ", "break -f ", "ls ", "run ", "run --read ", "break --reason hangs ", "elect ", "elect --value v --once ", "acquire --ttl 1m "} {
		require.Equal(t, []string{"deploy", "orders.42"}, complete(t, s, "lockctl "+line), line)
	}
	require.Equal(t, []string{"orders.42"}, complete(t, s, "lockctl info o"))
	require.Empty(t, complete(t, s, "lockctl run deploy "), "a command is the shell's to complete")
	require.Empty(t, complete(t, s, "lockctl run deploy -- "))
	require.Empty(t, complete(t, s, "lockctl elect deploy -- "))
	require.Empty(t, complete(t, s, "lockctl release "), "a handle is not a name")
	require.Equal(t, []string{"--once"}, complete(t, s, "lockctl elect --on"))

	// The line's own flags count, wherever they are.
	other := testutil.RunServer(t)
	take(t, client(t, other), "elsewhere")
	require.Equal(t, []string{"elsewhere"}, complete(t, s, "lockctl -s "+other.URL()+" info "))
	require.Equal(t, []string{"elsewhere"}, complete(t, s, "lockctl info --server="+other.URL()+" "))
	require.Empty(t, complete(t, s, "lockctl --bucket none info "))

	// Elsewhere a warning, here silence.
	js, err := s.Connect().JetStream()
	require.NoError(t, err)
	bucket, err := js.StreamInfo("KV_natslock")
	require.NoError(t, err)
	bucket.Config.AllowDirect = false
	_, err = js.UpdateStream(&bucket.Config)
	require.NoError(t, err)
	_, _, errs := run(t, s, "ls")
	require.Contains(t, errs, "allow_direct")
	require.Equal(t, []string{"orders.42"}, complete(t, s, "lockctl info o"))
}

// A server that is not there, or says nothing, costs no more than a moment, and
// no message.
func TestCompletionWithoutServer(t *testing.T) {
	t.Parallel()
	var mutes []string
	for range 16 {
		silent, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer silent.Close()
		mutes = append(mutes, "nats://"+silent.Addr().String())
	}
	refusing := testutil.RunServer(t, testutil.WithConfigText(`authorization { user: a, password: b, permissions: { publish: { deny: ">" } } }`))
	for _, server := range []string{
		"nats://127.0.0.1:1", "://", strings.Replace(refusing.URL(), "//", "//a:b@", 1),
		strings.Join(mutes, ","), // a second each
	} {
		began := time.Now()
		require.Empty(t, complete(t, nil, "lockctl -s "+server+" info "))
		within(t, 12*time.Second, time.Since(began))
	}
}

// A shell takes what "lockctl completion" prints.
func TestCompletionInBash(t *testing.T) {
	t.Parallel()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash")
	}
	code, out, errs := run(t, nil, "completion", "bash")
	require.Zero(t, code, errs)
	require.Contains(t, out, "source <(lockctl completion -c bash)")
	script := `source <(lockctl completion -c bash) && complete -p lockctl`
	cmd := exec.Command(bash, "--norc", "-c", script)
	cmd.Env = append(cleanEnv(), "PATH="+filepath.Dir(binary)+":"+os.Getenv("PATH"))
	shown, err := cmd.CombinedOutput()
	require.NoError(t, err, string(shown))
	require.Contains(t, string(shown), binary+"' lockctl")
	for _, shell := range []string{"zsh", "fish"} {
		code, out, errs := run(t, nil, "completion", "-c", shell)
		require.Zero(t, code, errs)
		require.Contains(t, out, binary)
	}
}

// A tab in each shell completes commands, flags, values and names, and what is the shell's own
// behind them.
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
			// types types, and waits for what the shell makes of it.
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
				types("\x15", "") // empties the line
			}
		})
	}
}

// The reference is what "go generate" makes of the commands.
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
