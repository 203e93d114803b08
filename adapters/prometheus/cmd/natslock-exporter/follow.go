package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/adapters/prometheus/cmd/natslock-exporter/internal/page"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/mirror"
	"github.com/natslock/locks/internal/plain"
	"github.com/natslock/locks/internal/tool"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

// follower connects to the server, and passes the mirror's events to the metrics and the page.
type follower struct {
	c      *cli
	log    *slog.Logger
	mirror *mirror.Mirror
	state  *state

	nc      *nats.Conn
	js      jetstream.JetStream
	url     string     // without credentials
	refused chan error // receives an error if the server refuses a subscription

	hub *page.Hub // nil if there is no page

	was   mirror.Condition // as of the last state change
	begun bool             // whether the mirror has ever been live
}

// newFollower returns a connected follower, whose connection the caller must close. Its errors name the server and
// the remedy.
func newFollower(c *cli, log *slog.Logger) (*follower, error) {
	nc, url, settings, err := c.Dial(
		nats.Name("natslock-exporter"),
		nats.Timeout(c.Timeout),
		nats.MaxReconnects(-1),
		nats.IgnoreAuthErrorAbort(), // a password may be wrong only temporarily
		nats.ReconnectWait(500*time.Millisecond),
		nats.ReconnectJitter(250*time.Millisecond, 500*time.Millisecond),
		nats.PingInterval(10*time.Second),
	)
	if err != nil {
		return nil, c.ConnectError(url, err, "set it with --server, NATS_URL or --context")
	}
	f := &follower{c: c, log: log, nc: nc, url: url, refused: make(chan error, 1)}
	f.mirror = mirror.New(mirror.Config{
		Bucket: c.Bucket, Pattern: c.Names, Open: f.open, Ask: f.ask, Connection: tool.ConnectionOf(nc),
		Event: f.event, Turned: f.turned,
		Changed: func(id mirror.ID) {
			if f.hub != nil {
				f.hub.Changed(id)
			}
		},
	})
	f.state = newState(labeler(c.Pattern), f.mirror)
	nc.SetDisconnectErrHandler(f.disconnected)
	nc.SetErrorHandler(f.failed)
	if f.js, err = c.JetStream(nc, settings); err != nil {
		nc.Close()
		return nil, err
	}
	return f, nil
}

// disconnected handles the loss of the connection.
func (f *follower) disconnected(nc *nats.Conn, err error) {
	if !nc.IsClosed() { // otherwise this process closed it
		f.mirror.Doubt(fmt.Errorf("lost the connection to %s: %w", serversOf(nc), cmp.Or(err, natslock.ErrUnavailable)))
	}
}

// serversOf returns the servers of a connection, without credentials.
func serversOf(nc *nats.Conn) string {
	return tool.WithoutCredentials(strings.Join(nc.Opts.Servers, ","))
}

// failed handles an asynchronous error of the connection.
func (f *follower) failed(nc *nats.Conn, _ *nats.Subscription, err error) {
	switch {
	case tool.RefusedNotifications(nc, err):
		select {
		case f.refused <- err:
		default:
		}
	case errors.Is(err, nats.ErrPermissionViolation):
		// Either the library can do without this request, or the request itself returns an error.
		f.log.Debug("request denied", "error", err)
	default:
		f.log.Warn("connection problem", "server", serversOf(nc), "error", err)
	}
}

func (f *follower) open(ctx context.Context) (*natslock.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, f.c.Timeout)
	defer cancel()
	return natslock.New(ctx, f.nc, natslock.WithBucket(f.c.Bucket), natslock.WithJetStream(f.js),
		natslock.WithCreate(false), natslock.WithLogger(f.log))
}

func (f *follower) ask(ctx context.Context) (*kvstore.Info, error) {
	return kvstore.Inspect(ctx, f.js, kvstore.Config{Bucket: f.c.Bucket})
}

func (f *follower) event(ev admin.Event) {
	f.state.event(ev)
	if f.hub != nil && ev.Type != admin.EventWatching {
		f.hub.Event(ev)
	}
}

func (f *follower) turned(to mirror.State) {
	f.state.turned(to)
	was, begun := f.was, f.begun
	f.was, f.begun = to.Condition, begun || to.Condition == mirror.Live
	switch {
	case to.Condition != mirror.Live && begun:
		f.log.Warn("not following the bucket; retrying", "bucket", f.c.Bucket, "state", to.Condition.String(), "error", to.Why)
	case to.Condition == mirror.Live && was == mirror.Live:
		f.log.Info("the replicas of the bucket changed", "bucket", f.c.Bucket, "replicas", to.Replicas, "current", to.Current)
	case to.Condition == mirror.Live:
		f.log.Info("following the bucket", "bucket", f.c.Bucket, "server", f.url, "replicas", to.Replicas, "current", to.Current)
	}
}

// run follows the bucket until ctx ends, and then returns nil. It returns an error if waiting would not help, which
// is the case if a permission is missing, or if the bucket does not exist at startup.
func (f *follower) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var refusals sync.WaitGroup
	defer refusals.Wait()
	defer cancel(nil)
	refusals.Go(func() {
		select {
		case err := <-f.refused:
			cancel(tool.Exitf(tool.ExitPermission, "no permission to watch the locks %s in bucket %s at %s: %w; %s", plain.Text(f.c.Names), plain.Text(f.c.Bucket), f.url, err, needs))
		case <-ctx.Done():
		}
	})
	err := f.mirror.Run(ctx)
	if coded, ok := errors.AsType[*tool.Error](context.Cause(ctx)); ok {
		return coded
	}
	if err != nil {
		return f.explain(err)
	}
	return nil
}

// needs tells the operator how to find out which permissions are needed.
const needs = "\"lockctl perms --role observer\" prints what a user needs"

// explain adds the remedy to the error that ends the exporter.
func (f *follower) explain(err error) error {
	switch code := tool.CodeOf(err); {
	case errors.Is(err, kvstore.ErrNotFound):
		return tool.Exitf(tool.ExitConfig, "there is no bucket %s at %s: %w; check --bucket, --js-domain and --context", plain.Text(f.c.Bucket), f.url, err)
	case code == tool.ExitPermission:
		return tool.Exitf(code, "no permission to read the locks %s in bucket %s at %s: %w; %s", plain.Text(f.c.Names), plain.Text(f.c.Bucket), f.url, err, needs)
	case errors.Is(err, nats.ErrNoResponders):
		return tool.Exitf(tool.ExitUnavailable, "no JetStream at %s: %w; set --js-domain to its domain", f.url, err)
	default:
		return tool.Exitf(code, "cannot follow the bucket %s at %s: %w", plain.Text(f.c.Bucket), f.url, err)
	}
}

// healthy returns nil while the mirror is live, and otherwise an error that says why it is not live, and since when.
func (f *follower) healthy() error {
	if st := f.mirror.State(); st.Condition != mirror.Live {
		return errors.New(st.String())
	}
	return nil
}
