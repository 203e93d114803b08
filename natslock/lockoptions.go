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

// TTL sets the lease of this lock instead of the client's: 1 s to 24 h, rounded up
// to whole seconds; see [WithTTL]. With [NoRenew] it may last up to 366 days.
// Anything else is refused with [ErrInvalid].
func TTL(d time.Duration) LockOption {
	return func(c *lockConfig) error {
		if d < clock.MinTTL {
			return fmt.Errorf("%w: %v is less than %v", clock.ErrInvalidTTL, d, clock.MinTTL)
		}
		c.req.TTL = d
		return nil
	}
}

// MaxWait bounds the waiting. Unlike a deadline on the acquire's context, it does not
// end the work under the lock. When it passes, the acquire returns [ErrTimeout], which
// matches [ErrUnavailable] too in an outage: see [TimeoutError]. By
// default only the context bounds the waiting. MaxWait must be positive, or the acquire
// returns [ErrInvalid]. [Client.TryLock] does not wait and ignores it.
func MaxWait(d time.Duration) LockOption {
	return func(c *lockConfig) error {
		if d <= 0 {
			return invalid("MaxWait", "%v is not positive; use TryLock to not wait", d)
		}
		c.req.MaxWait = d
		return nil
	}
}

// Meta attaches data to the lock. [Lock.SetMeta] replaces it. Every reader of the bucket
// can see it. The data and the owner must fit into 14 KiB, and into the server's max_payload
// (1 MiB by default) less 416 bytes, or the acquire returns [ErrInvalid].
func Meta(m map[string]string) LockOption {
	m = maps.Clone(m)
	return func(c *lockConfig) error {
		c.req.Meta = m
		return nil
	}
}

// Until takes a lock that ends at t, at most 365 days ahead, and is never
// renewed: for jobs that may run once per period. The wait for it ends at t, too.
// The server frees it up to 2 s after t, or a thousandth of its length if that is more,
// or at Unlock. A t that is past or too far ahead makes the acquire return
// [ErrInvalid], and so does Until together with [TTL] or [NoRenew].
//
// A lock that is held to t has ended as planned, and is not lost. Its context ends with
// a cause that matches [ErrEnded], and an Unlock after t returns such an error.
// [Lock.Extend] does not move t: it returns [ErrInvalid].
func Until(t time.Time) LockOption {
	return func(c *lockConfig) error {
		if t.IsZero() {
			return fmt.Errorf("%w: Until needs a time", clock.ErrInvalidTTL)
		}
		c.req.Until = t.Round(0) // the wall clock counts suspend, the other may not
		return nil
	}
}

// NoRenew takes a lease that only [Lock.Extend] prolongs. It is lost when its TTL, less
// the margin, is over.
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

// Linger has the client keep the lock for up to d when the last of its goroutines has
// unlocked it. The next Lock of this client then costs no message, which suits a service
// that takes the same lock again and again. The client gives an idle lock up at once when
// another client queues for it, or when a goroutine asks with another TTL or mode. To
// [Client.TryLock] of another client it is held: see [LockedError]. Close gives all of them
// up. The goroutine that unlocks last decides.
//
// The client keeps a lock idle only while its subscription to the queue is known to be in
// place. If the notification of a waiter is lost, the client learns of it from the renewal
// of the waiter's place, within 5 s, or from a list: a goroutine that takes an idle lock
// lists the queue first, unless the client has done so in the last 5 s. Where notifications
// never arrive, an idle lock that nobody takes again stays for all of d. If the bucket does
// not publish its changes any more, the client gives its idle locks up when it verifies the
// bucket next, within 5 minutes.
//
// A client that crashes keeps an idle lock until its TTL ends. An idle lock costs a renewal
// every third of its TTL. [Stats.Idle] counts the idle locks, and package admin shows them.
// d is positive and at most one hour, or the acquire returns [ErrInvalid]. So does Linger
// together with [Until], [NoRenew] or [MinHold], with a negative [Tuning].Turn, and for a
// permit of a semaphore.
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
// holder unlocks. It is for a short job that several replicas start at the same time, by
// clocks that differ by less than d: the job runs once.
//
// An Unlock before d ends the lock's context, and leaves the record in the bucket until d,
// rounded up to whole seconds. Other clients and the goroutines of this client wait for it as
// for a lock that is held. They get it when d is over, up to 1 s later and a little more, or when an
// operator breaks it at once. Unlock returns nil when the server has confirmed that record. An
// Unlock after d releases the lock as always. To package admin the lock is held until then, by a
// holder that does not renew it.
//
// The TTL of the lock is at least d and the margin. So others stay out for d if the client
// crashes or loses the lock too, and stay out longer than by a shorter [TTL].
// [Lock.Extend] does not make the TTL shorter. The goroutines of the client do not hand
// the lock on to each other.
//
// d is positive and at most 12 hours, or the acquire returns [ErrInvalid]. It
// also does for MinHold together with [Until] or [Linger], for one that reads a
// reader-writer lock, and for one of several locks ([Client.LockAll]).
func MinHold(d time.Duration) LockOption {
	return func(c *lockConfig) error {
		if d <= 0 || d > maxMinHold {
			return invalid("MinHold", "%v is not in (0, %v]", d, maxMinHold)
		}
		c.req.MinHold = d
		return nil
	}
}

// Detached separates the lock's context from the end of the acquire's context: a
// deadline or a cancellation then ends the waiting and not the work. The lock's context
// keeps the values.
func Detached() LockOption {
	return func(c *lockConfig) error {
		c.req.Detached = true
		return nil
	}
}

// EarlyWarning calls fn when no more than d of the validity is left: the last
// confirmation is old, and the client may be about to lose the lock. A confirmation
// arms the warning again. fn also runs when the client finds the bucket unfit, see
// [Client.Healthy]. So d should be well below the part of the TTL that is left
// when a renewal is due, two thirds by default.
//
// fn runs on a goroutine of its own, at once when it is due, whatever observers and other
// warnings do. It does not begin after the end of the lock, by an Unlock or a loss, nor for a
// lock whose handle was dropped. While it runs, the same lock gives no further warning, and
// [Client.Close] does not wait for it. A d that is not positive, or a nil fn, makes the acquire return
// [ErrInvalid].
// So does a d that is not shorter than the validity of a new lease, its TTL less the
// margin: fn would be called after every confirmation. [Lock.Extend] refuses
// such a TTL with [ErrInvalid].
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
