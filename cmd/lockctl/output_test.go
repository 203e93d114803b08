//go:build unix

package main_test

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	main "github.com/natslock/locks/cmd/lockctl"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// intoFull runs lockctl with its standard output on a full disk.
func intoFull(t *testing.T, s *testutil.Server, args ...string) (code int, stderr string) {
	t.Helper()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("no /dev/full: ", err)
	}
	defer full.Close()
	cmd := exec.CommandContext(timeout(t), binary, args...)
	cmd.Env = append(cleanEnv(), "HOME="+t.TempDir(), "XDG_CONFIG_HOME="+t.TempDir(), "NATS_URL="+s.URL())
	errs := &kit.Log{}
	cmd.Stdout, cmd.Stderr = full, errs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	_ = cmd.Run()
	return cmd.ProcessState.ExitCode(), errs.String()
}

// fullDisk is a standard output without space left.
type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) {
	return 0, &fs.PathError{Op: "write", Path: "/dev/full", Err: syscall.ENOSPC}
}

// TestFullDisk checks that every command that prints fails on a full disk, because a script would
// otherwise treat truncated output as complete.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	s := serve(t)
	hold(t, s, "held")
	for _, args := range [][]string{
		{"ls"}, {"ls", "--json"}, {"info", "held"}, {"info", "free"}, {"info", "held", "--json"},
		{"perms", ">"}, {"perms", ">", "--json"}, {"doctor"}, {"doctor", "--json"}, {"init", "-f"},
		{"server", "--port", "0", "--dir", t.TempDir()}, {"break", "-f", "held"},
		{"--version"}, {"--help"}, {"completion", "-c", "bash"},
	} {
		var errs string
		code := 0
		// A single command shows what a process gets from a real full device.
		if inside(args) && !slices.Equal(args, []string{"ls"}) {
			var said kit.Log
			code = main.Main([]string{"NATS_URL=" + s.URL()}, strings.NewReader(""), fullDisk{}, &said, args...)
			errs = said.String()
		} else {
			code, errs = intoFull(t, s, args...)
		}
		require.Equal(t, 70, code, "%q: %s", args, errs)
		require.Equal(t, 1, strings.Count(errs, "cannot write to standard output: no space left on device"), "%q: %s", args, errs)
	}
}

// TestFullDiskWatch checks that watch exits when its output is full instead of running on in vain.
func TestFullDiskWatch(t *testing.T) {
	t.Parallel()
	s := serve(t)
	c := client(t, s)
	ended := make(chan string, 1)
	go func() {
		code, errs := intoFull(t, s, "watch")
		ended <- fmt.Sprint(code, " ", errs)
	}()
	// The watch may not have begun when the first lock is taken.
	var end string
	kit.Eventually(t, "the end of the watch", func() bool {
		require.NoError(t, c.Do(timeout(t), "x", func(context.Context, *natslock.Lock) error { return nil }))
		select {
		case end = <-ended:
		default:
		}
		return end != ""
	})
	require.True(t, strings.HasPrefix(end, "70 "), end)
}
