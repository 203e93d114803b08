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

// bare runs a line of a shell with nothing in its environment. "$0" is lockctl, and "$1" the server.
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

// What cannot be there in the environment of a service or a container is not missed.
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
		needs string // a line that succeeds where the system allows this
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
			dir, err := os.MkdirTemp("", "bare-") // within reach of other users
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
