package topologies_test

import (
	"context"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/natslock"
)

// The documentation shows the following code.

func throughDomain(ctx context.Context, nc *nats.Conn) (*natslock.Client, error) {
	js, err := jetstream.NewWithDomain(nc, "hub")
	if err != nil {
		return nil, err
	}
	return natslock.New(ctx, nc, natslock.WithJetStream(js))
}

func throughImport(nc *nats.Conn) (jetstream.JetStream, error) {
	js, err := jetstream.NewWithAPIPrefix(nc, "locks.API")
	return js, err
}
