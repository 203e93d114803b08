package session

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/mirror"
	"github.com/natslock/locks/internal/plain"
	"github.com/natslock/locks/internal/tool"
	"github.com/natslock/locks/natslock"
)

// Ask returns a function that requests the bucket's state from its leader.
func (s *Session) Ask(g *Globals) func(context.Context) (*kvstore.Info, error) {
	return func(ctx context.Context) (*kvstore.Info, error) {
		return kvstore.Inspect(ctx, s.JS, kvstore.Config{Bucket: g.Bucket})
	}
}

// Led returns nil if the bucket has a leader that can reach a majority of the replicas.
// Otherwise no read can prove that a lock is free, because a leader that has just lost its
// majority still responds for a few seconds.
func (s *Session) Led(ctx context.Context, g *Globals) error {
	return mirror.Look(ctx, g.Bucket, s.Ask(g))
}

// Mirror returns a mirror of the bucket that uses the session's connection. Follow runs it.
func (s *Session) Mirror(g *Globals, cfg mirror.Config) *mirror.Mirror {
	cfg.Bucket, cfg.Ask, cfg.Connection = g.Bucket, s.Ask(g), tool.ConnectionOf(s.NC)
	cfg.Open = func(ctx context.Context) (*natslock.Client, error) {
		own := *s // a copy, because the mirror closes its client
		if err := own.Open(g, natslock.WithOwner(Operator())); err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(ctx, g.Timeout)
		defer cancel()
		if err := own.Led(ctx, g); tool.CodeOf(err) == tool.ExitUnavailable {
			_ = own.Close(ctx) // it holds no locks
			return nil, err
		}
		return own.Client, nil
	}
	m := mirror.New(cfg)
	s.NC.SetDisconnectErrHandler(func(*nats.Conn, error) {
		m.Doubt(fmt.Errorf("no connection to %s", s.URL))
	})
	return m
}

// Follow runs a mirror until ctx is done, and then returns nil. It returns an error if the
// first attempt fails, or later if it would be pointless to keep waiting.
func (s *Session) Follow(ctx context.Context, m *mirror.Mirror, pattern string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case err := <-s.unnotified:
			cancel(unnotified(pattern, err))
		case <-ctx.Done():
		}
	}()
	err := m.Run(ctx)
	if refused, ok := errors.AsType[*tool.Error](context.Cause(ctx)); ok {
		return refused
	}
	if err != nil && s.NC.IsClosed() {
		return fmt.Errorf("the connection to %s was closed: %w", s.URL, plain.Join(s.NC.LastError(), natslock.ErrUnavailable))
	}
	return err
}

// unnotified returns the error for a user who is not allowed to subscribe to lock
// notifications.
func unnotified(pattern string, err error) error {
	return tool.Exitf(tool.ExitPermission, "cannot watch locks %s: %w; watch the names that this user may see, such as \"orders.>\"", show.Plain(pattern), err)
}
