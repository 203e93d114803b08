//go:build unix

package main_test

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/testutil"
)

// event is what watch --json prints.
type event struct {
	Time          time.Time
	Event         string
	Kind          string
	Name          string
	Mode          string
	Token, Ticket uint64
	ID            string
	Owner, Host   string
	PID           int
	Meta          map[string]string
	TTL           *float64
	Expires       *time.Time
	Waited, Held  *float64
	Grants        uint64
	Broken        *struct {
		By, Reason string
		At         time.Time
	}
	Unreadable    bool
	Lingers, Idle bool
	Slot, Of      int
	After         *float64

	// The following fields belong to a gap.
	Until  time.Time
	Missed *uint64
	Remade bool
}

// watch starts lockctl watch and returns once it reports that it is watching.
func watch(t *testing.T, s *testutil.Server, args ...string) *process {
	t.Helper()
	p := start(t, s, append([]string{"watch"}, args...)...)
	said(t, p, "watching ")
	return p
}

// said waits until p has written text to standard error.
func said(t *testing.T, p *process, text string) {
	t.Helper()
	kit.Eventually(t, "lockctl says "+text, func() bool { return strings.Contains(p.err.String(), text) })
}

// linesOf waits for n lines on standard output.
func linesOf(t *testing.T, p *process, n int) []string {
	t.Helper()
	var lines []string
	kit.Eventually(t, "events", func() bool {
		lines = strings.SplitAfter(p.out.String(), "\n")
		return len(lines) > n // the last one is empty
	})
	require.Len(t, lines, n+1)
	return lines[:n]
}

func eventsOf(t *testing.T, p *process, n int) []event {
	t.Helper()
	var events []event
	for _, line := range linesOf(t, p, n) {
		dec := json.NewDecoder(strings.NewReader(line))
		dec.DisallowUnknownFields()
		var ev event
		require.NoError(t, dec.Decode(&ev), line)
		events = append(events, ev)
	}
	return events
}

func TestWatchRenewalsAndExpiry(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	s := serve(t)
	terse, w := watch(t, s, "--json"), watch(t, s, "--json", "-v", "x\x1by")
	text := watch(t, s, "-v")
	p, _ := hold(t, s, "x\x1by", "--ttl", "3s", "--meta", "k=\x1b[2J")
	said := func(n int, types ...string) {
		t.Helper()
		var got []string
		for _, ev := range eventsOf(t, w, n)[n-len(types):] {
			got = append(got, ev.Event)
			require.Equal(t, "x\x1by", ev.Name)
		}
		require.Equal(t, types, got)
	}
	kit.Eventually(t, "a renewal", func() bool { return strings.Contains(w.out.String(), "renewed") })
	pause(t, p)
	kit.Eventually(t, "the end", func() bool { return strings.Contains(w.out.String(), "expired") })
	n := strings.Count(w.out.String(), "\n")
	said(n, "renewed", "expired")
	evs := eventsOf(t, w, n)
	last, expired := evs[n-2], evs[n-1]
	require.Equal(t, p.cmd.Process.Pid, expired.PID)
	require.Equal(t, 3*time.Second, expired.Time.Sub(last.Time).Round(10*time.Millisecond), "a TTL after the last renewal")
	require.GreaterOrEqual(t, *expired.Held, 3.0)
	for _, ev := range eventsOf(t, terse, 2) {
		require.NotEqual(t, "renewed", ev.Event)
	}
	require.NotContains(t, text.out.String(), "\x1b", "names cannot steer the terminal")
	require.Contains(t, text.out.String(), `"x\x1by"`)
}

// TestWatchOutage checks that a watch reports that the server is gone and resumes when it is back.
func TestWatchOutage(t *testing.T) {
	t.Parallel()
	s := serve(t)
	begun := time.Now()
	w := watch(t, s, "--json")
	s.Stop()
	stopped := time.Now()
	said(t, w, "lost the connection to "+s.URL())
	require.NotContains(t, w.err.String(), "again")
	s.Restart()
	said(t, w, "watching > at "+s.URL()+" again")
	code, _, errs := run(t, s, "run", "x", "--", "true")
	require.Zero(t, code, errs)
	evs := eventsOf(t, w, 3)
	require.Equal(t, []string{"gap", "granted", "released"}, []string{evs[0].Event, evs[1].Event, evs[2].Event})
	require.WithinRange(t, evs[0].Time, begun, stopped)
	require.WithinRange(t, evs[0].Until, stopped, evs[1].Time)
	require.False(t, evs[0].Remade)
	s.Stop()
	w.signal(syscall.SIGTERM)
	require.Zero(t, w.wait(), "it can be ended without a server")
}

// TestWatchWithoutBucket checks that watch waits for a deleted bucket to be created again.
func TestWatchWithoutBucket(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	s := serve(t)
	w := watch(t, s, "--json")
	js := jetStream(t, s)
	require.NoError(t, js.DeleteStream(t.Context(), "KV_natslock"))
	said(t, w, "the bucket does not exist; waiting for it")
	withBucket(t, s)
	kit.Eventually(t, "another watch", func() bool { return strings.Count(w.err.String(), "watching >") == 2 })
	p, _ := hold(t, s, "x")
	p.signal(syscall.SIGTERM)
	p.wait()
	evs := eventsOf(t, w, 3)
	require.Equal(t, []string{"gap", "granted", "released"}, []string{evs[0].Event, evs[1].Event, evs[2].Event})
	require.True(t, evs[0].Remade)
	require.Equal(t, p.cmd.Process.Pid, evs[2].PID)
	require.Equal(t, 1, strings.Count(w.err.String(), "the bucket does not exist"), "said once")
}

// TestWatchBrokenPipe checks that watch ends silently when the reader of its output exits.
func TestWatchBrokenPipe(t *testing.T) {
	t.Parallel()
	s := serve(t)
	cmd := exec.Command(binary, "watch")
	cmd.Env = append(os.Environ(), "NATS_URL="+s.URL())
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	stderr, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	said, err := bufio.NewReader(stderr).ReadString('\n')
	require.NoError(t, err)
	require.Regexp(t, regexp.MustCompile(`^lockctl: watching > at `), said)
	require.NoError(t, stdout.Close())
	code, _, errs := run(t, s, "run", "x", "--", "true")
	require.Zero(t, code, errs)
	rest, err := io.ReadAll(stderr)
	require.NoError(t, err)
	require.Empty(t, string(rest))
	require.NoError(t, cmd.Wait())
}
