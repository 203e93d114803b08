package main

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// naivePoll is the interval at which the naive lock tries again.
const naivePoll = 50 * time.Millisecond

// naiveSide is the lock that people write by hand on top of a key-value bucket. It creates a
// key to lock, retries after a while if the key exists, and deletes the key to unlock. It does
// not renew, has no fencing token, and deletes the key without checking whose lock it is.
var naiveSide = Side{
	Name: "naive NATS", Server: "nats",
	Setup: "key-value `Create`, polled every 50 ms, and `Delete`; the bucket's TTL is 15 s; no renewal",
	Open: func(ctx context.Context, s *Servers) (*Client, error) {
		nc, js, err := connectJetStream(s)
		if err != nil {
			return nil, err
		}
		kv, err := js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{
			Bucket: "naive", TTL: leaseTTL, Storage: storage(s.Class), Replicas: s.Class.Replicas,
		})
		if err != nil {
			nc.Close()
			return nil, err
		}
		return &Client{Lock: naiveLock(kv), Sent: sentOn(nc), Close: nc.Close}, nil
	},
}

func naiveLock(kv jetstream.KeyValue) func(context.Context, string) (Unlock, uint64, error) {
	return func(ctx context.Context, name string) (Unlock, uint64, error) {
		for {
			_, err := kv.Create(ctx, name, []byte("me"))
			if err == nil {
				return func(ctx context.Context) error { return kv.Delete(ctx, name) }, 0, nil
			}
			if !errors.Is(err, jetstream.ErrKeyExists) && !inFlight(err) {
				return nil, 0, err
			}
			select {
			case <-time.After(naivePoll):
			case <-ctx.Done():
				return nil, 0, ctx.Err()
			}
		}
	}
}

// inFlight reports whether err is the error that a bucket with three replicas returns to racing
// clients. Without this check the lock would fail under any contention, as people who write it
// by hand find out in production.
func inFlight(err error) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && api.ErrorCode == 10164
}
