package tool

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/natslock/locks/internal/plain"
)

// WithoutCredentials removes the user, password and token from each URL in a comma-separated
// list, even if the URL is malformed.
func WithoutCredentials(list string) string {
	urls := strings.Split(list, ",")
	for i, raw := range urls {
		scheme, rest, ok := strings.Cut(strings.TrimSpace(raw), "://")
		if !ok {
			scheme, rest = "", scheme
		} else {
			scheme += "://"
		}
		urls[i] = scheme + rest[strings.LastIndexByte(rest, '@')+1:]
	}
	return strings.Join(urls, ",")
}

// errURL is the error for a malformed URL with a login. An error from url.Parse would quote
// the password.
var errURL = errors.New(`not a valid URL; write the scheme before each login, and "/", "?", "#", "@", "," and "%" in a password as %2F, %3F, %23, %40, %2C and %25`)

// checkURLs returns an error if one of the URLs is malformed. The error never contains a
// login. A client that connects to a malformed URL might send the login without TLS, or show
// part of the password as the host.
func checkURLs(urls ...string) error {
	for i, raw := range urls {
		if i > 0 && strings.Contains(raw, "@") && !strings.Contains(raw, "://") {
			return errURL // the rest of a password that contains a comma
		}
	}
	for _, raw := range urls {
		withScheme := raw
		if !strings.Contains(raw, "://") { // nats.go adds this scheme
			withScheme = "nats://" + raw
		}
		u, err := url.Parse(withScheme)
		switch {
		case strings.Contains(raw, "@") && (err != nil || strings.Contains(u.Path+u.RawQuery+u.Fragment, "@")):
			return errURL
		case err != nil:
			return fmt.Errorf("%s: %w", plain.Text(raw), WithoutURL(err))
		}
	}
	return nil
}

// WithoutURL returns err without its URL, which may contain a login.
func WithoutURL(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err
	}
	return err
}
