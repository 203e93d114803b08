package tool

import (
	"cmp"
	"errors"
	"strings"

	"github.com/nats-io/nats.go"
)

// RefusedNotifications reports whether an error is the refusal of a subscription to the
// bucket's notifications: the permissions of the user do not include the subject.
func RefusedNotifications(nc *nats.Conn, err error) bool {
	subject, ok := refusedSubscription(err)
	return ok && !strings.HasPrefix(subject, inbox(nc))
}

// RefusedAnswers reports whether an error is the refusal of the subscription to the answers of
// the server. The subjects of answers begin with the inbox prefix.
func RefusedAnswers(nc *nats.Conn, err error) bool {
	subject, ok := refusedSubscription(err)
	return ok && strings.HasPrefix(subject, inbox(nc))
}

// inbox returns what the subjects of answers begin with.
func inbox(nc *nats.Conn) string {
	return cmp.Or(nc.Opts.InboxPrefix, strings.TrimSuffix(nats.InboxPrefix, ".")) + "."
}

// refusedSubscription returns the subject of a subscription that the server has refused.
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
