package fence

import (
	"context"

	"github.com/nats-io/nats.go"
)

// Forget lets f send writes again after it was superseded or lost, so that a test can see the
// server refuse each of them.
func Forget(f *Fence) { f.ended.Store(nil) }

// Unguarded publishes a batch without the fence's expectation, for comparison.
func Unguarded(ctx context.Context, f *Fence, messages ...*nats.Msg) error {
	out, _, _, err := f.batch(messages)
	if err != nil {
		return err
	}
	_, err = f.commit(ctx, out)
	return err
}
