//go:build unix

package main_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/testutil"
)

// bare runs a shell command line in an environment that has only PATH and env. "$0" is lockctl and
// "$1" the server's URL.
func bare(t *testing.T, s *testutil.Server, line string, env ...string) (code int, stdout, stderr string) {
	t.Helper()
	cmd := exec.CommandContext(timeout(t), "/bin/sh", "-c", line, binary, s.URL())
	cmd.Env = append([]string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, env...)
	var out, errs kit.Log
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	_ = cmd.Run()
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// TestBareEnvironment checks that lockctl works in the sparse environment of a service or
// container.
func TestBareEnvironment(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	s := serve(t)
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	const run = `"$0" -s "$1" run x -- echo done`
	for _, c := range []struct {
		name  string
		line  string
		env   []string
		needs string // a command line that succeeds if the system allows this
	}{
		{name: "an empty environment", line: `exec env -i "$0" -s "$1" run x -- /bin/echo done`},
		{name: "no home", line: run},
		{name: "a home that is a file", line: run, env: []string{"HOME=" + file}},
		{name: "a home that may not be read", needs: asNobody + "true", line: `umask 077; mkdir "$TMP/home"; cp "$0" "$TMP/lockctl"; chmod 755 "$TMP/lockctl" "$TMP"; HOME="$TMP/home" ` + asNobody + `"$TMP/lockctl" -s "$1" run x -- echo done`},
		{name: "no standard input", line: run + " <&-"},
		{name: "no standard error", line: run + " 2>&-"},
		{name: "no standard streams", line: `"$0" -s "$1" run x -- sh -c 'echo done > "$TMP/out"' <&- >&- 2>&-; cat "$TMP/out"`},
		{name: "no working directory", line: `mkdir "$TMP/cwd"; cd "$TMP/cwd"; rmdir "$TMP/cwd"; ` + run},
		{name: "a file system that takes nothing", needs: readOnly + "true", line: readOnly + run},
		{name: "the first process", needs: firstProcess + "true", line: firstProcess + run},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir, err := os.MkdirTemp("", "bare-") // readable by other users
			require.NoError(t, err)
			t.Cleanup(func() { os.RemoveAll(dir) })
			if c.needs != "" {
				if code, _, errs := bare(t, s, c.needs); code != 0 {
					t.Skip("not allowed here: ", errs)
				}
			}
			code, out, errs := bare(t, s, strings.ReplaceAll(c.line, "run x", "run "+filepath.Base(dir)), append(c.env, "TMP="+dir)...)
			require.Zero(t, code, errs)
			require.Equal(t, "done\n", out)
			require.Empty(t, errs)
		})
	}
}

const (
	asNobody     = `setpriv --reuid 65534 --regid 65534 --clear-groups `
	readOnly     = `exec unshare -rm sh -c 'mount -o remount,bind,ro / && exec "$@"' sh `
	firstProcess = `exec unshare -rpf --mount-proc `
)

// TestFirstProcess checks that lockctl as PID 1 of a container, which inherits its command's
// orphans, reaps them when they exit.
func TestFirstProcess(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	s := serve(t)
	if code, _, errs := bare(t, s, firstProcess+"true"); code != 0 {
		t.Skip("not allowed here: ", errs)
	}
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "command"), []byte(`
		mkfifo end
		sh -c '(read x < end) & echo $! > pid'
		read orphan < pid
		echo > end
		for i in $(seq 100); do
			test -e /proc/$orphan || { echo collected; exit; }
			sleep 0.1
		done
		cat /proc/$orphan/stat`), 0o600))
	code, out, errs := bare(t, s, `cd "$TMP"; `+firstProcess+`"$0" -s "$1" run x -- sh command`, "TMP="+dir)
	require.Zero(t, code, errs)
	require.Equal(t, "collected\n", out)
}

// TestNohup checks that nohup protects every long-running command of lockctl from a hangup,
// including the server and a command under a lock.
func TestNohup(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	nohup, err := exec.LookPath("nohup")
	if err != nil {
		t.Skip(err)
	}
	for _, c := range []struct {
		code int // exit code after SIGTERM
		args []string
	}{
		{0, []string{"server", "--port", "0", "--dir", t.TempDir()}},
		{128 + int(syscall.SIGTERM), []string{"run", "x", "--", "sh", "-c", "echo started; exec sleep 600"}},
		{128 + int(syscall.SIGTERM), []string{"elect", "x", "--", "sh", "-c", "echo started; exec sleep 600"}},
		{0, []string{"watch", "--json"}},
	} {
		t.Run(c.args[0], func(t *testing.T) {
			t.Parallel()
			s := serve(t)
			p := startFrom(t, nohup, s, "", nil, append([]string{binary}, c.args...)...)
			url := s.URL()
			switch c.args[0] {
			case "server":
				url = line(t, p)
			case "watch":
				kit.Eventually(t, "the watch", func() bool { return strings.Contains(p.err.String(), "watching") })
			default:
				line(t, p)
			}
			p.signal(syscall.SIGHUP)
			code, _, errs := run(t, nil, "-s", url, "ls")
			require.Zero(t, code, errs)
			p.signal(syscall.SIGTERM)
			require.Equal(t, c.code, p.wait())
		})
	}
}
