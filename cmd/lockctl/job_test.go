//go:build unix

package main_test

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/creack/pty"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/testutil"
)

// terminal is an interactive shell on its own terminal, an environment that lockctl has to get
// along with.
type terminal struct {
	t    *testing.T
	ptmx *os.File
	out  *kit.Log
	read int // length of the output already matched by expect
}

func openTerminal(t *testing.T, s *testutil.Server) *terminal {
	t.Helper()
	shell, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash")
	}
	ptmx, tty, err := pty.Open()
	if err != nil {
		t.Skip("no terminals: ", err)
	}
	defer tty.Close()

	cmd := exec.Command(shell, "--norc", "--noprofile", "--noediting", "-i")
	cmd.Env = append(cleanEnv(), "PS1=$ ", "XDG_CONFIG_HOME="+t.TempDir(), "NATS_URL="+s.URL(), "lockctl="+binary, "HISTFILE=")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	require.NoError(t, cmd.Start())
	term := &terminal{t: t, ptmx: ptmx, out: &kit.Log{}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 4096)
		for {
			n, err := ptmx.Read(buf)
			_, _ = term.out.Write(buf[:n])
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		ptmx.Close()
		if t.Failed() {
			t.Logf("terminal: %q", term.out)
		}
	})
	return term
}

func (term *terminal) send(text string) {
	_, err := term.ptmx.WriteString(text)
	require.NoError(term.t, err)
}

// expect waits for text to appear after the output matched so far.
func (term *terminal) expect(text string) {
	term.t.Helper()
	kit.Eventually(term.t, fmt.Sprintf("%q on the terminal", text), func() bool {
		out := term.out.String()
		i := strings.Index(out[term.read:], text)
		if i >= 0 {
			term.read += i + len(text)
		}
		return i >= 0
	})
}

// TestTerminal checks that the command owns the terminal: it can read from it, it can be
// interrupted, and it can be stopped and continued like any job.
func TestTerminal(t *testing.T) {
	t.Parallel()
	s := serve(t)
	term := openTerminal(t, s)
	term.expect("$ ")
	term.send("$lockctl run x -- cat\n")
	kit.Eventually(t, "the lock", func() bool { return len(locks(t, s, "ls")) == 1 })
	term.send("hello\n")
	term.expect("hello\r\nhello\r\n")
	term.send("\x1a") // ^Z
	term.expect("Stopped")
	term.expect("$ ")
	term.send("fg\n")
	term.expect("cat\r\n")
	term.send("again\n")
	term.expect("again\r\nagain\r\n")
	term.send("\x04") // ^D
	term.expect("$ ")
	term.send("echo code=$?\n")
	term.expect("code=0\r\n$ ")

	// Start a program other than a shell, because a shell may miss a signal while it forks.
	term.send("$lockctl run x -- cat\n")
	kit.Eventually(t, "the lock", func() bool { return len(locks(t, s, "ls")) == 1 })
	term.send("running\n")
	term.expect("running\r\nrunning\r\n")
	term.send("\x03") // ^C
	term.expect("$ ")
	term.send("echo code=$?\n")
	term.expect("code=130\r\n$ ")

	// In a pipeline the other programs need the terminal, so the command does not get it, but
	// lockctl passes on the signals that the keys generate.
	term.send("$lockctl run x -- sh -c 'echo rea''dy; exec sleep 60' | cat\n")
	term.expect("ready") // holding the lock does not imply that the command is running
	term.send("\x1a")
	term.expect("Stopped")
	term.expect("$ ")
	term.send("fg\n")
	term.expect("cat\r\n")
	term.send("\x03")
	term.expect("$ ")
	require.Empty(t, locks(t, s, "ls"))
}

// TestTerminalStoppedTooLong checks that a job suspended for longer than its lease loses the lock,
// and that its command is ended without ever being continued.
func TestTerminalStoppedTooLong(t *testing.T) {
	t.Parallel()
	s := serve(t)
	term := openTerminal(t, s)
	term.expect("$ ")
	// The command must not fork: during a fork, ^Z may stop only the child. If the command were
	// ever continued, it would read the line typed below.
	term.send("$lockctl run --ttl 1s x -- sh -c 'echo rea''dy; read line; echo nev''er'\n")
	term.expect("ready")
	term.send("\x1a")
	term.expect("Stopped")
	term.expect("$ ")
	code, out, errs := run(t, s, "run", "x", "--", "echo", "inside")
	require.Zero(t, code, errs)
	require.Equal(t, "inside\n", out)
	term.send("fg\n")
	term.expect("lock lost")
	term.expect("$ ")
	term.send("echo code=$?\n")
	term.expect("code=75\r\n$ ")
	require.NotContains(t, term.out.String(), "never")
}

// TestTerminalBreak checks that break asks on a terminal and accepts only a clear yes.
func TestTerminalBreak(t *testing.T) {
	t.Parallel()
	s := serve(t)
	p, _ := hold(t, s, "x")
	term := openTerminal(t, s)
	for _, answer := range []string{"\n", "n\n", "no, y\n", "\x04"} {
		term.expect("$ ")
		term.send("NO_COLOR=1 $lockctl break x; echo code=$?\n")
		term.expect("Break it? ")
		term.expect("[y/N] ")
		term.send(answer)
		term.expect("nothing was broken")
		term.expect("code=1\r\n")
		require.NotContains(t, term.out.String()[:term.read], "\x1b[3", "no colours")
	}
	require.Nil(t, locks(t, s, "info", "x")[0].Holder.Broken)
	term.expect("$ ")
	term.send("$lockctl break x; echo code=$?\n")
	term.expect("\x1b[1mx\x1b[0m") // in color
	term.expect("[y/N] ")
	term.send("y\n")
	term.expect("broken: ")
	term.expect("code=0\r\n")
	require.Equal(t, 75, p.wait())
}

// TestTerminalPartitions checks that on a terminal partitions --watch updates the group in place,
// fits the screen, and shows how long a partition has been unowned.
func TestTerminalPartitions(t *testing.T) {
	t.Parallel()
	s := serve(t)
	c := client(t, s)
	enlist(t, c, "ingest", "w0", 1, 3)
	own(t, c, "ingest", 0, "w0")
	term := openTerminal(t, s)
	require.NoError(t, pty.Setsize(term.ptmx, &pty.Winsize{Rows: 24, Cols: 100}))
	term.expect("$ ")
	term.send("NO_COLOR=1 $lockctl partitions ingest --watch\n")
	term.expect("\x1b[2J\x1b[Hpartitions at nats://")
	term.expect("ingest: 3 partitions, 1 member, 2 unowned, 0 in motion")
	kit.Eventually(t, "a second and more, without a change", func() bool {
		return regexp.MustCompile(`1-2 +[\d.]*\ds or more`).MatchString(term.out.String())
	})
	last := own(t, c, "ingest", 1, "w0")
	term.expect("ingest: 3 partitions, 1 member, 1 unowned, 0 in motion")
	s.Stop()
	term.expect("\x1b[Hno connection to")
	s.Restart()
	require.NoError(t, last.Unlock(timeout(t)))
	term.expect("2 unowned, 0 in motion")
	require.NoError(t, pty.Setsize(term.ptmx, &pty.Winsize{Rows: 4, Cols: 40}))
	term.expect("\r\n...")
	frame := term.out.String()[:term.read]
	for line := range strings.SplitSeq(frame[strings.LastIndex(frame, "\x1b[H"):], "\r\n") {
		require.LessOrEqual(t, len(line), 40+len("\x1b[H\x1b[0m\x1b[K"), line)
	}
	term.send("\x03")
	term.expect("$ ")
}

// TestRunWaitsOnTerminal checks that a waiter's status line shows the current holder and the
// waiter's place in the queue, and disappears when the lock is granted.
func TestRunWaitsOnTerminal(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	s := serve(t)
	p, _ := hold(t, s, "x")
	first := start(t, s, "run", "x", "--", "true")
	awaitQueue(t, s, "x", 1)
	v := display(t, s, nil, "run", "x", "--", "echo", "inside")
	v.resize(160, 24) // the name of this machine may be long
	holder := fmt.Sprintf(":%d sh has held it for ", p.cmd.Process.Pid)
	text := v.shows("lockctl: waiting for lock x, place 2 of 2: ", holder)
	v.until("a later time", func(now string) bool { return now != text && strings.Contains(now, holder) })
	first.signal(syscall.SIGTERM)
	require.Equal(t, 128+15, first.wait())
	v.shows("place 1 of 1: ")
	v.resize(40, 24)
	v.until("a short line", func(now string) bool {
		return strings.Contains(now, "waiting for lock x, place...\n") && strings.Count(strings.TrimSpace(now), "\n") == 0
	})
	p.signal(syscall.SIGTERM)
	p.wait()
	require.Zero(t, v.ends())
	require.Equal(t, "inside", strings.TrimSpace(v.text()))

}

// TestRunGivesUpOnTerminal checks that a message appears above the waiter's status line, and that
// the line is removed when the wait ends.
func TestRunGivesUpOnTerminal(t *testing.T) {
	t.Parallel()
	s := serve(t)
	hold(t, s, "y")
	v := display(t, s, nil, "run", "y", "--", "true")
	v.shows("waiting for lock y, place 1 of 1")
	v.press("\x03")
	require.Equal(t, 128+2, v.ends())
	require.NotContains(t, v.text(), "place 1 of 1")
	require.Contains(t, v.text(), "lockctl: gave up waiting for lock y: signal: interrupt")
	require.Equal(t, 1, strings.Count(strings.TrimSpace(v.text()), "lockctl"))
}
