package kvstore

import (
	"errors"
	"slices"
	"strings"
)

// Join is [errors.Join] with a text of one line, for logs.
func Join(errs ...error) error {
	errs = slices.DeleteFunc(slices.Clone(errs), func(err error) bool { return err == nil })
	if len(errs) == 0 {
		return nil
	}
	return &joined{errs}
}

type joined struct{ all []error }

func (j *joined) Error() string {
	return strings.ReplaceAll(errors.Join(j.all...).Error(), "\n", "; ")
}

func (j *joined) Unwrap() []error { return j.all }
