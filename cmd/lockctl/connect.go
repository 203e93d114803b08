package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/cmd/lockctl/internal/console"
	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/internal/tool"
	"github.com/natslock/locks/kvstore"
	"github.com/natslock/locks/natslock"
)

// session is a connection with a client on it, and the server if that is
// embedded.
type session struct {
	*natslock.Client
	*console.Console
	nc  *nats.Conn
	js  jetstream.JetStream // where the bucket is
	url string              // without credentials
	srv *embedded
	// unnotified has the first refusal of a subscription to the notifications.
	unnotified chan error
}

// open connects and opens the bucket. The caller closes the session. Errors
// name the server and what to do.
func (g *globals) open(opts ...natslock.Option) (_ *session, err error) {
	s, err := g.connect()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	return s, s.open(g, opts...)
}

// open opens the bucket. It creates a missing bucket only if the user asks for it, or
// if no other user can mean another one. Two operators with a mistyped name, or a
// forgotten domain, must not get a lock each.
func (s *session) open(g *globals, opts ...natslock.Option) error {
	ctx, cancel := g.bounded()
	defer cancel()
	opts = append([]natslock.Option{natslock.WithBucket(g.Bucket), natslock.WithJetStream(s.js), natslock.WithLogger(slog.New(warner{Console: s.Console})),
		natslock.WithCreate(g.create || s.srv != nil)}, opts...) //safety:creation-asked
	err := s.replicated(func(replicas int) (err error) {
		made := natslock.WithBucketConfig(kvstore.Config{Replicas: replicas})
		s.Client, err = natslock.New(ctx, s.nc, append([]natslock.Option{made}, opts...)...)
		return err
	})
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return s.noJetStream()
	case isAPIError(err, errCodeNoPeers):
		return s.tooFewServers(err)
	case errors.Is(err, kvstore.ErrNotFound):
		return &tool.Error{Code: tool.ExitConfig, Err: &missingBucket{fmt.Sprintf("there is no bucket %s at %s: check --bucket, --js-domain and --context, or make the bucket with \"lockctl init\" or \"lockctl run --create\"",
			show.Plain(g.Bucket), s.where()), err}}
	case errors.Is(err, natslock.ErrPermission) && tool.RefusedAnswers(s.nc, s.nc.LastError()):
		return tool.Exitf(tool.ExitPermission, "%w; the answers to this user need subjects that it may subscribe to: name their prefix with --inbox-prefix", err)
	}
	return err
}

func (s *session) tooFewServers(err error) error {
	return tool.Exitf(tool.ExitConfig, "%w; wait until more servers are there, or let one keep the bucket: \"lockctl init --replicas 1\"", err)
}

// missingBucket says what to do about a bucket that is not there, without the
// library's own words for it.
type missingBucket struct {
	text string
	err  error
}

func (e *missingBucket) Error() string { return e.text }
func (e *missingBucket) Unwrap() error { return e.err }

// replicated makes a bucket for which nobody has said how many servers keep it:
// three on a cluster. Only the servers of another domain, or behind another prefix,
// know whether they are one, and they refuse three replicas if they are not.
func (s *session) replicated(open func(replicas int) error) error {
	replicas := s.replicas()
	err := open(replicas)
	if replicas > 1 && isAPIError(err, errCodeNoCluster) {
		return open(1)
	}
	return err
}

// replicas are those that a new bucket is to have.
func (s *session) replicas() int {
	if o := s.js.Options(); o.Domain == "" && o.APIPrefix == "" && s.nc.ConnectedClusterName() == "" {
		return 1
	}
	// On a cluster, locks outlive the loss of a server.
	return 3 //safety:replicas
}

// The server's errors that nats.go has no names for.
const (
	errCodeNoPeers   = 10005 // "no suitable peers for placement"
	errCodeNoCluster = 10074 // "replicas > 1 not supported in non-clustered mode"
)

func isAPIError(err error, code jetstream.ErrorCode) bool {
	apiErr, ok := errors.AsType[*jetstream.APIError](err)
	return ok && apiErr.ErrorCode == code
}

func (s *session) noJetStream() error {
	return tool.Exitf(tool.ExitUnavailable, "no JetStream at %s; start a server that has it with \"lockctl server\" or \"nats-server -js\", name the --js-domain it is in, or try --embedded", s.url)
}

// bounded is the context of a single request.
func (g *globals) bounded() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), g.Timeout)
}

// connect connects, to a server started for it if that is wanted, and opens no
// bucket.
func (g *globals) connect() (_ *session, err error) {
	s := &session{Console: g.Console, unnotified: make(chan error, 1)}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	how := &g.Connection
	if g.Embedded {
		if s.srv, err = startCached(server.RANDOM_PORT); err != nil {
			return nil, err
		}
		how = &tool.Connection{Server: s.srv.url(), NoContext: true, Timeout: g.Timeout}
	}
	opts := []nats.Option{
		nats.Name("lockctl"),
		nats.Timeout(g.Timeout),
		// A lease lasts for seconds: an outage must not cost more of it than
		// it has to.
		nats.MaxReconnects(-1),
		nats.ReconnectWait(100 * time.Millisecond),
		nats.ReconnectJitter(50*time.Millisecond, 100*time.Millisecond),
		nats.PingInterval(10 * time.Second),
		nats.ErrorHandler(func(nc *nats.Conn, _ *nats.Subscription, err error) {
			if tool.RefusedNotifications(nc, err) {
				select {
				case s.unnotified <- err:
				default:
				}
			}
			switch {
			case doneWithout(err):
			case errors.Is(err, nats.ErrPermissionViolation):
				g.Refused.Add(err)
			default:
				g.Complain("%v", err)
			}
		}),
	}
	nc, url, settings, err := how.Dial(opts...)
	if err != nil {
		return nil, g.connectError(url, err)
	}
	s.nc, s.url = nc, url
	s.js, err = how.JetStream(nc, settings)
	return s, err
}

// doneWithout says whether an error is the refusal of a request that the library
// has another way for: see natslock.Access.ReadAll.
func doneWithout(err error) bool {
	text := err.Error()
	return errors.Is(err, nats.ErrPermissionViolation) &&
		(strings.Contains(text, ".STREAM.MSG.GET.") || strings.Contains(text, ".DIRECT.GET.") && !strings.Contains(text, "$KV."))
}

// connectError says what a user can do about a connection that was not made.
func (g *globals) connectError(servers string, err error) error {
	if _, ok := errors.AsType[*tool.Error](err); !ok && g.Embedded {
		return tool.Exitf(tool.ExitUnavailable, "cannot connect to the embedded server: %w", err)
	}
	return g.ConnectError(servers, err, "start one with \"lockctl server\", or try --embedded")
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

// warner writes the library's warnings the way lockctl writes.
type warner struct {
	*console.Console
	attrs string
}

func (w warner) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }

func (w warner) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	b.WriteString(w.attrs)
	r.Attrs(func(a slog.Attr) bool { b.WriteString(attr(a)); return true })
	msg := r.Message
	if b.Len() > 0 {
		msg += " (" + strings.TrimPrefix(b.String(), ", ") + ")"
	}
	w.Complain("%s", msg)
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
