package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/natslock/locks/kvstore"
	"github.com/natslock/locks/natslock"
)

// The exit codes. "run" also returns the codes of its command. So its own codes are from
// sysexits.h and from the shells, which commands avoid for the same reason. 1 is flock's
// for a conflict.
const (
	exitConflict    = 1   // run: the lock was not free in time. elect: nobody leads. extend, release: a used handle. break: nothing was broken
	exitUsage       = 64  // EX_USAGE
	exitUnavailable = 69  // EX_UNAVAILABLE: no server, or no JetStream
	exitInternal    = 70  // EX_SOFTWARE: everything that is none of the others
	exitLost        = 75  // EX_TEMPFAIL: the lock was lost, the command was ended
	exitPermission  = 77  // EX_NOPERM: the server refuses this user
	exitConfig      = 78  // EX_CONFIG: no bucket, or it is not fit for locks
	exitNotExec     = 126 // as the shells: found, but cannot be executed
	exitNotFound    = 127 // as the shells: no such command
	exitSignal      = 128 // as the shells: plus the signal's number
)

// codeError is an error with an exit code. A nil err is silent: lockctl has printed the
// reason already, or the command has one of its own.
type codeError struct {
	code int
	err  error
}

func (e *codeError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.code)
	}
	return e.err.Error()
}

func (e *codeError) Unwrap() error { return e.err }

func exitf(code int, format string, args ...any) error {
	return &codeError{code, fmt.Errorf(format, args...)}
}

func usagef(format string, args ...any) error { return exitf(exitUsage, format, args...) }

// report prints the error, unless it is silent, and returns its exit code.
func report(err error) int {
	refused.end(err)
	if err == nil {
		return 0
	}
	if coded, ok := errors.AsType[*codeError](err); ok {
		if coded.err != nil {
			complain("%v", err)
		}
		return coded.code
	}
	complain("%v", err)
	return codeOf(err)
}

// codeOf is the exit code of an error of the library.
func codeOf(err error) int {
	is := func(targets ...error) bool {
		for _, t := range targets {
			if errors.Is(err, t) {
				return true
			}
		}
		return false
	}
	switch {
	case is(natslock.ErrInvalidName, natslock.ErrInvalidTTL, natslock.ErrInvalidOption, kvstore.ErrInvalidKey):
		return exitUsage
	case is(natslock.ErrPermission, nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked, nats.ErrPermissionViolation):
		return exitPermission
	case is(kvstore.ErrBucketConfig):
		return exitConfig
	case is(natslock.ErrUnavailable, nats.ErrNoServers, context.DeadlineExceeded):
		return exitUnavailable
	case is(natslock.ErrLost):
		return exitLost
	}
	return exitInternal
}

// complaints is where complain writes to. While top draws on the screen it is a buffer.
var complaints io.Writer = os.Stderr

// complain writes one message to standard error. Everything that lockctl itself
// says there starts with its name, because the command it runs writes there
// too.
func complain(format string, args ...any) {
	msg := strings.TrimPrefix(fmt.Sprintf(format, args...), "natslock: ")
	msg = strings.ReplaceAll(strings.TrimSpace(msg), "\n", "\nlockctl: ")
	status.above(func() { fmt.Fprintf(complaints, "lockctl: %s\n", msg) })
}
