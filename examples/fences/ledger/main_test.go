//go:build unix

package main

import (
	"bytes"
	"context"
	"database/sql"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"go.uber.org/goleak"

	"github.com/natslock/locks/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestStopped pauses a process past its lease while the next process takes over the count. When the
// first one wakes up, the database refuses its writes, so nothing is counted twice or lost.
func TestStopped(t *testing.T) {
	dir := t.TempDir()
	binary, file := filepath.Join(dir, "ledger"), filepath.Join(dir, "ledger.db")
	out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	s := testutil.RunServer(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	db, err := sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(10000)")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	balance := func() (n int) {
		require.NoError(t, db.QueryRow(`SELECT balance FROM accounts`).Scan(&n))
		return n
	}
	command := func(times string) (*exec.Cmd, *bytes.Buffer) {
		out := &bytes.Buffer{} // read it only after the process has exited
		cmd := exec.CommandContext(ctx, binary, "-server", s.URL(), "-db", file, "-times", times)
		cmd.Stderr = out
		return cmd, out
	}

	// The output of the first process shows when it is working.
	first, _ := command("1000000")
	first.Stderr = nil
	lines, err := first.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, first.Start())
	t.Cleanup(func() { // in case the test fails
		_ = first.Process.Kill()
		_ = first.Wait()
	})
	for text, b := "", make([]byte, 1); !strings.Contains(text, "balance "); text += string(b) { // the process has counted once
		_, err = lines.Read(b)
		require.NoError(t, err)
	}
	require.NoError(t, first.Process.Signal(syscall.SIGSTOP))

	next, said := command("4")
	require.NoError(t, next.Run(), "%s", said)
	lasts := regexp.MustCompile(`balance (\d+), token \d+`).FindAllStringSubmatch(said.String(), -1)
	require.Len(t, lasts, 4)
	last, err := strconv.Atoi(lasts[3][1])
	require.NoError(t, err)
	require.GreaterOrEqual(t, last, 5)
	require.Equal(t, last, balance())

	require.NoError(t, first.Process.Signal(syscall.SIGCONT))
	rest := &bytes.Buffer{}
	_, err = rest.ReadFrom(lines)
	require.NoError(t, err)
	require.Error(t, first.Wait())
	require.Regexp(t, `set the balance of "shared": .*superseded`, rest.String())
	require.Equal(t, last, balance())
}
