package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/natslock"
)

// session is a connection with a client on it, and the server if that is
// embedded.
type session struct {
	*natslock.Client
	nc  *nats.Conn
	url string // without credentials
	srv *embedded
}

// open connects and opens the bucket. The caller closes the session. Errors
// name the server and what to do.
func (g *globals) open(opts ...natslock.Option) (_ *session, err error) {
	s := &session{}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	target := g.Server
	if g.Embedded {
		if s.srv, err = startCached(); err != nil {
			return nil, err
		}
		target = s.srv.url()
	}
	s.url = withoutCredentials(target)
	if s.nc, err = g.connect(target); err != nil {
		return nil, g.connectError(s.url, err)
	}
	opts = append([]natslock.Option{natslock.WithBucket(g.Bucket), natslock.WithLogger(slog.New(warner{}))}, opts...)
	if g.Domain != "" {
		js, err := jetstream.NewWithDomain(s.nc, g.Domain)
		if err != nil {
			return nil, usagef("--domain %q: %w", g.Domain, err)
		}
		opts = append(opts, natslock.WithJetStream(js))
	}
	ctx, cancel := g.bounded()
	defer cancel()
	s.Client, err = natslock.New(ctx, s.nc, opts...)
	if errors.Is(err, nats.ErrNoResponders) {
		return nil, exitf(exitUnavailable, "no JetStream at %s; start the server with \"nats-server -js\", name the --domain it is in, or try --embedded", s.url)
	}
	return s, err
}

// bounded is the context of a single request.
func (g *globals) bounded() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), g.Timeout)
}

func (g *globals) connect(target string) (*nats.Conn, error) {
	opts := []nats.Option{
		nats.Name("lockctl"),
		nats.Timeout(g.Timeout),
		// A lease lasts for seconds: an outage must not cost more of it than
		// it has to.
		nats.MaxReconnects(-1),
		nats.ReconnectWait(100 * time.Millisecond),
		nats.ReconnectJitter(50*time.Millisecond, 100*time.Millisecond),
		nats.PingInterval(10 * time.Second),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { complain("%v", err) }),
	}
	if g.Creds != "" {
		opts = append(opts, nats.UserCredentials(g.Creds))
	}
	return nats.Connect(target, opts...)
}

// connectError says what a user can do about a connection that was not made.
func (g *globals) connectError(target string, err error) error {
	switch {
	case codeOf(err) == exitPermission:
		return exitf(exitPermission, "%s refuses the login: %w; give a user in the URL, or --creds", target, err)
	case g.Embedded:
		return exitf(exitUnavailable, "cannot connect to the embedded server: %w", err)
	case errors.Is(err, nats.ErrNoServers), errors.Is(err, nats.ErrTimeout), errors.Is(err, context.DeadlineExceeded):
		return exitf(exitUnavailable, "no server at %s; start one with \"nats-server -js\", or try --embedded", target)
	}
	return exitf(exitUnavailable, "cannot connect to %s: %w", target, err)
}

// close leaves locks still held to their TTL.
func (s *session) close() {
	if s.Client != nil {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		_ = s.Close(ended)
	}
	if s.nc != nil {
		s.nc.Close()
	}
	if s.srv != nil {
		s.srv.stop()
	}
}

// withoutCredentials makes a list of URLs fit to be shown.
func withoutCredentials(list string) string {
	urls := strings.Split(list, ",")
	for i, raw := range urls {
		raw = strings.TrimSpace(raw)
		if u, err := url.Parse(raw); err == nil && u.User != nil {
			u.User = nil
			raw = u.String()
		} else if at := strings.LastIndexByte(raw, '@'); at >= 0 {
			raw = raw[at+1:]
		}
		urls[i] = raw
	}
	return strings.Join(urls, ",")
}

// warner writes the library's warnings the way lockctl writes.
type warner struct{ attrs string }

func (w warner) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }

func (w warner) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	b.WriteString(w.attrs)
	r.Attrs(func(a slog.Attr) bool { b.WriteString(attr(a)); return true })
	msg := r.Message
	if b.Len() > 0 {
		msg += " (" + strings.TrimPrefix(b.String(), ", ") + ")"
	}
	complain("%s", msg)
	return nil
}

func (w warner) WithAttrs(attrs []slog.Attr) slog.Handler {
	for _, a := range attrs {
		w.attrs += attr(a)
	}
	return w
}

func (w warner) WithGroup(string) slog.Handler { return w }

func attr(a slog.Attr) string {
	if v := a.Value.String(); v != "" {
		return fmt.Sprintf(", %s %s", a.Key, v)
	}
	return ""
}
