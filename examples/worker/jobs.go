package main

import (
	"context"
	"log"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func consume(ctx context.Context, nc *nats.Conn) (jetstream.MessagesContext, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	_, err = js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: "JOBS", Subjects: []string{"jobs.*"}})
	if err != nil {
		return nil, err
	}
	c, err := js.CreateOrUpdateConsumer(ctx, "JOBS", jetstream.ConsumerConfig{Durable: "worker", AckWait: time.Minute})
	if err != nil {
		return nil, err
	}
	return c.Messages(jetstream.PullMaxMessages(1))
}

func work(ctx context.Context, job string) error {
	log.Printf("starting %s", job)
	select {
	case <-time.After(time.Second):
		log.Printf("finished %s", job)
		return nil
	case <-ctx.Done(): // the lock is lost
		return context.Cause(ctx)
	}
}
