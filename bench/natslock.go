package main

import (
	"context"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/kvstore"
	"github.com/natslock/locks/natslock"
)

var natslockSide = Side{
	Name: "natslock", Server: "nats",
	Setup: "`natslock.New` with its defaults: TTL 15 s, renewed, first in, first out",
	Open:  natslockWith(nil),
}

var exactSide = Side{
	Name: "natslock, no turn", Server: "nats", Only: []string{stepContention},
	Setup: "the same with `Tuning{Turn: -1}`: the goroutines of all clients get the lock in the order in which they asked",
	Open:  natslockWith([]natslock.Option{natslock.WithTuning(natslock.Tuning{Turn: -1})}),
}

// lingerSide lingers only briefly, so that locks left idle by one step cost nothing in the
// next.
var lingerSide = Side{
	Name: "natslock, Linger", Server: "nats", Only: []string{stepCycle, stepThroughput, stepContention},
	Setup: "natslock with `Linger(time.Second)`: the client keeps the unlocked lock for a second unless another client asks for it",
	Open:  natslockWith(nil, natslock.Linger(time.Second)),
}

// natslockWith returns a side's Open function. opts apply to the side's clients, and each
// applies to every lock.
func natslockWith(opts []natslock.Option, each ...natslock.LockOption) func(context.Context, *Servers) (*Client, error) {
	return func(ctx context.Context, s *Servers) (*Client, error) {
		nc, c, err := openNatslock(ctx, s, opts...)
		if err != nil {
			return nil, err
		}
		return &Client{
			Lock: func(ctx context.Context, name string) (Unlock, uint64, error) {
				l, err := c.Lock(ctx, name, each...)
				if err != nil {
					return nil, 0, err
				}
				return l.Unlock, l.Token(), nil
			},
			Sent:  sentOn(nc),
			Close: func() { closeNatslock(nc, c) },
		}, nil
	}
}

func openNatslock(ctx context.Context, s *Servers, opts ...natslock.Option) (*nats.Conn, *natslock.Client, error) {
	nc, err := connectNATS(s)
	if err != nil {
		return nil, nil, err
	}
	bucket := kvstore.Config{Replicas: s.Class.Replicas, Storage: storage(s.Class)}
	opts = append([]natslock.Option{natslock.WithBucketConfig(bucket), natslock.WithTTL(leaseTTL)}, opts...)
	c, err := natslock.New(ctx, nc, opts...)
	if err != nil {
		nc.Close()
		return nil, nil, err
	}
	return nc, c, nil
}

func closeNatslock(nc *nats.Conn, c *natslock.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_ = c.Close(ctx)
	nc.Close()
}

func storage(c Class) jetstream.StorageType {
	if c.Memory {
		return jetstream.MemoryStorage
	}
	return jetstream.FileStorage
}

// connectNATS connects to the first server, so that all sides on NATS use the same one.
func connectNATS(s *Servers) (*nats.Conn, error) {
	return nats.Connect(strings.Join(s.addrs["nats"], ","), nats.DontRandomize())
}

func connectJetStream(s *Servers) (*nats.Conn, jetstream.JetStream, error) {
	nc, err := connectNATS(s)
	if err != nil {
		return nil, nil, err
	}
	js, err := jetstream.New(nc)
	return nc, js, err
}

// sentOn returns the Sent function of a client that has nc to itself.
func sentOn(nc *nats.Conn) func() uint64 {
	return func() uint64 { return nc.Stats().OutMsgs }
}
