package tool

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/natslock"
)

// Exit codes. Because "lockctl run" also returns the exit code of its command, its own codes
// are those of sysexits.h and of shells, which commands avoid for the same reason. 1 is what
// flock returns for a conflict.
const (
	ExitConflict    = 1   // run, acquire: the lock was not free in time; break, init: nothing was changed; demo: the lock did not exclude
	ExitUsage       = 64  // EX_USAGE
	ExitUnavailable = 69  // EX_UNAVAILABLE: no server, or no JetStream
	ExitInternal    = 70  // EX_SOFTWARE: any other error
	ExitLost        = 75  // EX_TEMPFAIL: the lock was lost and the command was ended
	ExitPermission  = 77  // EX_NOPERM: the server refuses this user
	ExitConfig      = 78  // EX_CONFIG: no bucket, or one that is not fit for locks
	ExitNotExec     = 126 // as in shells: found, but not executable
	ExitNotFound    = 127 // as in shells: no such command
	ExitSignal      = 128 // as in shells: plus the signal's number
)

// Error is an error with an exit code.
type Error struct {
	Code int
	Err  error // nil if the command has already printed the reason or needs none
}

// Error returns the text of Err, or names the exit code if Err is nil.
func (e *Error) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit status %d", e.Code)
	}
	return e.Err.Error()
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// Exitf returns an [Error] with this exit code and the text of [fmt.Errorf].
func Exitf(code int, format string, args ...any) error {
	return &Error{Code: code, Err: fmt.Errorf(format, args...)}
}

// Usagef is [Exitf] for an invalid command line.
func Usagef(format string, args ...any) error { return Exitf(ExitUsage, format, args...) }

// CodeOf returns the exit code for err: that of an [Error], or the one that fits an error
// from the library or from NATS. It is 0 for nil.
func CodeOf(err error) int {
	if err == nil {
		return 0
	}
	if coded, ok := errors.AsType[*Error](err); ok {
		return coded.Code
	}
	is := func(targets ...error) bool {
		for _, t := range targets {
			if errors.Is(err, t) {
				return true
			}
		}
		return false
	}
	switch {
	case is(natslock.ErrInvalid):
		return ExitUsage
	case is(natslock.ErrPermission, nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked, nats.ErrPermissionViolation):
		return ExitPermission
	case is(kvstore.ErrBucketConfig, kvstore.ErrNoWatch):
		return ExitConfig
	case is(natslock.ErrUnavailable, nats.ErrNoServers, nats.ErrTimeout, context.DeadlineExceeded):
		return ExitUnavailable
	case is(natslock.ErrLost):
		return ExitLost
	}
	return ExitInternal
}
