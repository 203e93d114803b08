package main

import (
	"context"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/kvstore"
	"github.com/natslock/locks/natslock"
)

var natslockSide = Side{
	Name: "natslock", Server: "nats",
	Setup: "`natslock.New` with its defaults: TTL 15 s, renewed, first in first out",
	Open: func(ctx context.Context, s *Servers) (Client, error) {
		return openNatslock(ctx, s)
	},
}

var exactSide = Side{
	Name: "natslock, no turn", Server: "nats", Only: []string{stepContention},
	Setup: "the same with `Tuning{Turn: -1}`: goroutines of all clients get in as they came",
	Open: func(ctx context.Context, s *Servers) (Client, error) {
		return openNatslock(ctx, s, natslock.WithTuning(natslock.Tuning{Turn: -1}))
	},
}

type natslockClient struct {
	nc *nats.Conn
	*natslock.Client
	opts []natslock.LockOption // of each lock
}

// bucketConfig is the bucket in a class.
func bucketConfig(c Class) kvstore.Config {
	return kvstore.Config{Replicas: c.Replicas, Storage: storage(c)}
}

func storage(c Class) jetstream.StorageType {
	if c.Memory {
		return jetstream.MemoryStorage
	}
	return jetstream.FileStorage
}

// connectNATS connects to the first server, so that all sides on NATS have the same way.
func connectNATS(s *Servers) (*nats.Conn, error) {
	return nats.Connect(strings.Join(s.NATS, ","), nats.DontRandomize())
}

func openNatslock(ctx context.Context, s *Servers, opts ...natslock.Option) (*natslockClient, error) {
	nc, err := connectNATS(s)
	if err != nil {
		return nil, err
	}
	opts = append([]natslock.Option{natslock.WithBucketConfig(bucketConfig(s.Class)), natslock.WithTTL(leaseTTL)}, opts...)
	c, err := natslock.New(ctx, nc, opts...)
	if err != nil {
		nc.Close()
		return nil, err
	}
	return &natslockClient{nc: nc, Client: c}, nil
}

func (c *natslockClient) Lock(ctx context.Context, name string) (func(context.Context) error, error) {
	unlock, _, err := c.LockFenced(ctx, name)
	return unlock, err
}

func (c *natslockClient) LockFenced(ctx context.Context, name string) (func(context.Context) error, uint64, error) {
	l, err := c.Client.Lock(ctx, name, c.opts...)
	if err != nil {
		return nil, 0, err
	}
	return l.Unlock, l.Token(), nil
}

func (c *natslockClient) Sent() uint64 { return c.nc.Stats().OutMsgs }

func (c *natslockClient) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_ = c.Client.Close(ctx)
	c.nc.Close()
}
