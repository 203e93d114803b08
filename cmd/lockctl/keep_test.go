//go:build unix

package main_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/tier"
)

// TestRunKeep checks that with --keep the job counts as done only once its command has exited with
// 0. Until then, every call runs it.
func TestRunKeep(t *testing.T) {
	t.Parallel()
	s := serve(t)
	code, _, errs := run(t, s, "run", "--keep", "2h", "job.1", "--", "sh", "-c", "exit 3")
	require.Equal(t, 3, code, errs)
	require.Empty(t, locks(t, s, "ls"), "not done, and free for the next call")
	code, out, errs := run(t, s, "run", "--keep", "2h", "job.1", "--", "sh", "-c", "echo $LOCK_NAME")
	require.Zero(t, code, errs)
	require.Equal(t, "job.1\n", out)
	for range 2 {
		code, out, errs = run(t, s, "run", "--keep", "2h", "job.1", "--", "echo", "again")
		require.Zero(t, code)
		require.Empty(t, out+errs, "cron would mail it")
	}
	l := locks(t, s, "info", "job.1")
	require.Equal(t, "job", l[0].Holder.Purpose)
	code, _, errs = run(t, s, "break", "-f", "--now", "job.1")
	require.Zero(t, code, errs)
	_, out, _ = run(t, s, "run", "--keep", "2h", "job.1", "--", "echo", "again")
	require.Equal(t, "again\n", out, "an operator wants it again")
}

// TestRunKeepRunning checks that a call fails as for any held lock while another call runs the job,
// and that -E 0 makes it silent as well.
func TestRunKeepRunning(t *testing.T) {
	t.Parallel()
	s := serve(t)
	hold(t, s, "job.1", "--keep", "2h")
	for _, c := range []struct {
		code int
		args []string
		says string
	}{
		{1, nil, `lock "job.1" is held by`},
		{7, []string{"-n", "-E", "7"}, `lock "job.1" is held by`},
		{0, []string{"-E", "0"}, ""},
	} {
		code, out, errs := run(t, s, append(append([]string{"run", "--keep", "2h"}, c.args...), "job.1", "--", "echo", "inside")...)
		require.Equal(t, c.code, code, errs)
		require.Empty(t, out)
		require.Contains(t, errs, c.says)
		require.Equal(t, c.says == "", errs == "", errs)
	}
}

// TestRunKeepUnconfirmed checks that a job does not succeed if the server could not record its
// completion, because the job may then run again.
func TestRunKeepUnconfirmed(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	s := serve(t)
	dir := t.TempDir()
	begun, goOn := filepath.Join(dir, "begun"), filepath.Join(dir, "go")
	p := start(t, s, "run", "--keep", "2h", "job.1", "--", "sh", "-c", "echo 1 > "+begun+"; while ! test -e "+goOn+"; do sleep 0.01; done")
	number(t, begun)
	s.Stop()
	require.NoError(t, os.WriteFile(goOn, nil, 0o600))
	require.Equal(t, 69, p.wait())
	require.Contains(t, p.err.String(), "may run again")
}

func TestRunKeepUsage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		says string
		args []string
	}{
		{"--keep 0s: must be from 1s to 8760h", []string{"--keep", "0"}},
		{"--keep 500ms: must be from 1s", []string{"--keep", "500ms"}},
		{"--keep 8761h0m0s: must be from 1s", []string{"--keep", "8761h"}},
		{"--keep takes a mutex: it cannot be combined with --read, --write or --permits", []string{"--keep", "1h", "--read"}},
		{"--keep takes a mutex: it cannot be combined with --read, --write or --permits", []string{"--keep", "1h", "--write"}},
		{"--keep takes a mutex: it cannot be combined with --read, --write or --permits", []string{"--keep", "1h", "--permits", "2"}},
		{"--keep and --wait are mutually exclusive", []string{"--keep", "1h", "-w", "5"}},
	} {
		code, _, errs := run(t, nil, append(append([]string{"run"}, c.args...), "x", "--", "true")...)
		require.Equal(t, 64, code, errs)
		require.Contains(t, errs, c.says)
	}
}
