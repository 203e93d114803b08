package natslock

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/natslock/locks/internal/admin"
	"github.com/natslock/locks/internal/bridge"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
)

// Other packages of this module need these functions, and users do not.
func init() {
	bridge.Acquire = func(ctx context.Context, c *Client, kind record.Kind, mode record.Mode, wait bool, name string, opts []LockOption) (*Lock, error) {
		return c.acquire(ctx, kind, mode, wait, name, opts)
	}
	bridge.Patient = func() LockOption {
		return func(c *lockConfig) error {
			c.req.Patient = true
			return nil
		}
	}
	bridge.Purpose = func(p string) LockOption {
		return func(c *lockConfig) error {
			c.req.Purpose = record.PurposeOf(p)
			return nil
		}
	}
	bridge.Logger = func(c *Client) *slog.Logger { return c.session.Logger }
	bridge.ConnectionClosed = func(err error) bool { return errors.Is(err, kvstore.ErrConnectionClosed) }
	bridge.Public, bridge.HolderOf = public, holderOf
	bridge.Observe = func(fn func(context.Context, session.Event)) Option {
		return func(c *config) error {
			if fn == nil {
				return invalid("WithObserver", "nil")
			}
			c.session.Observe = func(ctx context.Context, ev session.Event) {
				ev.Cause = public(ev.Cause)
				fn(ctx, ev)
			}
			return nil
		}
	}
	bridge.Permits = func(n int) LockOption {
		return func(c *lockConfig) error {
			c.req.Permits = n
			return nil
		}
	}
	bridge.Slot = func(l *Lock) (n int, ok bool) {
		held, ok := l.holding().(interface{ Key() string })
		if !ok {
			return 0, false
		}
		k, ok := record.ParseKey(held.Key())
		return k.Slot, ok && k.Prefix == record.SlotPrefix
	}
	bridge.Leave = func(l *Lock) (key string, err error) {
		if held, ok := l.holding().(interface{ Key() string }); ok {
			key = held.Key()
		}
		return key, l.retire()
	}
	bridge.Admin = func(ctx context.Context, c *Client) (*admin.Admin, error) {
		if err := c.readyFor(ctx); err != nil {
			return nil, err
		}
		return c.admin, nil
	}
	bridge.Process = func(pid int) Option {
		return func(c *config) error {
			c.pid = pid
			return nil
		}
	}
	bridge.Drop = func(l *Lock) {
		l.cleanup.Stop()
		l.holding().Abandon()
	}
	bridge.Left = func(l *Lock) time.Duration { return l.holding().Left() }
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
	bridge.Judge = func(c *Client, name string) []func(func(string) kvstore.Record) { return c.session.Judge(name) }
	bridge.Waiting = func(c *Client, keys record.Keys) int { return c.locks.WaitingFor(keys) }
}
