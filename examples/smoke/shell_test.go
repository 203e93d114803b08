//go:build unix

package smoke_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// TestShell runs the script with the real lockctl, as cron would on three machines.
func TestShell(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	bin, reports := t.TempDir(), t.TempDir()
	out, err := exec.Command("go", "build", "-o", bin, "../../cmd/lockctl").CombinedOutput()
	require.NoError(t, err, "%s", out)
	s := testutil.RunServer(t)
	locks, err := natslock.New(t.Context(), s.Connect())
	require.NoError(t, err)
	script, err := filepath.Abs("../shell/report.sh")
	require.NoError(t, err)
	cron := func(server, hour, dir string) *process {
		cmd := exec.Command(script, dir)
		cmd.Env = append(os.Environ(), "NATS_URL="+server, "HOUR="+hour,
			"PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"))
		return startCommand(t, cmd)
	}
	made := func(hour string) []string {
		names, err := filepath.Glob(filepath.Join(reports, "report."+hour+".*"))
		require.NoError(t, err)
		return names
	}

	// One machine produces each hour's report, and the others stay silent.
	for _, hour := range []string{"20261122T03", "20261122T04"} {
		var machines []*process
		for range 3 {
			machines = append(machines, cron(s.URL(), hour, reports))
		}
		for _, m := range machines {
			m.mustEnd()
			require.Empty(t, m.out.String())
		}
		require.Len(t, made(hour), 1)
	}
	token := func(hour string) string { return filepath.Ext(made(hour)[0]) }
	require.Greater(t, token("20261122T04"), token("20261122T03"))

	// A report waits for the previous hour's report.
	l, err := locks.Lock(t.Context(), "report")
	require.NoError(t, err)
	late := cron(s.URL(), "20261122T05", reports)
	require.Eventually(t, func() bool {
		info, err := admin.New(locks).Inspect(t.Context(), admin.KindMutex, "report")
		return err == nil && len(info.Queue) == 1
	}, patience, 5*time.Millisecond)
	require.Empty(t, made("20261122T05"))
	require.NoError(t, l.Unlock(t.Context()))
	late.mustEnd()
	require.Len(t, made("20261122T05"), 1)

	// Without HOUR the script uses the current hour, in a format that sorts.
	cron(s.URL(), "", reports).mustEnd()
	require.Len(t, made("[0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9]T[0-9][0-9]"), 4)

	// The script reports a failure with a message and its exit code.
	failed := cron(s.URL(), "20261122T06", filepath.Join(reports, "missing"))
	<-failed.done
	require.NotZero(t, failed.cmd.ProcessState.ExitCode())
	require.Contains(t, failed.out.String(), "missing")
	s.Stop()
	away := cron(s.URL(), "20261122T07", reports)
	<-away.done
	require.Equal(t, 69, away.cmd.ProcessState.ExitCode())
	require.Contains(t, away.out.String(), "lockctl:")
}
