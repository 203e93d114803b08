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
		return lockConfig{}, invalid("Until", "goes with neither TTL nor NoRenew")
	case r.Linger > 0 && (r.Fixed || !r.Until.IsZero()):
		return lockConfig{}, invalid("Linger", "goes with neither Until nor NoRenew")
	case r.MinHold > 0 && (r.Linger > 0 || !r.Until.IsZero()):
		return lockConfig{}, invalid("MinHold", "goes with neither Until nor Linger")
	}
	return *c, nil
}

// TTL sets the TTL of this lock, instead of the client's: 1 s to 24 h, rounded up to whole
// seconds, or up to 366 days with [NoRenew]. Anything else is refused with [ErrInvalid].
func TTL(d time.Duration) LockOption {
	return func(c *lockConfig) error {
		if d < clock.MinTTL {
			return fmt.Errorf("%w: %v is less than %v", clock.ErrInvalidTTL, d, clock.MinTTL)
		}
		c.req.TTL = d
		return nil
	}
}

// MaxWait limits the wait. Unlike a deadline on the acquire's context, it does not end the work
// under the lock. When it passes, the acquire returns a *[TimeoutError]. By default only the
// context limits the wait. A d that is not positive is refused with [ErrInvalid]. One-shot
// acquires ignore MaxWait.
func MaxWait(d time.Duration) LockOption {
	return func(c *lockConfig) error {
		if d <= 0 {
			return invalid("MaxWait", "%v is not positive; use TryLock to not wait", d)
		}
		c.req.MaxWait = d
		return nil
	}
}

// Meta attaches data to the lock, which anyone who can read the bucket sees. [Lock.SetMeta]
// replaces it. The data and the owner's name may take up to 14 KiB, and no more than the
// server's max_payload (1 MiB by default) less 416 bytes. Otherwise the acquire returns
// [ErrInvalid].
func Meta(m map[string]string) LockOption {
	m = maps.Clone(m)
	return func(c *lockConfig) error {
		c.req.Meta = m
		return nil
	}
}

// Until takes a lock that ends at t, at most 365 days ahead, and is never renewed. The wait for
// it ends at t, too. The server frees it at Unlock, or up to 2 s after t, or a thousandth of
// its length if that is more. A t in the past or too far ahead is refused with [ErrInvalid],
// and so is combining it with [TTL] or [NoRenew].
//
// A lock held until t ends as planned and is not lost: its context and an Unlock after t return
// an error that matches [ErrEnded]. [Lock.Extend] does not move t.
func Until(t time.Time) LockOption {
	return func(c *lockConfig) error {
		if t.IsZero() {
			return fmt.Errorf("%w: Until needs a time", clock.ErrInvalidTTL)
		}
		c.req.Until = t.Round(0) // the wall clock counts suspended time, the monotonic one may not
		return nil
	}
}

// NoRenew takes a lease that only [Lock.Extend] prolongs. Without an Extend, the lock is lost
// once its TTL less the margin is over.
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

// Linger makes the client keep the lock idle for up to d after the last Unlock, 1 h at most.
// The client's next Lock then costs no message, except for an occasional renewal. Readers
// linger too. Exclusion, order and tokens do not change.
//
// The client gives up an idle lock at once when another client queues for it, when a goroutine
// asks with a different TTL or mode, at Close, and beyond [Tuning].MaxLingering. To another
// client's [Client.TryLock] an idle lock counts as held, and [LockedError] says that it is
// idle. If the notification of a waiter is lost, the client learns of the waiter within 5 s.
// Where notifications never arrive, an idle lock stays for the whole of d unless this client
// takes it again. If the bucket stops publishing its changes, the client gives up its idle
// locks within 5 minutes.
//
// An idle lock costs a renewal every third of its TTL and, if the client crashes, keeps others
// out until its TTL ends. [Stats.Idle] counts the idle locks, and package admin shows them. If
// several goroutines share the lock, the last to unlock decides. Any other d is refused with
// [ErrInvalid], and so is Linger with [Until], [NoRenew], [MinHold] or a negative
// [Tuning].Turn, and for a semaphore permit.
func Linger(d time.Duration) LockOption {
	return func(c *lockConfig) error {
		if d <= 0 || d > maxLinger {
			return invalid("Linger", "%v is not in (0, %v]", d, maxLinger)
		}
		c.req.Linger = d
		return nil
	}
}

// MinHold keeps others out for d after the grant, by the server's clock, however early the
// holder unlocks. Use it for a short job that several replicas start at the same time by clocks
// that differ by less than d: the job runs once.
//
// An Unlock before d is over ends the lock's context and leaves the record until then, with d
// rounded up to whole seconds. Unlock returns nil if the server has confirmed that. Others,
// including goroutines of this client, get the lock up to about 1 s after d, or when an
// operator breaks it immediately. A later Unlock releases the lock as usual.
//
// The TTL of the lock is at least d plus the margin, and [Lock.Extend] does not shorten it. So
// others stay out for d even if the client crashes or loses the lock. Goroutines of the client
// do not hand the lock on to each other.
//
// d is positive and at most 12 h, or the acquire returns [ErrInvalid]. MinHold is refused with
// [Until] and [Linger], for readers and by [Client.LockAll].
func MinHold(d time.Duration) LockOption {
	return func(c *lockConfig) error {
		if d <= 0 || d > maxMinHold {
			return invalid("MinHold", "%v is not in (0, %v]", d, maxMinHold)
		}
		c.req.MinHold = d
		return nil
	}
}

// Detached separates the lock's context from the end of the acquire's context: a deadline or a
// cancellation then ends the wait but not the work. The lock's context keeps the values.
func Detached() LockOption {
	return func(c *lockConfig) error {
		c.req.Detached = true
		return nil
	}
}

// EarlyWarning calls fn when no more than d of the validity is left because the server confirms
// no renewals, or when the client finds the bucket unfit (see [Client.Healthy]). A confirmation
// re-arms the warning. Choose d well below two thirds of the TTL, which is what is left when a
// renewal is due.
//
// fn runs at once, on a goroutine of its own. It is not called after the end of the lock or for
// a dropped handle. While it runs, the lock gives no further warning, and [Client.Close] does
// not wait for it. The acquire returns [ErrInvalid] for a nil fn, and for a d that is not
// positive or not shorter than the validity of a new lease. [Lock.Extend] refuses a TTL too
// short for d.
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
