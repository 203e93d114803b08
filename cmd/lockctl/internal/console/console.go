// Package console provides a run of lockctl with its streams, environment and signals.
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

// Console holds the streams, environment and signals of a single run of lockctl, which uses no
// others. A process normally has one Console, but tests use several at the same time.
type Console struct {
	Environ []string
	Stdin   io.Reader
	Out     *Output // standard output
	Stderr  io.Writer
	Signals func() <-chan os.Signal // starts receiving the signals meant for the command

	Complaints io.Writer  // where Complain writes; a buffer while top has the screen
	Status     StatusLine // bottom line of the terminal
	Refused    Refusals   // the server's refusals
}

// New returns the console of a run that receives no signals.
func New(environ []string, stdin io.Reader, stdout, stderr io.Writer) *Console {
	c := &Console{Environ: environ, Stdin: stdin, Stderr: stderr, Complaints: stderr}
	c.Out = &Output{W: stdout}
	c.Status.w = stderr
	c.Refused.complain = c.Complain
	c.Signals = func() <-chan os.Signal { return nil }
	return c
}

// OfProcess returns the console of this process. The signals function becomes its Signals
// field.
func OfProcess(signals func() <-chan os.Signal) *Console {
	c := New(os.Environ(), os.Stdin, os.Stdout, os.Stderr)
	c.Signals = signals
	return c
}

// LookupEnv is like [os.LookupEnv], but looks in the run's own environment.
func (c *Console) LookupEnv(name string) (value string, ok bool) {
	for _, entry := range c.Environ { // the last entry wins
		if rest, found := strings.CutPrefix(entry, name+"="); found {
			value, ok = rest, true
		}
	}
	return value, ok
}

// Getenv is like [os.Getenv], but looks in the run's own environment.
func (c *Console) Getenv(name string) string {
	value, _ := c.LookupEnv(name)
	return value
}

// Terminal returns stream as a file if it is a terminal, and nil otherwise.
func Terminal(stream any) *os.File {
	if f, ok := stream.(*os.File); ok && IsTerminal(f) {
		return f
	}
	return nil
}

// Complain writes a message to standard error. It starts each line with lockctl's name, because
// the command that lockctl runs writes to standard error too.
func (c *Console) Complain(format string, args ...any) {
	msg := strings.TrimPrefix(fmt.Sprintf(format, args...), "natslock: ")
	msg = strings.ReplaceAll(strings.TrimSpace(msg), "\n", "\nlockctl: ")
	c.Status.above(func() { fmt.Fprintf(c.Complaints, "lockctl: %s\n", msg) })
}

// Report prints err, unless err only carries an exit code, and returns the exit code.
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

// Output is standard output. It keeps the first error and writes nothing after it, so commands
// can print without checking for errors. mainCode reports the error, so output is never cut
// short silently.
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
	case errors.Is(o.Err, syscall.EPIPE): // the reader has stopped reading
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

// Self returns a path from which this program can be started again. On Linux that path refers
// to the running image, because an upgrade may have replaced the original file.
func Self() (string, error) {
	if runtime.GOOS == "linux" {
		return "/proc/self/exe", nil
	}
	return os.Executable()
}
