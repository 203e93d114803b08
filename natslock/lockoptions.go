package natslock

import (
	"fmt"
	"maps"
	"time"

	"github.com/natslock/locks/internal/call"
	"github.com/natslock/locks/internal/clock"
)

// LockOption configures one acquire.
type LockOption func(*lockConfig) error

type lockConfig struct {
	req  call.Request
	warn func(*Lock)
}

func lockConfigOf(opts []LockOption) (lockConfig, error) {
	if len(opts) == 0 {
		return lockConfig{}, nil
	}
	c := new(lockConfig)
	for _, opt := range opts {
		if opt == nil {
			return lockConfig{}, errNilOption
		}
		if err := opt(c); err != nil {
			return lockConfig{}, err
		}
	}
	switch r := &c.req; {
	case !r.Until.IsZero() && (r.TTL != 0 || r.Fixed):
		return lockConfig{}, invalid("Until", "cannot be combined with TTL or NoRenew")
	case r.Linger > 0 && (r.Fixed || !r.Until.IsZero()):
		return lockConfig{}, invalid("Linger", "cannot be combined with Until or NoRenew")
	case r.MinHold > 0 && (r.Linger > 0 || !r.Until.IsZero()):
		return lockConfig{}, invalid("MinHold", "cannot be combined with Until or Linger")
	}
	return *c, nil
}

// TTL overrides the client's TTL for this lock: 1 s to 24 h, or up to 366 days with [NoRenew],
// rounded up to whole seconds.
func TTL(d time.Duration) LockOption {
	return func(c *lockConfig) error {
		if d < clock.MinTTL {
			return fmt.Errorf("%w: %v is less than %v", clock.ErrInvalidTTL, d, clock.MinTTL)
		}
		c.req.TTL = d
		return nil
	}
}

// MaxWait limits the wait for the lock to d. After that the acquire returns a *[TimeoutError].
// Unlike a deadline on the acquire's context, MaxWait does not end the work under the lock. By
// default only the context limits the wait. One-shot acquires ignore MaxWait.
func MaxWait(d time.Duration) LockOption {
	return func(c *lockConfig) error {
		if d <= 0 {
			return invalid("MaxWait", "%v is not positive; to avoid waiting, use TryLock", d)
		}
		c.req.MaxWait = d
		return nil
	}
}

// Meta attaches metadata to the lock. Anyone who can read the bucket can see it, and
// [Lock.SetMeta] replaces it. Metadata and the owner's name can take up to 14 KiB together, and
// no more than the server's max_payload less 416 bytes.
func Meta(m map[string]string) LockOption {
	m = maps.Clone(m)
	return func(c *lockConfig) error {
		c.req.Meta = m
		return nil
	}
}

// Until acquires a lock that ends at t, at most 365 days ahead, and is never renewed. The wait
// for the lock also ends at t. The server frees the lock at Unlock, or else up to 2 s after t (a
// thousandth of the lock's length if that is more). Until cannot be combined with [TTL] or
// [NoRenew].
//
// At t the lock ends as planned and is not lost: its context, and an Unlock after t, return an
// error that matches [ErrEnded]. [Lock.Extend] does not move t.
func Until(t time.Time) LockOption {
	return func(c *lockConfig) error {
		if t.IsZero() {
			return fmt.Errorf("%w: Until needs a time", clock.ErrInvalidTTL)
		}
		c.req.Until = t.Round(0) // the wall clock includes suspended time, which the monotonic clock may not
		return nil
	}
}

// NoRenew acquires a lease that only [Lock.Extend] prolongs. Without an Extend, the lock is lost
// a margin before its TTL ends.
func NoRenew() LockOption {
	return func(c *lockConfig) error {
		c.req.Fixed = true
		return nil
	}
}

const (
	maxLinger  = time.Hour
	maxMinHold = 12 * time.Hour
)

// Linger makes the client keep the lock idle for up to d after the last Unlock, at most 1 h. The
// client's next Lock then usually costs no message. Exclusion, order and tokens do not change.
//
// The client gives up an idle lock when another client queues for it, a goroutine asks for it
// with a different TTL or mode, the client is closed, or there are more idle locks than
// [Tuning].MaxLingering. If the notification of a waiter is lost, that takes up to 5 s. Where
// notifications never arrive, it can take as long as d: see docs/guide/waiting.md.
//
// If the client crashes, an idle lock keeps others out until its TTL ends. Another client's
// [Client.TryLock] treats the idle lock as held. Linger cannot be combined with [Until],
// [NoRenew], [MinHold], semaphore permits or, except for readers, a negative [Tuning].Turn.
func Linger(d time.Duration) LockOption {
	return func(c *lockConfig) error {
		if d <= 0 || d > maxLinger {
			return invalid("Linger", "must be positive and at most %v, not %v", maxLinger, d)
		}
		c.req.Linger = d
		return nil
	}
}

// MinHold keeps others out for d after the grant, measured by the server's clock, however early
// the holder unlocks. d is at most 12 h. Use it for a short job that several replicas start at
// the same time: if their clocks differ by less than d, the job runs once. See
// docs/guide/periodic.md.
//
// An Unlock before d is over ends the lock's context, but leaves the record until d is over, and
// returns nil if the server has confirmed that. Others, including goroutines of this client, get
// the lock up to about 1 s after d, rounded up to whole seconds, or when an operator breaks it
// immediately. The lock's TTL covers d, so others stay out even if the client crashes or loses
// the lock. MinHold cannot be combined with [Until] or [Linger], or used for readers or with
// [Client.LockAll].
func MinHold(d time.Duration) LockOption {
	return func(c *lockConfig) error {
		if d <= 0 || d > maxMinHold {
			return invalid("MinHold", "must be positive and at most %v, not %v", maxMinHold, d)
		}
		c.req.MinHold = d
		return nil
	}
}

// Detached keeps the lock's context alive when the acquire's context ends: a deadline or a
// cancellation then ends the wait but not the work. The lock's context keeps the values.
func Detached() LockOption {
	return func(c *lockConfig) error {
		c.req.Detached = true
		return nil
	}
}

// EarlyWarning calls fn when no more than d of the validity is left because the server is not
// confirming renewals, or when the client finds the bucket unfit (see [Client.Healthy]). A
// confirmation re-arms the warning. Choose d well below two thirds of the TTL, which is what is
// left when a renewal is due. The acquire refuses a d that is not shorter than the validity of a
// new lease.
//
// fn runs immediately, on its own goroutine, but not while an earlier call is still running,
// after the lock has ended, or for a dropped handle. [Client.Close] does not wait for it.
func EarlyWarning(d time.Duration, fn func(*Lock)) LockOption {
	return func(c *lockConfig) error {
		if d <= 0 || fn == nil {
			return invalid("EarlyWarning", "needs a positive duration and a function")
		}
		c.req.WarnBefore = d
		c.warn = fn
		return nil
	}
}
