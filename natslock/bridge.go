package natslock

import (
	"context"

	"github.com/natslock/locks/internal/bridge"
	"github.com/natslock/locks/internal/record"
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
	bridge.Open = func(kv kvstore.KV, opts []Option) (*Client, error) {
		cfg, err := configOf(opts)
		if err != nil {
			return nil, err
		}
		return cfg.client(kv), nil
	}
	bridge.Judge = func(c *Client, name string, change func(key string) kvstore.Record) { c.session.Judge(name, change) }
	bridge.Waiting = func(c *Client, keys record.Keys) int { return c.locks.WaitingFor(keys) }
}
