package natslock

import (
	"context"

	"github.com/natslock/locks/internal/bridge"
	"github.com/natslock/locks/kvstore"
)

// Other packages of this module need these functions, and users do not.
func init() {
	bridge.Acquire = func(ctx context.Context, c *Client, kind Kind, mode Mode, wait bool, name string, opts []LockOption) (*Lock, error) {
		return c.acquire(ctx, kind, mode, wait, name, opts)
	}
	bridge.Drop = func(l *Lock) {
		l.cleanup.Stop()
		l.holding().Abandon()
	}
	bridge.WrapStore = func(wrap func(kvstore.KV) kvstore.KV) Option {
		return func(c *config) error {
			if wrap == nil {
				return invalid("WrapStore", "nil")
			}
			c.wrap = wrap
			return nil
		}
	}
}
