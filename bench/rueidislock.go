package main

import (
	"context"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

var rueidislockSide = Side{
	Name: "rueidislock", Server: "redis",
	Setup: "`KeyMajority: 1`, `NoLoopTracking: true` as its README has it for one server; validity 15 s, renewed",
	Unfit: func(c Class) string {
		if c.Replicas > 1 {
			return "its several keys are for a Redis Cluster, which is not started here"
		}
		return ""
	},
	Open: func(ctx context.Context, s *Servers) (Client, error) {
		l, err := rueidislock.NewLocker(rueidislock.LockerOption{
			ClientOption:   rueidis.ClientOption{InitAddress: s.Redis},
			KeyMajority:    1,
			NoLoopTracking: true,
			KeyValidity:    leaseTTL,
		})
		if err != nil {
			return nil, err
		}
		return rueidislockClient{l}, nil
	},
}

type rueidislockClient struct{ rueidislock.Locker }

func (c rueidislockClient) Lock(ctx context.Context, name string) (func(context.Context) error, error) {
	_, release, err := c.WithContext(ctx, name)
	if err != nil {
		return nil, err
	}
	return func(context.Context) error {
		release()
		return nil
	}, nil
}
