// Package console gives one run of lockctl its surroundings: the streams, the environment
// and the signals.
package console

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"syscall"

	"github.com/natslock/locks/internal/tool"
)

// Console has the surroundings of one run of lockctl, which reads and writes nothing else. A
// process has one; tests have many at once.
type Console struct {
	Environ []string
	Stdin   io.Reader
	Out     *Output // standard output
	Stderr  io.Writer
	Signals func() <-chan os.Signal // signals for the command, from now on

	Complaints io.Writer  // where Complain writes: a buffer while top draws on the screen
	Status     StatusLine // bottom line of the terminal
	Refused    Refusals   // refusals of the server
}

// New returns the console of a run without signals.
func New(environ []string, stdin io.Reader, stdout, stderr io.Writer) *Console {
	c := &Console{Environ: environ, Stdin: stdin, Stderr: stderr, Complaints: stderr}
	c.Out = &Output{W: stdout}
	c.Status.w = stderr
	c.Refused.complain = c.Complain
	c.Signals = func() <-chan os.Signal { return nil }
	return c
}

// OfProcess returns the console of this process. signals returns the signals for its
// command.
func OfProcess(signals func() <-chan os.Signal) *Console {
	c := New(os.Environ(), os.Stdin, os.Stdout, os.Stderr)
	c.Signals = signals
	return c
}

// LookupEnv is [os.LookupEnv] of the run.
func (c *Console) LookupEnv(name string) (value string, ok bool) {
	for _, entry := range c.Environ { // the last entry counts
		if rest, found := strings.CutPrefix(entry, name+"="); found {
			value, ok = rest, true
		}
	}
	return value, ok
}

// Getenv is [os.Getenv] of the run.
func (c *Console) Getenv(name string) string {
	value, _ := c.LookupEnv(name)
	return value
}

// Terminal returns stream as a terminal, or nil if it is not one.
func Terminal(stream any) *os.File {
	if f, ok := stream.(*os.File); ok && IsTerminal(f) {
		return f
	}
	return nil
}

// Complain writes a message to standard error. Messages of lockctl itself start with its
// name there, because the command that it runs writes to standard error too.
func (c *Console) Complain(format string, args ...any) {
	msg := strings.TrimPrefix(fmt.Sprintf(format, args...), "natslock: ")
	msg = strings.ReplaceAll(strings.TrimSpace(msg), "\n", "\nlockctl: ")
	c.Status.above(func() { fmt.Fprintf(c.Complaints, "lockctl: %s\n", msg) })
}

// Report prints the error, unless it is silent, and returns the exit code.
func (c *Console) Report(err error) int {
	c.Refused.end(err)
	if err == nil {
		return 0
	}
	if coded, ok := errors.AsType[*tool.Error](err); !ok || coded.Err != nil {
		c.Complain("%v", err)
	}
	return tool.CodeOf(err)
}

// Output is standard output. Commands print to it without checking each error: Output keeps
// the first error and writes nothing after it. mainCode reports that error, so no output is
// cut short silently.
type Output struct {
	W   io.Writer
	Err error // first error
}

// Write implements io.Writer.
func (o *Output) Write(p []byte) (int, error) {
	if o.Err != nil {
		return 0, o.Err
	}
	n, err := o.W.Write(p)
	if err != nil {
		if wrapped, ok := errors.AsType[*fs.PathError](err); ok {
			err = wrapped.Err // the path would name a device instead of the user's file
		}
		o.Err = tool.Exitf(tool.ExitInternal, "cannot write to standard output: %w", err)
	}
	return n, o.Err
}

// End returns the error to report for a command that has ended with err.
func (c *Console) End(err error) error {
	o := c.Out
	switch {
	case o.Err == nil || errors.Is(err, o.Err):
		return err
	case errors.Is(o.Err, syscall.EPIPE): // the reader does not want more
		return err
	case err == nil:
		return o.Err
	}
	if coded, ok := errors.AsType[*tool.Error](err); ok && coded.Err == nil { // its reason was part of the output
		return o.Err
	}
	c.Complain("%v", o.Err)
	return err
}

// Self returns the path of this program, to start it again. An upgrade may have replaced the
// file it was started from, so on Linux Self returns a path for the running image.
func Self() (string, error) {
	if runtime.GOOS == "linux" {
		return "/proc/self/exe", nil
	}
	return os.Executable()
}
