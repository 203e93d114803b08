package natslock

import (
	"context"
	"log/slog"
	"time"

	"github.com/natslock/locks/internal/admin"
	"github.com/natslock/locks/internal/bridge"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
)

func init() { bridge.SetNatslock[*Client, *Lock, Option, LockOption, *Holder](inside{}) }

// inside implements [bridge.Inside], which gives other packages of this module access that users
// do not have.
type inside struct{}

func (inside) Acquire(ctx context.Context, c *Client, kind record.Kind, mode record.Mode, wait bool, name string, opts []LockOption) (*Lock, error) {
	return c.acquire(ctx, kind, mode, wait, name, opts)
}

func (inside) Under(ctx context.Context, take func(context.Context, string, ...LockOption) (*Lock, error), name string,
	fn func(context.Context, *Lock) error, opts []LockOption,
) error {
	return under(ctx, take, name, fn, opts)
}

func (inside) Patient() LockOption {
	return func(c *lockConfig) error {
		c.req.Patient = true
		return nil
	}
}

func (inside) Purpose(p string) LockOption {
	return func(c *lockConfig) error {
		c.req.Purpose = record.PurposeOf(p)
		return nil
	}
}

func (inside) Logger(c *Client) *slog.Logger { return c.session.Logger }

func (inside) Public(err error) error { return public(err) }

func (inside) HolderOf(e record.Entry) *Holder { return holderOf(e) }

func (inside) Observe(fn func(context.Context, session.Event)) Option {
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

func (inside) Permits(n int) LockOption {
	return func(c *lockConfig) error {
		c.req.Permits = n
		return nil
	}
}

func (inside) Slot(l *Lock) (n int, ok bool) {
	held, ok := l.holding().(interface{ Key() string })
	if !ok {
		return 0, false
	}
	k, ok := record.ParseKey(held.Key())
	return k.Slot, ok && k.Prefix == record.SlotPrefix
}

func (inside) Leave(l *Lock) (key string, err error) {
	if held, ok := l.holding().(interface{ Key() string }); ok {
		key = held.Key()
	}
	return key, l.retire()
}

func (inside) Admin(ctx context.Context, c *Client) (*admin.Admin, error) {
	if err := c.readyFor(ctx); err != nil {
		return nil, err
	}
	return c.admin, nil
}

func (inside) Process(pid int) Option {
	return func(c *config) error {
		c.pid = pid
		return nil
	}
}

func (inside) Drop(l *Lock) {
	l.cleanup.Stop()
	l.holding().Abandon()
}

func (inside) Left(l *Lock) time.Duration { return l.holding().Left() }

func (inside) WrapStore(wrap func(kvstore.KV) kvstore.KV) Option {
	return func(c *config) error {
		if wrap == nil {
			return invalid("WrapStore", "nil")
		}
		c.wrap = wrap
		return nil
	}
}

func (inside) Open(kv kvstore.KV, opts []Option) (*Client, error) {
	cfg, err := configOf(opts)
	if err != nil {
		return nil, err
	}
	return cfg.client(kv), nil
}

func (inside) Judge(c *Client, name string) []func(func(string) kvstore.Record) {
	return c.session.Judge(name)
}

func (inside) Waiting(c *Client, keys record.Keys) int { return c.locks.WaitingFor(keys) }
