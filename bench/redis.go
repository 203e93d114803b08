package main

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	rsredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

var redsyncSide = Side{
	Name: "redsync", Server: "redis",
	Setup: "on go-redis, expiry 15 s, its default delay of 50 to 250 ms between tries, unlimited tries; three independent servers where there are three; no renewal",
	Open: func(_ context.Context, s *Servers) (*Client, error) {
		var clients []*redis.Client
		var pools []rsredis.Pool
		for _, addr := range s.addrs["redis"] {
			r := redis.NewClient(&redis.Options{Addr: addr})
			clients = append(clients, r)
			pools = append(pools, goredis.NewPool(r))
		}
		rs := redsync.New(pools...)
		return &Client{
			Lock: func(ctx context.Context, name string) (Unlock, uint64, error) {
				m := rs.NewMutex(name, redsync.WithExpiry(leaseTTL), redsync.WithTries(math.MaxInt32))
				return func(ctx context.Context) error {
					_, err := m.UnlockContext(ctx)
					return err
				}, 0, m.LockContext(ctx)
			},
			Close: func() {
				for _, r := range clients {
					_ = r.Close()
				}
			},
		}, nil
	},
}

var redislockSide = Side{
	Name: "redislock", Server: "redis",
	Setup:         "on go-redis, TTL 15 s, `LinearBackoff(100 * time.Millisecond)` as in its README; no renewal",
	NotReplicated: "it locks on one server",
	Open: func(_ context.Context, s *Servers) (*Client, error) {
		r := redis.NewClient(&redis.Options{Addr: s.addrs["redis"][0]})
		locks := redislock.New(r)
		return &Client{
			Lock: func(ctx context.Context, name string) (Unlock, uint64, error) {
				for {
					l, err := locks.Obtain(ctx, name, leaseTTL, &redislock.Options{RetryStrategy: redislock.LinearBackoff(100 * time.Millisecond)})
					if err == nil {
						return l.Release, 0, nil
					}
					if ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) { // Obtain gives up after one TTL
						return nil, 0, err
					}
				}
			},
			Close: func() { _ = r.Close() },
		}, nil
	},
}

var rueidislockSide = Side{
	Name: "rueidislock", Server: "redis",
	Setup:         "`KeyMajority: 1`, `NoLoopTracking: true` as in its README for one server; validity 15 s, renewed",
	NotReplicated: "its several keys are for a Redis Cluster, which is not started here",
	Open: func(_ context.Context, s *Servers) (*Client, error) {
		l, err := rueidislock.NewLocker(rueidislock.LockerOption{
			ClientOption:   rueidis.ClientOption{InitAddress: s.addrs["redis"]},
			KeyMajority:    1,
			NoLoopTracking: true,
			KeyValidity:    leaseTTL,
		})
		if err != nil {
			return nil, err
		}
		return &Client{
			Lock: func(ctx context.Context, name string) (Unlock, uint64, error) {
				_, release, err := l.WithContext(ctx, name)
				return func(context.Context) error {
					release()
					return nil
				}, 0, err
			},
			Close: l.Close,
		}, nil
	},
}
