package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"github.com/natslock/locks/internal/tool"
)

// console is what one run of lockctl has of its surroundings: it reads, writes and asks
// nothing else. A process has one, the tests have many at once.
type console struct {
	environ []string
	stdin   io.Reader
	out     *output
	stderr  io.Writer
	signals func() <-chan os.Signal // those that are for the command, from now on

	complaints io.Writer // where complain writes to: while top draws on the screen, a buffer
	status     statusLine
	refused    refusals
}

// newConsole returns the console of a run without signals.
func newConsole(environ []string, stdin io.Reader, stdout, stderr io.Writer) *console {
	c := &console{environ: environ, stdin: stdin, stderr: stderr, complaints: stderr}
	c.out = &output{w: stdout}
	c.status.w = stderr
	c.refused.complain = c.complain
	c.signals = func() <-chan os.Signal { return nil }
	return c
}

// ofProcess returns the console of this process.
func ofProcess() *console {
	c := newConsole(os.Environ(), os.Stdin, os.Stdout, os.Stderr)
	c.signals = forSignals
	return c
}

// lookupEnv is [os.LookupEnv] of the run.
func (c *console) lookupEnv(name string) (value string, ok bool) {
	for _, entry := range c.environ { // the last one counts
		if rest, found := strings.CutPrefix(entry, name+"="); found {
			value, ok = rest, true
		}
	}
	return value, ok
}

func (c *console) getenv(name string) string {
	value, _ := c.lookupEnv(name)
	return value
}

// terminal returns the terminal that a stream is, or nil.
func terminal(stream any) *os.File {
	if f, ok := stream.(*os.File); ok && isTerminal(f) {
		return f
	}
	return nil
}

// complain writes one message to standard error. Everything that lockctl itself
// says there starts with its name, because the command it runs writes there
// too.
func (c *console) complain(format string, args ...any) {
	msg := strings.TrimPrefix(fmt.Sprintf(format, args...), "natslock: ")
	msg = strings.ReplaceAll(strings.TrimSpace(msg), "\n", "\nlockctl: ")
	c.status.above(func() { fmt.Fprintf(c.complaints, "lockctl: %s\n", msg) })
}

// report prints the error, unless it is silent, and returns its exit code.
func (c *console) report(err error) int {
	c.refused.end(err)
	if err == nil {
		return 0
	}
	if coded, ok := errors.AsType[*tool.Error](err); !ok || coded.Err != nil {
		c.complain("%v", err)
	}
	return tool.CodeOf(err)
}

// output is standard output. The commands print to it without a check of each error: it
// keeps the first one, and writes nothing after it. mainCode reports that one, so that no
// answer is cut short in silence.
type output struct {
	w   io.Writer
	err error
}

// Write implements io.Writer.
func (o *output) Write(p []byte) (int, error) {
	if o.err != nil {
		return 0, o.err
	}
	n, err := o.w.Write(p)
	if err != nil {
		if wrapped, ok := errors.AsType[*fs.PathError](err); ok {
			err = wrapped.Err // the path would be that of a device, not that of the user
		}
		o.err = tool.Exitf(tool.ExitInternal, "cannot write to standard output: %w", err)
	}
	return n, o.err
}

// end is the error of a command that has ended with err.
func (c *console) end(err error) error {
	o := c.out
	switch {
	case o.err == nil || errors.Is(err, o.err):
		return err
	case errors.Is(o.err, syscall.EPIPE): // the reader has seen enough
		return err
	case err == nil:
		return o.err
	}
	if coded, ok := errors.AsType[*tool.Error](err); ok && coded.Err == nil { // its reason was to be printed
		return o.err
	}
	c.complain("%v", o.err)
	return err
}
