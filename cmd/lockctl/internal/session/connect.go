// Package session connects to the bucket of locks, using the flags that every command has. Its
// Feed follows the locks across outages, and its Server is a NATS server that runs in this
// process.
package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/user"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/cmd/lockctl/internal/console"
	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/tool"
	"github.com/natslock/locks/natslock"
)

// Session is a connection to a NATS server and, once the bucket is open, a client of the
// bucket.
type Session struct {
	*natslock.Client
	*console.Console
	NC  *nats.Conn
	JS  jetstream.JetStream // the bucket's JetStream
	URL string              // without credentials
	// unnotified receives the first refusal of a subscription to notifications.
	unnotified chan error
}

// Open connects to the server and opens the bucket. The caller must end the session. Errors
// name the server and a remedy.
func (g *Globals) Open(opts ...natslock.Option) (_ *Session, err error) {
	s, err := g.Connect()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.End()
		}
	}()
	return s, s.Open(g, opts...)
}

// Open opens the bucket. It creates a missing bucket only if the user asks for it. Otherwise,
// if one of two operators mistyped the bucket's name or forgot the domain, both could get the
// same lock.
func (s *Session) Open(g *Globals, opts ...natslock.Option) error {
	ctx, cancel := g.Bounded()
	defer cancel()
	create := g.MayCreate //safety:creation-asked
	opts = append([]natslock.Option{natslock.WithBucket(g.Bucket), natslock.WithJetStream(s.JS), natslock.WithLogger(slog.New(warner{Console: s.Console})),
		natslock.WithCreate(create)}, opts...)
	err := s.Replicated(func(replicas int) (err error) {
		made := natslock.WithReplicas(replicas)
		s.Client, err = natslock.New(ctx, s.NC, append([]natslock.Option{made}, opts...)...)
		return err
	})
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return s.NoJetStream()
	case IsAPIError(err, errCodeNoPeers):
		return s.tooFewServers(err)
	case errors.Is(err, kvstore.ErrNotFound):
		return &tool.Error{Code: tool.ExitConfig, Err: &missingBucket{fmt.Sprintf("there is no bucket %s at %s: check --bucket, --js-domain and --context, or create the bucket with \"lockctl init\" or \"lockctl run --create\"",
			show.Plain(g.Bucket), s.Where()), err}}
	case errors.Is(err, natslock.ErrPermission) && tool.RefusedAnswers(s.NC, s.NC.LastError()):
		return tool.Exitf(tool.ExitPermission, "%w; this user needs a prefix for answers that it may subscribe to: name it with --inbox-prefix", err)
	case errors.Is(err, natslock.ErrPermission):
		return tool.Exitf(tool.ExitPermission, "%w; \"lockctl perms\" prints what a user of locks needs", err)
	}
	return err
}

func (s *Session) tooFewServers(err error) error {
	return tool.Exitf(tool.ExitConfig, "%w; wait until more servers are up, or keep the bucket on one: \"lockctl init --replicas 1\"", err)
}

// missingBucket is the error for a missing bucket. Its text gives a remedy instead of the
// library's message.
type missingBucket struct {
	text string
	err  error
}

func (e *missingBucket) Error() string { return e.text }
func (e *missingBucket) Unwrap() error { return e.err }

// Replicated calls open with the default number of replicas, which is three on a cluster. Only
// the servers of another domain, or behind an API prefix, know whether they form a cluster. If
// they do not, they refuse three replicas, and Replicated calls open again with one.
func (s *Session) Replicated(open func(replicas int) error) error {
	replicas := s.Replicas()
	err := open(replicas)
	if replicas > 1 && IsAPIError(err, errCodeNoCluster) {
		return open(1)
	}
	return err
}

// Replicas returns the default number of replicas for a new bucket.
func (s *Session) Replicas() int {
	if o := s.JS.Options(); o.Domain == "" && o.APIPrefix == "" && s.NC.ConnectedClusterName() == "" {
		return 1
	}
	// Three replicas let locks survive the loss of a server.
	return 3 //safety:replicas
}

// Server error codes that nats.go does not define.
const (
	errCodeNoPeers   = 10005 // "no suitable peers for placement"
	errCodeNoCluster = 10074 // "replicas > 1 not supported in non-clustered mode"
)

// IsAPIError reports whether err is a JetStream API error with the given code.
func IsAPIError(err error, code jetstream.ErrorCode) bool {
	apiErr, ok := errors.AsType[*jetstream.APIError](err)
	return ok && apiErr.ErrorCode == code
}

// NoJetStream returns the error for a server that does not respond to JetStream requests.
func (s *Session) NoJetStream() error {
	if o := s.JS.Options(); o.Domain != "" || o.APIPrefix != "" {
		return tool.Exitf(tool.ExitUnavailable, "no JetStream response at %s: check --js-domain and --js-api-prefix, including those in the context; what another account does not export is available only to that account's users", s.Where())
	}
	return tool.Exitf(tool.ExitUnavailable, "no JetStream at %s; enable it there, as \"nats-server -js\" does, or name its domain with --js-domain", s.URL)
}

// Bounded returns a context for a single request, with the user's timeout.
func (g *Globals) Bounded() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), g.Timeout)
}

// Connect connects to the server without opening the bucket. If it fails, it returns an error
// together with an ended session, whose URL is the one that was tried.
func (g *Globals) Connect() (_ *Session, err error) {
	s := &Session{Console: g.Console, unnotified: make(chan error, 1)}
	defer func() {
		if err != nil {
			s.End()
		}
	}()
	opts := []nats.Option{
		nats.Name("lockctl"),
		nats.Timeout(g.Timeout),
		// A lease lasts only seconds, so reconnect quickly after an outage.
		nats.MaxReconnects(-1),
		nats.IgnoreAuthErrorAbort(),
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
			case doneWithout(err, g.Bucket):
			case errors.Is(err, nats.ErrPermissionViolation):
				g.Refused.Add(err)
			default:
				g.Complain("%v", err)
			}
		}),
	}
	nc, url, settings, err := g.Dial(opts...)
	s.URL = url
	if err != nil {
		return s, g.ConnectError(url, err, "name another one with --server, NATS_URL or --context, or start one with \"lockctl server\"")
	}
	s.NC = nc
	s.JS, err = g.JetStream(nc, settings)
	return s, err
}

// doneWithout reports whether err is the refusal of a request that the library can do without
// (see admin.Access.OwnOnly), or that it sends only for a new bucket.
func doneWithout(err error, bucket string) bool {
	text := err.Error()
	return errors.Is(err, nats.ErrPermissionViolation) &&
		(strings.Contains(text, ".STREAM.MSG.GET.") || strings.Contains(text, ".DIRECT.GET.") && !strings.Contains(text, "$KV.") ||
			strings.Contains(text, "$KV."+bucket+`.probe"`))
}

// End closes the session without releasing any locks. Those still held last until their TTL
// ends.
func (s *Session) End() {
	if s.Client != nil {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		_ = s.Close(ended)
	}
	if s.NC != nil {
		s.NC.Close()
	}
}

// warner is a slog handler that prints the library's log in lockctl's format: its warnings, and
// a message when it has created a bucket.
type warner struct {
	*console.Console
	attrs string
}

func (w warner) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelInfo }

func (w warner) Handle(_ context.Context, r slog.Record) error {
	if strings.HasPrefix(r.Message, "a held lock was lost") { // the command reports that itself
		return nil
	}
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
	v := a.Value.String()
	if _, said := a.Value.Any().(error); v != "" && !said { // errors already quote foreign text
		v = show.Plain(v)
	}
	if v != "" {
		return fmt.Sprintf(", %s %s", a.Key, v)
	}
	return ""
}

// Operator identifies the user who breaks a lock, rather than the process.
func Operator() string {
	name := "somebody"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	host, _ := os.Hostname()
	return name + "@" + host
}
