package tool

import (
	"cmp"
	"errors"
	"strings"

	"github.com/nats-io/nats.go"
)

// RefusedNotifications reports whether err means that the server refused a subscription to the
// bucket's notifications because the user's permissions do not include the subject.
func RefusedNotifications(nc *nats.Conn, err error) bool {
	subject, ok := refusedSubscription(err)
	return ok && !strings.HasPrefix(subject, inbox(nc))
}

// RefusedAnswers reports whether err means that the server refused the subscription to its replies,
// whose subjects begin with the inbox prefix.
func RefusedAnswers(nc *nats.Conn, err error) bool {
	subject, ok := refusedSubscription(err)
	return ok && strings.HasPrefix(subject, inbox(nc))
}

// inbox returns the prefix of reply subjects.
func inbox(nc *nats.Conn) string {
	return cmp.Or(nc.Opts.InboxPrefix, strings.TrimSuffix(nats.InboxPrefix, ".")) + "."
}

// refusedSubscription returns the subject of the subscription that the server refused, if that is
// what err reports.
func refusedSubscription(err error) (subject string, ok bool) {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return "", false
	}
	_, rest, ok := strings.Cut(err.Error(), `Subscription to "`)
	if !ok {
		return "", false
	}
	subject, _, ok = strings.Cut(rest, `"`)
	return subject, ok
}
