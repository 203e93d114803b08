package natslock

import (
	"context"
	"iter"
	"time"

	"github.com/natslock/locks/internal/admin"
	"github.com/natslock/locks/internal/bridge"
	"github.com/natslock/locks/kvstore"
)

// Other packages of this module need these functions, and users do not.
func init() {
	bridge.Acquire = func(ctx context.Context, c *Client, kind Kind, mode Mode, wait bool, name string, opts []LockOption) (*Lock, error) {
		return c.acquire(ctx, kind, mode, wait, name, opts)
	}
	bridge.Patient = func() LockOption {
		return func(c *lockConfig) error {
			c.req.Patient = true
			return nil
		}
	}
	bridge.Holder = func(ctx context.Context, c *Client, name string) (*Holder, uint64, error) {
		if err := c.ready(); err != nil {
			return nil, 0, err
		}
		e, revision, err := c.admin.Holder(ctx, name)
		return holderOf(e), revision, public(err)
	}
	bridge.WatchHolder = func(ctx context.Context, c *Client, name string) iter.Seq2[Event, error] {
		return c.watch(ctx, name, (*admin.Admin).WatchHolder)
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
	bridge.WallClock = func(now func() time.Time) Option {
		return func(c *config) error {
			c.now = now
			return nil
		}
	}
}
