package main

import (
	"errors"
	"io/fs"
	"os"
	"syscall"

	"github.com/natslock/locks/internal/tool"
)

// stdout is standard output. The commands print to it without a check of each error:
// mainCode reports the first one, so that no answer is cut short in silence.
var stdout = &output{f: os.Stdout}

// output keeps the first error of its file, and writes nothing after it.
type output struct {
	f   *os.File
	err error
}

// Write implements io.Writer.
func (o *output) Write(p []byte) (int, error) {
	if o.err != nil {
		return 0, o.err
	}
	n, err := o.f.Write(p)
	if err != nil {
		if wrapped, ok := errors.AsType[*fs.PathError](err); ok {
			err = wrapped.Err // the path would be that of a device, not that of the user
		}
		o.err = tool.Exitf(tool.ExitInternal, "cannot write to standard output: %w", err)
	}
	return n, o.err
}

// end is the error of a command that has ended with err.
func (o *output) end(err error) error {
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
	complain("%v", o.err)
	return err
}
