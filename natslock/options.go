package natslock

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/internal/acquire"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/session"
	"github.com/natslock/locks/kvstore"
)

// Option configures a [Client].
type Option func(*config) error

type config struct {
	js        jetstream.JetStream
	bucket    string
	store     kvstore.Config
	create    bool
	session   session.Config
	turn      time.Duration
	lingering int
	owner     string
	pid       int // that the records name; 0: that of this process
	observe   func(context.Context, Event)
	wrap      func(kvstore.KV) kvstore.KV
	now       func() time.Time
}

// configOf is what options make of the defaults.
func configOf(opts []Option) (config, error) {
	cfg := config{create: true, turn: acquire.DefaultTurn, lingering: acquire.DefaultMaxLingering, now: time.Now, session: session.Config{WatchAfter: session.DefaultWatchAfter}}
	for _, opt := range opts {
		if opt == nil {
			return config{}, fmt.Errorf("natslock: %w", errNilOption)
		}
		if err := opt(&cfg); err != nil {
			return config{}, fmt.Errorf("natslock: %w", err)
		}
	}
	cfg.session.Logger = cmp.Or(cfg.session.Logger, slog.Default())
	return cfg, nil
}

func invalid(option, format string, args ...any) error {
	return fmt.Errorf("%w: %s: %s", ErrInvalidOption, option, fmt.Sprintf(format, args...))
}

var (
	errNilOption = fmt.Errorf("%w: an option is nil", ErrInvalidOption)
	errNoFunc    = fmt.Errorf("%w: the function to run is nil", ErrInvalidOption)
)

// WithJetStream reaches the bucket through js: a JetStream domain
// (jetstream.NewWithDomain) or an API prefix. The default is the connection's own
// account and domain. All clients that are to exclude each other must reach the same
// bucket.
func WithJetStream(js jetstream.JetStream) Option {
	return func(c *config) error {
		if js == nil {
			return invalid("WithJetStream", "nil")
		}
		c.js = js
		return nil
	}
}

// WithBucket names the bucket, "natslock" by default. A name has letters, digits, '-'
// and '_'. Locks in different buckets are different locks.
func WithBucket(name string) Option {
	return func(c *config) error {
		if name == "" {
			return invalid("WithBucket", "the name is empty")
		}
		c.bucket = name
		return nil
	}
}

// WithBucketConfig sets how [New] creates a missing bucket: replicas, storage, limits.
// By default the bucket has three replicas on a cluster and one elsewhere, in files, without
// a limit. New never changes an
// existing bucket. A bucket name in cfg has the effect of [WithBucket], which takes
// precedence.
func WithBucketConfig(cfg kvstore.Config) Option {
	return func(c *config) error {
		c.store = cfg
		return nil
	}
}

// WithCreate sets whether [New] may create a missing bucket. The default is true. With
// false, New returns an error that matches kvstore.ErrNotFound instead.
func WithCreate(allowed bool) Option {
	return func(c *config) error {
		c.create = allowed
		return nil
	}
}

// WithTTL sets the lease of locks that do not ask for their own: 1 s to 24 h,
// rounded up to whole seconds; 15 s by default. Anything else is refused with
// [ErrInvalidTTL]. The TTL bounds how long a crashed holder keeps others out, and
// how long a holder survives without the server.
func WithTTL(d time.Duration) Option {
	return func(c *config) (err error) {
		c.session.TTL, err = clock.RoundTTL(d, false)
		return err
	}
}

// WithOwner sets the name that other clients see as the holder's, "host:pid" by
// default. It need not be unique, and has no effect on the locking. It has at most 1024
// bytes.
func WithOwner(owner string) Option {
	return func(c *config) error {
		if len(owner) > 1024 {
			return invalid("WithOwner", "%d bytes, at most 1024 fit", len(owner))
		}
		c.owner = owner
		return nil
	}
}

// WithRenewFraction sets after which part of its TTL the client renews a lease, in (0,
// 1), or [New] returns [ErrInvalidOption]. The default of a third leaves time for two more
// tries. The client renews a lease after a twentieth of its TTL at the earliest, and after
// four fifths of its validity at the latest: an f beyond that counts as these.
func WithRenewFraction(f float64) Option {
	return func(c *config) error {
		if !(f > 0 && f < 1) {
			return invalid("WithRenewFraction", "%v is not in (0, 1)", f)
		}
		c.session.RenewFraction = f
		return nil
	}
}

// WithSafetyMargin sets how long before its TTL the validity of a lease ends, as a part
// of the TTL in (0, 0.5]. The default is 0.1. The margin is at most 1 s, and at least a
// thousandth of the TTL. The client's clock may run wrong by less than the margin.
func WithSafetyMargin(f float64) Option {
	return func(c *config) error {
		if !(f > 0 && f <= 0.5) {
			return invalid("WithSafetyMargin", "%v is not in (0, 0.5]", f)
		}
		c.session.Margin = f
		return nil
	}
}

// MaxReleaseTimeout is the longest time that [WithReleaseTimeout] takes.
const MaxReleaseTimeout = time.Hour

// WithReleaseTimeout bounds how long [Lock.Unlock] waits for the server if its context does
// not end before. The default is 5 s. d is positive and at most [MaxReleaseTimeout], or
// [New] returns [ErrInvalidOption].
func WithReleaseTimeout(d time.Duration) Option {
	return func(c *config) error {
		if d <= 0 || d > MaxReleaseTimeout {
			return invalid("WithReleaseTimeout", "%v is not in (0, %v]", d, MaxReleaseTimeout)
		}
		c.session.ReleaseTimeout = d
		return nil
	}
}

// WithWatchAfter sets how long the client holds a lock before it watches the record.
// The default of 1 s spares short critical sections the subscription. A client that
// watches learns of a break at once, and otherwise at the next renewal. 0 watches from
// the start, and a negative duration never. More than 366 days, which no lease lasts, is
// never, too.
func WithWatchAfter(d time.Duration) Option {
	return func(c *config) error {
		if d > clock.MaxFixedTTL { // or the end of the sum would be before its beginning
			d = -1
		}
		c.session.WatchAfter = d
		return nil
	}
}

// DefaultTurn is the default of [WithTurn].
const DefaultTurn = acquire.DefaultTurn

// WithTurn sets for how long after a grant by the server the client hands the lock to
// goroutines of its own that asked after other clients. Goroutines of one client that
// want one lock wait together, and pass it on without a message: that is a hundred times
// faster than a hand-over between clients. The others wait longer by one turn of each
// client before them. The default is 1 ms, and 0 keeps the exact order of arrival. d is
// at most 1 s, or [New] returns [ErrInvalidOption]. Goroutines that read a reader-writer
// lock have no turn.
func WithTurn(d time.Duration) Option {
	return func(c *config) error {
		if d < 0 || d > time.Second {
			return invalid("WithTurn", "%v is not in [0, 1s]", d)
		}
		c.turn = d
		return nil
	}
}

// WithMaxLingering bounds the locks that the client keeps idle for [Linger]. One more has
// the client give up the least recently used. The default is 10,000, and 0 keeps none. A
// negative n makes [New] return [ErrInvalidOption].
func WithMaxLingering(n int) Option {
	return func(c *config) error {
		if n < 0 {
			return invalid("WithMaxLingering", "%d is negative", n)
		}
		c.lingering = n
		return nil
	}
}

// WithLogger sets the logger that receives warnings, [slog.Default] at the time of [New] by
// default. A logger with [slog.DiscardHandler] switches them off. The client warns of each
// held lock that is lost or broken, of each that the server refuses to renew, of a handle
// that was dropped, of a bucket that it has created, of one that is not fit for locks any
// more, and of settings that work and should be others, such as one replica on a cluster.
//
// It logs no end by [Client.Close], whose error names the locks, and what it returns as an
// error. It never logs credentials or the values of records. A handler that blocks delays
// no lock that is held.
func WithLogger(l *slog.Logger) Option {
	return func(c *config) error {
		if l == nil {
			return invalid("WithLogger", "nil")
		}
		c.session.Logger = l
		return nil
	}
}

// WithObserver calls fn for every transition of this client's locks, for metrics and
// traces. The calls come one after the other, in order, on a goroutine that delays no
// lock. Their context has the values of the acquire's context.
func WithObserver(fn func(context.Context, Event)) Option {
	return func(c *config) error {
		if fn == nil {
			return invalid("WithObserver", "nil")
		}
		c.observe = fn
		return nil
	}
}
