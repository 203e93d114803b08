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
	"github.com/natslock/locks/internal/tool"
	"github.com/natslock/locks/kvstore"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

const (
	// again is the time between two tries to watch, after the bucket has gone or a read has
	// failed.
	again = time.Second
	// relist is how often the locks are read without a gap.
	relist = 5 * time.Minute
	// listTime bounds a read of all locks.
	listTime = time.Minute
)

// follower keeps the state that of the bucket, over outages of the server and of the
// bucket.
type follower struct {
	c     *cli
	log   *slog.Logger
	state *state

	nc      *nats.Conn
	js      jetstream.JetStream
	url     string     // without credentials
	refused chan error // the refusal of a subscription

	hub *page.Hub // nil: there is no page

	mu      sync.Mutex
	locks   *natslock.Client // of the watch under way, or nil
	why     error            // nothing is followed; nil while the state is current
	restart func(error)      // ends the watch under way, which begins again
}

// connect connects to the server. The caller closes the connection. Errors name the server
// and what to do.
func (f *follower) connect() error {
	nc, url, settings, err := f.c.Dial(
		nats.Name("natslock-exporter"),
		nats.Timeout(f.c.Timeout),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(500*time.Millisecond),
		nats.ReconnectJitter(250*time.Millisecond, 500*time.Millisecond),
		nats.PingInterval(10*time.Second),
		nats.DisconnectErrHandler(f.disconnected),
		nats.ErrorHandler(f.failed),
	)
	if err != nil {
		return f.c.ConnectError(url, err, "name it with --server, NATS_URL or --context")
	}
	f.nc, f.url = nc, url
	f.js, err = f.c.JetStream(nc, settings)
	return err
}

// disconnected is called by the connection.
func (f *follower) disconnected(nc *nats.Conn, err error) {
	f.state.missed()
	if nc.IsClosed() { // by this process
		return
	}
	f.lost(fmt.Errorf("lost the connection to %s: %w", serversOf(nc), cmp.Or(err, natslock.ErrUnavailable)))
}

// serversOf are the servers of a connection, without credentials.
func serversOf(nc *nats.Conn) string {
	return tool.WithoutCredentials(strings.Join(nc.Opts.Servers, ","))
}

// failed is called by the connection for errors that no call returns.
func (f *follower) failed(nc *nats.Conn, _ *nats.Subscription, err error) {
	switch {
	case tool.RefusedNotifications(nc, err):
		select {
		case f.refused <- err:
		default:
		}
	case errors.Is(err, nats.ErrSlowConsumer): // it has dropped notifications
		f.mu.Lock()
		restart := f.restart
		f.mu.Unlock()
		restart(fmt.Errorf("%w: events came faster than this process reads them: %w", natslock.ErrUnavailable, err))
	case errors.Is(err, nats.ErrPermissionViolation):
		// A request that the library can do without, or that has an error of its own.
		f.log.Debug("refused", "error", err)
	default:
		f.log.Warn("connection", "server", serversOf(nc), "error", err)
	}
}

// run follows the bucket until ctx ends, and returns nil then. It returns an error that no
// waiting cures: without permission, or without a bucket at the start.
func (f *follower) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var refusals sync.WaitGroup
	defer refusals.Wait()
	defer cancel(nil)
	refusals.Go(func() {
		select {
		case err := <-f.refused:
			cancel(tool.Exitf(tool.ExitPermission, "this user may not watch the locks %s in bucket %s at %s: %w; %s", tool.Plain(f.c.Names), tool.Plain(f.c.Bucket), f.url, err, needs))
		case <-ctx.Done():
		}
	})
	for begun := false; ; {
		err := f.watch(ctx, &begun)
		if ctx.Err() != nil {
			if coded, ok := errors.AsType[*tool.Error](context.Cause(ctx)); ok {
				return coded
			}
			return nil
		}
		code := tool.CodeOf(err)
		gone := errors.Is(err, kvstore.ErrNotFound) || errors.Is(err, kvstore.ErrRemade)
		if f.nc.IsClosed() || !begun || code != tool.ExitUnavailable && !gone {
			return f.explain(err)
		}
		f.state.missed()
		f.lost(err)
		select {
		case <-time.After(again):
		case <-ctx.Done():
		}
	}
}

// needs says where an operator finds the permissions.
const needs = "\"lockctl perms --role observer\" prints what a user needs"

// explain adds what to do about an error that ends the exporter.
func (f *follower) explain(err error) error {
	switch code := tool.CodeOf(err); {
	case errors.Is(err, kvstore.ErrNotFound):
		return tool.Exitf(tool.ExitConfig, "there is no bucket %s at %s: %w; check --bucket, --js-domain and --context", tool.Plain(f.c.Bucket), f.url, err)
	case code == tool.ExitPermission:
		return tool.Exitf(code, "this user may not read the locks %s in bucket %s at %s: %w; %s", tool.Plain(f.c.Names), tool.Plain(f.c.Bucket), f.url, err, needs)
	case errors.Is(err, nats.ErrNoResponders):
		return tool.Exitf(tool.ExitUnavailable, "no JetStream at %s: %w; name the --js-domain it is in", f.url, err)
	default:
		return tool.Exitf(code, "cannot follow the bucket %s at %s: %w", tool.Plain(f.c.Bucket), f.url, err)
	}
}

// lost notes why nothing is followed, and logs it when that changes.
func (f *follower) lost(why error) {
	f.mu.Lock()
	changed := f.why == nil || f.why.Error() != why.Error()
	f.why = why
	f.mu.Unlock()
	if changed {
		f.log.Warn("not following the bucket, trying again", "bucket", f.c.Bucket, "error", why)
	}
}

// healthy returns nil while the bucket is followed, and otherwise the reason.
func (f *follower) healthy() error {
	if f.state.watching() {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return cmp.Or(f.why, errors.New("reading the locks"))
}

// watch opens the bucket and follows it until that fails or ctx ends. It sets begun when the
// locks were read.
func (f *follower) watch(ctx context.Context, begun *bool) error {
	opening, cancel := context.WithTimeout(ctx, f.c.Timeout)
	defer cancel()
	locks, err := natslock.New(opening, f.nc, natslock.WithBucket(f.c.Bucket), natslock.WithJetStream(f.js),
		natslock.WithCreate(false), natslock.WithLogger(f.log))
	if err != nil {
		return err
	}
	defer locks.Close(context.WithoutCancel(ctx)) // it holds no locks
	ctx, end := context.WithCancelCause(ctx)
	f.begin(locks, end)
	defer f.begin(nil, end)
	marks := make(chan struct{}, 1)
	var lists sync.WaitGroup
	lists.Go(func() {
		if err := f.lists(ctx, locks, marks, begun); err != nil {
			end(err)
		}
	})
	defer lists.Wait()
	defer end(nil)
	for ev, err := range admin.New(locks).Watch(ctx, f.c.Names) {
		switch {
		case err != nil:
			return err
		case ev.Type != admin.EventWatching:
			f.state.apply(ev)
			if f.hub != nil {
				f.hub.Event(ev)
			}
		default:
			f.state.clock(ev.Time)
			select {
			case marks <- struct{}{}:
			default: // the list to come is late enough
			}
		}
	}
	return context.Cause(ctx)
}

// begin notes the client of a watch, and how to end the watch.
func (f *follower) begin(locks *natslock.Client, end func(error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.locks, f.restart = locks, end
}

// lists reads all locks at each mark, since only a list shows what happened before it. It
// also reads them now and then: a notification can be lost. It returns nil when ctx ends.
func (f *follower) lists(ctx context.Context, locks *natslock.Client, marks <-chan struct{}, begun *bool) error {
	tick := time.NewTicker(relist)
	defer tick.Stop()
	for {
		select {
		case <-marks:
		case <-tick.C:
			if !f.state.watching() {
				continue // a mark is to come
			}
		case <-ctx.Done():
			return nil
		}
		if err := f.list(ctx, locks); err != nil {
			return err
		}
		*begun = true
	}
}

// list reads all locks.
func (f *follower) list(ctx context.Context, locks *natslock.Client) error {
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	followed, gap := f.state.watching(), f.state.listing()
	begun := time.Now()
	var infos []admin.Info
	for info, err := range admin.New(locks).List(ctx, f.c.Names) {
		if err != nil {
			return err
		}
		infos = append(infos, info)
	}
	f.state.listed(infos, gap)
	f.mu.Lock()
	f.why = nil
	f.mu.Unlock()
	if !followed {
		f.log.Info("following the bucket", "bucket", f.c.Bucket, "server", f.url, "locks", len(infos), "took", time.Since(begun).Round(time.Millisecond))
	}
	return nil
}
