//go:build unix

package main_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"
	"github.com/creack/pty"
	"github.com/hinshun/vt10x"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/testutil"
)

var update = flag.Bool("update", false, "write the screens in testdata instead of comparing with them")

// screen is a lockctl on its own terminal, together with what the terminal shows.
type screen struct {
	t    *testing.T
	cmd  *exec.Cmd
	ptmx *os.File
	done chan struct{} // closed when the program has exited and all of its output has been read

	mu      sync.Mutex
	vt      vt10x.Terminal
	pending []byte // an incomplete sequence
	frames  bool   // the program marks its frames
	shown   string // the text after the last complete frame
	raw     []byte
	writes  int           // lower bound on the program's writes
	more    chan struct{} // closed and replaced on every output
}

// display starts lockctl on an 80x24 terminal.
func display(t *testing.T, s *testutil.Server, env []string, args ...string) *screen {
	t.Helper()
	v := &screen{t: t, done: make(chan struct{}), more: make(chan struct{}), vt: vt10x.New(vt10x.WithSize(80, 24))}
	v.cmd = exec.Command(binary, args...)
	here := slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "SSH_TTY=") }) // over SSH, frames are not marked
	v.cmd.Env = append(here, "HOME="+t.TempDir(), "NATS_URL="+s.URL(), "TERM=xterm-256color", "NO_COLOR=", "LC_ALL=C.UTF-8")
	v.cmd.Env = append(v.cmd.Env, env...)
	var err error
	v.ptmx, err = pty.StartWithSize(v.cmd, &pty.Winsize{Cols: 80, Rows: 24})
	require.NoError(t, err)
	go func() {
		defer close(v.done)
		// After the program exits, Linux may return EIO while its last output is still in the
		// terminal's queue. The next read waits for the queue and returns the output.
		buf := make([]byte, 4096)
		for failed := 0; failed < 2; {
			n, err := v.ptmx.Read(buf)
			if err != nil {
				failed++
				continue
			}
			failed = 0
			v.show(buf[:n])
		}
		v.end()
		_ = v.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = v.cmd.Process.Kill()
		<-v.done
		v.ptmx.Close()
		if t.Failed() {
			t.Logf("%s", v.text())
		}
	})
	return v
}

// foreign matches sequences that a terminal ignores if it does not know them, but that the emulator
// misinterprets.
var foreign = regexp.MustCompile(`^\x1b\[([<=>].*|\?.*[up])$`)

// Synchronized output (mode 2026) brackets frames, so that a terminal shows only complete ones. The
// emulator does not support it, so the tests do.
const (
	asksForFrames = "\x1b[?2026$p"
	marksFrames   = "\x1b[?2026;2$y"
	frameBegins   = "\x1b[?2026h"
	frameEnds     = "\x1b[?2026l"
)

func (v *screen) show(b []byte) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.raw = append(v.raw, b...)
	v.writes++
	b = append(v.pending, b...)
	for len(b) > 0 {
		seq, _, n, state := ansi.DecodeSequence(b, ansi.NormalState, nil)
		if state != ansi.NormalState || n == len(b) && b[0] >= 0xc2 && !wholeRunes(b) {
			break
		}
		switch string(seq) {
		case asksForFrames:
			_, _ = v.ptmx.WriteString(marksFrames)
		case frameBegins: // the program draws the first frames before it has the reply
			v.frames = true
		case frameEnds:
			v.shown = v.textLocked()
		default:
			if !foreign.Match(seq) {
				_, _ = v.vt.Write(seq)
			}
		}
		b = b[n:]
	}
	v.pending = append([]byte(nil), b...)
	v.changedLocked()
}

// end makes the current contents the text of the screen, because the program draws no more.
func (v *screen) end() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.frames = false
	v.changedLocked()
}

func (v *screen) changedLocked() {
	if !v.frames {
		v.shown = v.textLocked()
	}
	close(v.more)
	v.more = make(chan struct{})
}

// wholeRunes reports whether b ends with a complete rune.
func wholeRunes(b []byte) bool { return strings.ToValidUTF8(string(b), "") == string(b) }

// text returns what the terminal shows after the last complete frame.
func (v *screen) text() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.shown
}

func (v *screen) textLocked() string {
	var b strings.Builder
	for line := range strings.Lines(v.vt.String()) {
		b.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	return b.String()
}

// until waits until the text on the terminal satisfies cond, and returns it.
func (v *screen) until(what string, cond func(text string) bool) string {
	v.t.Helper()
	timer := time.NewTimer(kit.Patience)
	defer timer.Stop()
	for {
		v.mu.Lock()
		text, more := v.shown, v.more
		v.mu.Unlock()
		if cond(text) {
			return text
		}
		select {
		case <-more:
		case <-timer.C:
			v.t.Fatalf("the screen never shows %s", what)
		}
	}
}

// shows waits until all of the texts are on the screen.
func (v *screen) shows(texts ...string) string {
	v.t.Helper()
	return v.until(strings.Join(texts, ", "), func(text string) bool {
		for _, want := range texts {
			if !strings.Contains(text, want) {
				return false
			}
		}
		return true
	})
}

// hides waits until a text has disappeared.
func (v *screen) hides(gone string) string {
	v.t.Helper()
	return v.until("no "+gone, func(text string) bool { return !strings.Contains(text, gone) })
}

// press sends keys the way a terminal does. After a lone Escape, wait for its effect before
// pressing anything else: a key that follows immediately would form an escape sequence with it.
func (v *screen) press(keys string) {
	v.t.Helper()
	_, err := v.ptmx.WriteString(keys)
	require.NoError(v.t, err)
}

const (
	keyEnter = "\r"
	keyEsc   = "\x1b"
	keyDown  = "\x1b[B"
	keyUp    = "\x1b[A"
)

func (v *screen) resize(cols, rows int) {
	v.t.Helper()
	v.mu.Lock()
	v.vt.Resize(cols, rows)
	// The emulator sets no tab stops in the new columns, but lockctl moves the cursor by tabs.
	tabs := "\x1b7"
	for col := 9; col <= cols; col += 8 {
		tabs += fmt.Sprintf("\x1b[1;%dH\x1bH", col)
	}
	_, _ = v.vt.Write([]byte(tabs + "\x1b8"))
	v.mu.Unlock()
	require.NoError(v.t, pty.Setsize(v.ptmx, &pty.Winsize{Cols: uint16(cols), Rows: uint16(rows)}))
}

// ends waits for the program to exit and returns its exit code.
func (v *screen) ends() int {
	v.t.Helper()
	select {
	case <-v.done:
		return v.cmd.ProcessState.ExitCode()
	case <-time.After(kit.Patience):
		v.t.Fatal("the program does not end")
		return -1
	}
}

// output returns everything that was written to the terminal.
func (v *screen) output() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return string(v.raw)
}

// written returns a lower bound on how often the program has written to the terminal.
func (v *screen) written() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.writes
}

var (
	someTime  = regexp.MustCompile(` *\b(\d+(\.\d+)?m?s|\d+m\d\ds|\d+h\d\dm)`)
	someClock = regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(Z|[+-]\d\d:\d\d)`)
	someRate  = regexp.MustCompile(`\d+(\.\d)?/s`)
	someShare = regexp.MustCompile(` +(\d+(\.\d)?/s|-)$`)
	someToken = regexp.MustCompile(`\b(\d{16}|\d{14})\b`)
	someID    = regexp.MustCompile(`\b[A-Z2-7]{26}\b`)
	someBegin = regexp.MustCompile(`since \d\d:\d\d:\d\d`)
	someURL   = regexp.MustCompile(`nats://127\.0\.0\.1:\d+`)
)

// looksLike compares a screen with the one in testdata, ignoring what differs between runs. Columns
// must keep their widths.
func looksLike(t *testing.T, name, text string) {
	t.Helper()
	host, err := os.Hostname()
	require.NoError(t, err)
	lines := strings.Split(text, "\n")
	lines[0] = regexp.MustCompile(` {2,}`).ReplaceAllString(lines[0], "  ") // the width of the URL varies
	// holders is the offset of the HOLDER column, whose texts are cut at the host name.
	holders := 0
	for i, line := range lines {
		if at := strings.Index(line, "HOLDER"); at >= 0 && strings.HasPrefix(line, " KIND") {
			holders = at
		}
		column := regexp.MustCompile(`^[> ](mutex|rw) +\S+ +(excl|shared) `).MatchString(line)
		if column {
			line = regexp.MustCompile(`^(.{`+strconv.Itoa(holders)+`}.{7}).{13}`).ReplaceAllString(line, "$1"+strings.Repeat(" ", 13))
			line = someShare.ReplaceAllString(line, " RATE")
		} else {
			line = someRate.ReplaceAllString(line, "N/s")
		}
		line = regexp.MustCompile(regexp.QuoteMeta(host)+`:\d+`).ReplaceAllString(line, "HOST:PID")
		line = someURL.ReplaceAllString(line, "URL")
		line = someToken.ReplaceAllStringFunc(line, func(s string) string { return strings.Repeat("#", ansi.StringWidth(s)) })
		line = someID.ReplaceAllString(line, "ID")
		line = someClock.ReplaceAllString(line, "CLOCK")
		lines[i] = someTime.ReplaceAllStringFunc(line, func(s string) string {
			if column {
				return strings.Repeat(" ", max(len(s)-4, 0)) + "TIME"
			}
			return " TIME"
		})
	}
	text = someBegin.ReplaceAllString(strings.Join(lines, "\n"), "since CLOCK")

	file := filepath.Join("testdata", name+".txt")
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), text)
}

// alive reports whether the program is still running.
func (v *screen) alive() bool {
	return !errors.Is(v.cmd.Process.Signal(syscall.Signal(0)), os.ErrProcessDone)
}
