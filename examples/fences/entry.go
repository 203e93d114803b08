package fences

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/fence"
)

// Entry is a value in a key-value bucket, with the token of its writer.
type Entry struct {
	Token uint64 `json:"token"`
	Value string `json:"value"`
}

// PutEntry writes a value unless the existing entry has a higher token, in which case the
// error matches [fence.ErrSuperseded]. The write succeeds only at the revision that
// PutEntry read, so the same approach works on any store with compare-and-set.
func PutEntry(ctx context.Context, kv jetstream.KeyValue, token uint64, key, value string) error {
	data, err := json.Marshal(Entry{token, value})
	if err != nil {
		return err
	}
	for {
		var there Entry
		var revision uint64
		got, err := kv.Get(ctx, key)
		switch {
		case err == nil:
			revision = got.Revision()
			if err := json.Unmarshal(got.Value(), &there); err != nil {
				return fmt.Errorf("put %q: %w", key, err)
			}
		case !errors.Is(err, jetstream.ErrKeyNotFound):
			return fmt.Errorf("put %q: %w", key, err)
		}
		if err := fence.Check(there.Token, token); err != nil {
			return fmt.Errorf("put %q: %w", key, err)
		}
		if revision == 0 {
			_, err = kv.Create(ctx, key, data)
		} else {
			_, err = kv.Update(ctx, key, data, revision)
		}
		if !errors.Is(err, jetstream.ErrKeyExists) { // otherwise another write came first
			return err
		}
	}
}
