package main

import (
	"context"
	"errors"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"
)

var redislockSide = Side{
	Name: "redislock", Server: "redis",
	Setup: "on go-redis, TTL 15 s, `LinearBackoff(100 * time.Millisecond)` as in its README; no renewal",
	Unfit: func(c Class) string {
		if c.Replicas > 1 {
			return "it locks on one server"
		}
		return ""
	},
	Open: func(ctx context.Context, s *Servers) (Client, error) {
		r := redis.NewClient(&redis.Options{Addr: s.Redis[0]})
		return &redislockClient{r, redislock.New(r)}, nil
	},
}

type redislockClient struct {
	redis *redis.Client
	locks *redislock.Client
}

func (c *redislockClient) Lock(ctx context.Context, name string) (func(context.Context) error, error) {
	for {
		l, err := c.locks.Obtain(ctx, name, leaseTTL, &redislock.Options{RetryStrategy: redislock.LinearBackoff(100 * time.Millisecond)})
		switch {
		case err == nil:
			return l.Release, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case !errors.Is(err, context.DeadlineExceeded): // it gives up after a TTL
			return nil, err
		}
	}
}

func (c *redislockClient) Close() { _ = c.redis.Close() }
