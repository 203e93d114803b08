package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/tool"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

// Bucket returns the bucket's stream, even if it is unfit for locks.
func (s *Session) Bucket(g *Globals, cfg kvstore.Config) (*kvstore.Info, error) {
	ctx, cancel := g.Bounded()
	defer cancel()
	info, err := kvstore.Inspect(ctx, s.JS, cfg)
	if errors.Is(err, nats.ErrNoResponders) {
		err = s.NoJetStream()
	}
	return info, err
}

// StreamOf returns the name of a bucket's stream.
func StreamOf(cfg kvstore.Config) string {
	sc, _ := cfg.StreamConfig() // an invalid name has already been refused
	return sc.Name
}

// Where describes where the bucket is, including its domain or API prefix, because leaving
// those out leads to a different bucket.
func (s *Session) Where() string {
	place := s.URL
	if o := s.JS.Options(); o.Domain != "" {
		place += ", domain " + show.Plain(o.Domain)
	} else if o.APIPrefix != "" {
		place += ", API prefix " + show.Plain(o.APIPrefix)
	}
	return place
}

// Unrefused returns a context for a few requests. It is canceled if the server refuses one of
// them, because a refusal arrives as an error on the connection and the request itself gets no
// response.
func (s *Session) Unrefused(limit time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	s.NC.SetErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		if errors.Is(err, nats.ErrPermissionViolation) {
			cancel()
		} else {
			s.Complain("%v", err)
		}
	})
	return ctx, cancel
}

// NotDone explains why the server did not create or change the bucket.
func (s *Session) NotDone(err error) error {
	if err == nil {
		return nil
	}
	apiErr, _ := errors.AsType[*jetstream.APIError](err)
	denied := s.NC.LastError()
	switch {
	case errors.Is(err, natslock.ErrPermission):
		return err
	case errors.Is(err, context.Canceled) && errors.Is(denied, nats.ErrPermissionViolation):
		return tool.Exitf(tool.ExitPermission, "%w; \"lockctl perms --role admin\" prints what an administrator needs, with --history what the history needs too", denied)
	case errors.Is(err, nats.ErrNoResponders):
		return s.NoJetStream()
	case IsAPIError(err, errCodeNoCluster):
		return tool.Usagef("--replicas: %s is not in a cluster", s.URL)
	case IsAPIError(err, errCodeNoPeers):
		return s.tooFewServers(err)
	case apiErr != nil:
		return tool.Exitf(tool.ExitConfig, "the server refused: %s", cmp.Or(apiErr.Description, err.Error()))
	}
	return fmt.Errorf("%w: %w", natslock.ErrUnavailable, err)
}

// Find returns the locks of all kinds that are called name, except those that have neither
// holders nor waiters.
func (s *Session) Find(g *Globals, name string) ([]admin.Info, error) {
	ctx, cancel := g.Bounded()
	defer cancel()
	if err := s.Led(ctx, g); err != nil {
		return nil, err
	}
	var infos []admin.Info
	for _, kind := range []admin.Kind{admin.KindMutex, admin.KindRW, admin.KindSemaphore} {
		info, err := admin.New(s.Client).Inspect(ctx, kind, name)
		if err != nil {
			return nil, err
		}
		if !show.IsFree(info) {
			infos = append(infos, info)
		}
	}
	return infos, nil
}
