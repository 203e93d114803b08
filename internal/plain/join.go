package plain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Join is like [errors.Join], but with its text on one line, for logs.
func Join(errs ...error) error {
	errs = slices.DeleteFunc(slices.Clone(errs), func(err error) bool { return err == nil })
	switch len(errs) {
	case 0:
		return nil
	case 1:
		return errs[0]
	}
	return &joined{errs}
}

type joined struct{ all []error }

func (j *joined) Error() string {
	return strings.ReplaceAll(errors.Join(j.all...).Error(), "\n", "; ")
}

func (j *joined) Unwrap() []error { return j.all }

// EndOf returns why ctx has ended: its error and, if that is different, its cause, on one line.
func EndOf(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}
