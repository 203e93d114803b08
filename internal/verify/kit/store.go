package kit

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
)

// Lagging is a store whose replicas lag behind all writes. A read finds nothing unless it
// names the revision that its answer must contain. After Answers such reads, the replicas
// catch up.
type Lagging struct {
	kvstore.KV
	Answers int
}

func (l *Lagging) behind(min uint64) bool {
	if min > 0 || l.Answers == 0 {
		return false
	}
	l.Answers--
	return true
}

func (l *Lagging) Get(ctx context.Context, key string, min uint64) (kvstore.Record, error) {
	if l.behind(min) {
		return kvstore.Record{}, kvstore.ErrNotFound
	}
	return l.KV.Get(ctx, key, min)
}

func (l *Lagging) List(ctx context.Context, pattern string, min uint64, opts ...kvstore.ListOption) (kvstore.Listing, error) {
	if l.behind(min) {
		return kvstore.Listing{}, nil
	}
	return l.KV.List(ctx, pattern, min, opts...)
}

// Deaf makes a client lose all notifications.
func Deaf(f *faults.Store) { f.DropEvents(func(kvstore.Event) bool { return true }) }

// Refusal returns the error that the store returns when the server refuses a write.
func Refusal(w kvstore.Write, code jetstream.ErrorCode, text string) error {
	return fmt.Errorf("%w: write of %q: %w", kvstore.ErrUnavailable, w.Key,
		&jetstream.APIError{Code: 503, ErrorCode: code, Description: text})
}

// OnRenewal decides the fate of a client's renewals, counted from 1. All other writes pass.
func OnRenewal(f *faults.Store, fate func(n int) faults.Fate) {
	n := 0
	f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
		if Stage(w) == "lock renew" {
			n++
			return fate(n)
		}
		return faults.Pass
	})
}
