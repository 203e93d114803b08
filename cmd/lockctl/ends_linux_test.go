package main_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
)

// TestEnds checks, for each way in which lockctl can end, what happens to the command, its process
// group and the lock, as documented in docs/operate/lockctl.md. The command and its child record
// every signal and exit on none.
func TestEnds(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	const (
		killAfter = time.Second
		ttl       = "5s"
	)
	lockctl := func(sig syscall.Signal) func(*process) { return func(p *process) { p.signal(sig) } }
	breaks := func(p *process) {
		code, _, errs := run(p.t, nil, "-s", p.url, "break", "-f", "x")
		require.Zero(p.t, code, errs)
	}
	for _, c := range []struct {
		name   string
		args   []string // flags of lockctl, ahead of the lock's name
		by     func(*process)
		signal string // received by the command and its child
		killed bool   // the group gets KILL after --kill-after
		ends   bool   // lockctl exits
		code   int
		free   bool // the lock is freed before the lease ends
	}{
		{"killed", []string{"run"}, lockctl(syscall.SIGKILL), "TERM", true, true, -1, false},
		{"a killed leader", []string{"elect"}, lockctl(syscall.SIGKILL), "TERM", true, true, -1, false},
		{"crashed", []string{"run"}, lockctl(syscall.SIGABRT), "TERM", true, true, 2, false},
		{"broken", []string{"run"}, breaks, "TERM", true, true, 75, true},
		{"a broken leader", []string{"elect", "--once"}, breaks, "TERM", true, true, 75, true},
		{"asked by TERM", []string{"run"}, lockctl(syscall.SIGTERM), "TERM", false, false, 0, false},
		{"asked by INT", []string{"run"}, lockctl(syscall.SIGINT), "INT", false, false, 0, false},
		{"asked by HUP", []string{"run"}, lockctl(syscall.SIGHUP), "HUP", false, false, 0, false},
		{"asked by QUIT", []string{"run"}, lockctl(syscall.SIGQUIT), "QUIT", false, false, 0, false},
		{"an asked leader", []string{"elect"}, lockctl(syscall.SIGTERM), "TERM", false, false, 0, false},
		{"its guard killed", []string{"run"}, func(p *process) {
			first := guardOf(p.cmd.Process.Pid)
			require.NoError(p.t, syscall.Kill(first, syscall.SIGKILL))
			kit.Eventually(p.t, "another guard", func() bool {
				second := guardOf(p.cmd.Process.Pid)
				return second != 0 && second != first
			})
		}, "", false, false, 0, false},
		{"killed with its guard", []string{"run"}, func(p *process) {
			require.NoError(p.t, syscall.Kill(guardOf(p.cmd.Process.Pid), syscall.SIGKILL))
			p.signal(syscall.SIGKILL)
		}, "", false, true, -1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := serve(t)
			dir := t.TempDir()
			notes := func(who string) string {
				return strings.ReplaceAll(`for s in TERM INT HUP QUIT; do trap "echo $s >> DIR/WHO.signals" $s; done
					echo $$ > DIR/WHO; while :; do sleep 0.02; done`, "WHO", who)
			}
			require.NoError(t, os.WriteFile(filepath.Join(dir, "child.sh"), []byte(strings.ReplaceAll(notes("child"), "DIR", dir)), 0o600))
			// A shell makes its background processes ignore INT and QUIT.
			p := start(t, s, append(c.args, "--ttl", ttl, "--kill-after", killAfter.String(), "x", "--", "sh", "-c",
				strings.ReplaceAll("env --default-signal=INT,QUIT sh DIR/child.sh & until test -s DIR/child; do sleep 0.01; done; "+notes("command"), "DIR", dir))...)
			p.url = s.URL()
			command, child := int(number(t, filepath.Join(dir, "command"))), int(number(t, filepath.Join(dir, "child")))
			t.Cleanup(func() { _ = syscall.Kill(-command, syscall.SIGKILL) })
			kit.Eventually(t, "the guard", func() bool { return guardOf(p.cmd.Process.Pid) != 0 })

			began := time.Now()
			c.by(p)
			for _, who := range []string{"command", "child"} {
				if file := filepath.Join(dir, who+".signals"); c.signal != "" {
					require.Equal(t, c.signal, contents(t, file), "%s", who)
				}
			}
			if c.killed {
				gone(t, command)
				gone(t, child)
				require.GreaterOrEqual(t, time.Since(began), killAfter, "less than --kill-after")
			}
			if c.ends {
				require.Equal(t, c.code, p.wait(), p.err)
				if c.free {
					require.Empty(t, locks(t, s, "info", "x"))
				} else {
					require.Len(t, locks(t, s, "info", "x"), 1, "it is left to its lease")
				}
			}
			if !c.killed {
				require.True(t, running(command) && running(child))
				require.Len(t, locks(t, s, "info", "x"), 1)
				require.NoError(t, syscall.Kill(-command, syscall.SIGKILL))
				if !c.ends && c.args[0] == "run" {
					require.Equal(t, 128+int(syscall.SIGKILL), p.wait())
					require.Empty(t, locks(t, s, "info", "x"))
				}
			}
			for _, who := range []string{"command", "child"} {
				said, _ := os.ReadFile(filepath.Join(dir, who+".signals"))
				require.Equal(t, c.signal, strings.TrimSpace(string(said)), "%s gets a signal once", who)
			}
		})
	}
}
