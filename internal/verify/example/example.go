// Package example starts a server for the examples of the public packages, so that each example
// can run and still focus on a single thing.
package example

import (
	"context"
	"log"
	"os"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/natslock/locks/natslock"
)

// Connect starts a server and connects to it. A real service calls nats.Connect with its
// server's address instead.
func Connect() (nc *nats.Conn, stop func()) {
	dir, err := os.MkdirTemp("", "natslock-example-")
	if err != nil {
		log.Fatal(err)
	}
	s, err := server.NewServer(&server.Options{DontListen: true, JetStream: true, StoreDir: dir, NoLog: true, NoSigs: true})
	if err != nil {
		log.Fatal(err)
	}
	s.Start()
	if nc, err = nats.Connect("", nats.InProcessServer(s)); err != nil {
		log.Fatal(err)
	}
	return nc, func() {
		nc.Close()
		s.Shutdown()
		s.WaitForShutdown()
		os.RemoveAll(dir)
	}
}

// Client calls natslock.New on a connection from [Connect].
func Client(opts ...natslock.Option) (locks *natslock.Client, done func()) {
	ctx := context.Background()
	nc, stop := Connect()
	locks, err := natslock.New(ctx, nc, opts...)
	if err != nil {
		log.Fatal(err)
	}
	return locks, func() {
		_ = locks.Close(ctx)
		stop()
	}
}
