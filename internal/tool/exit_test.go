package tool

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/natslock"
)

// TestCodeOf checks that an error's own code takes precedence over that of the error it
// wraps.
func TestCodeOf(t *testing.T) {
	for _, c := range []struct {
		err  error
		code int
	}{
		{nil, 0},
		{Usagef("wrong: %w", natslock.ErrPermission), ExitUsage},
		{fmt.Errorf("deeper: %w", &Error{Code: ExitConflict}), ExitConflict},
		{natslock.ErrInvalid, ExitUsage},
		{fmt.Errorf("%w: %w", natslock.ErrUnavailable, nats.ErrPermissionViolation), ExitPermission},
		{kvstore.ErrNoWatch, ExitConfig},
		{context.DeadlineExceeded, ExitUnavailable},
		{nats.ErrTimeout, ExitUnavailable},
		{natslock.ErrLost, ExitLost},
		{errors.New("another"), ExitInternal},
	} {
		require.Equal(t, c.code, CodeOf(c.err), "%v", c.err)
	}
	require.Equal(t, "exit status 128", (&Error{Code: ExitSignal}).Error())
}

// TestRefusedSubscription checks that a refused subscription to replies is told apart from
// one to notifications, with and without an inbox prefix. A refused publish is neither.
func TestRefusedSubscription(t *testing.T) {
	refusal := func(subject string) error {
		return fmt.Errorf(`%w: Permissions Violation for Subscription to "%s"`, nats.ErrPermissionViolation, subject)
	}
	for _, c := range []struct {
		prefix                 string
		err                    error
		notifications, answers bool
	}{
		{"", refusal("_INBOX.x.*"), false, true},
		{"", refusal("natslock.e.>"), true, false},
		{"_MINE", refusal("_MINE.x.*"), false, true},
		{"_MINE", refusal("_INBOX.x.*"), true, false},
		{"", fmt.Errorf(`%w: Permissions Violation for Publish to "_INBOX.x"`, nats.ErrPermissionViolation), false, false},
		{"", errors.New(`Subscription to "natslock.e.>"`), false, false},
		{"", nil, false, false},
	} {
		nc := &nats.Conn{Opts: nats.Options{InboxPrefix: c.prefix}}
		require.Equal(t, c.notifications, RefusedNotifications(nc, c.err), "%v", c.err)
		require.Equal(t, c.answers, RefusedAnswers(nc, c.err), "%v", c.err)
	}
}
