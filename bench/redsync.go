package main

import (
	"context"
	"math"

	"github.com/go-redsync/redsync/v4"
	rsredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

var redsyncSide = Side{
	Name: "redsync", Server: "redis",
	Setup: "on go-redis, expiry 15 s, its default delay of 50 to 250 ms between tries, tries without end; three independent servers where there are three; no renewal",
	Open: func(ctx context.Context, s *Servers) (Client, error) {
		c := &redsyncClient{}
		var pools []rsredis.Pool
		for _, addr := range s.Redis {
			r := redis.NewClient(&redis.Options{Addr: addr})
			c.clients = append(c.clients, r)
			pools = append(pools, goredis.NewPool(r))
		}
		c.rs = redsync.New(pools...)
		return c, nil
	},
}

type redsyncClient struct {
	clients []*redis.Client
	rs      *redsync.Redsync
}

func (c *redsyncClient) Lock(ctx context.Context, name string) (func(context.Context) error, error) {
	m := c.rs.NewMutex(name, redsync.WithExpiry(leaseTTL), redsync.WithTries(math.MaxInt32))
	if err := m.LockContext(ctx); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		_, err := m.UnlockContext(ctx)
		return err
	}, nil
}

func (c *redsyncClient) Close() {
	for _, r := range c.clients {
		_ = r.Close()
	}
}
