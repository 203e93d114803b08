package natslock

import (
	"cmp"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/cohort"
	kv "github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
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
	replicas  int
	session   session.Config
	turn      time.Duration
	lingering int
	owner     string
	pid       int // the process ID in records; 0 for that of this process
	wrap      func(kv.KV) kv.KV
}

// configOf returns the defaults with opts applied.
func configOf(opts []Option) (config, error) {
	cfg := config{create: true, turn: cohort.DefaultTurn, lingering: cohort.DefaultMaxLingering, session: session.Config{WatchAfter: session.DefaultWatchAfter}}
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
	return fmt.Errorf("%w: %s: %s", record.ErrInvalidOption, option, fmt.Sprintf(format, args...))
}

var (
	errNilOption = fmt.Errorf("%w: an option is nil", ErrInvalid)
	errNoFunc    = fmt.Errorf("%w: the function to run is nil", ErrInvalid)
)

// WithJetStream makes the client reach the bucket through js: a JetStream domain
// (jetstream.NewWithDomain) or an API prefix (jetstream.NewWithAPIPrefix). The default is the
// connection's own account and domain. Only clients of the same bucket exclude each other.
func WithJetStream(js jetstream.JetStream) Option {
	return func(c *config) error {
		if js == nil {
			return invalid("WithJetStream", "nil")
		}
		c.js = js
		return nil
	}
}

// WithBucket sets the bucket's name: up to 240 letters, digits, '-' and '_', "natslock" by
// default. Locks in different buckets are different locks.
func WithBucket(name string) Option {
	return func(c *config) error {
		if name == "" {
			return invalid("WithBucket", "the name is empty")
		}
		c.bucket = name
		return nil
	}
}

// WithReplicas sets how many servers store a bucket that [New] creates: 1, 3 or 5. The default
// is 3 on a cluster and 1 elsewhere. New never changes an existing bucket.
func WithReplicas(n int) Option {
	return func(c *config) error {
		if n != 1 && n != 3 && n != 5 { // two servers are worse than one: the loss of either stops them
			return invalid("WithReplicas", "%d: use 1, 3 or 5", n)
		}
		c.replicas = n
		return nil
	}
}

// WithBucketConfig sets the storage, limits and placement of a bucket that [New] creates: by
// default file storage without limits. [WithBucket] and [WithReplicas] take precedence. New
// never changes an existing bucket.
func WithBucketConfig(cfg kvstore.Config) Option {
	return func(c *config) error {
		c.store = cfg
		return nil
	}
}

// WithCreate sets whether [New] may create a missing bucket. The default is true. With false,
// New returns an error that matches kvstore.ErrNotFound.
func WithCreate(allowed bool) Option {
	return func(c *config) error {
		c.create = allowed
		return nil
	}
}

// WithTTL sets the TTL of locks acquired without the [TTL] option: 1 s to 24 h, rounded up to
// whole seconds, 15 s by default. See docs/guide/leases.md on how to choose it.
func WithTTL(d time.Duration) Option {
	return func(c *config) (err error) {
		c.session.TTL, err = clock.RoundTTL(d, false)
		return err
	}
}

// WithOwner sets the holder's name as other clients see it, up to 1024 bytes. It need not be
// unique, and does not affect locking. The default is "name@host:pid" with the connection's name
// (nats.Name), or "host:pid" without one.
func WithOwner(owner string) Option {
	return func(c *config) error {
		if len(owner) > 1024 {
			return invalid("WithOwner", "%d bytes; the limit is 1024", len(owner))
		}
		c.owner = owner
		return nil
	}
}

// WithLogger sets the logger for warnings. The default is [slog.Default] at the time of [New].
// The client warns about each held lock that is lost, that the server refuses to renew, or whose
// handle was dropped, and about bucket settings that are unsafe or should be changed. It never
// logs credentials, values of records, or errors that it returns. A handler that blocks does not
// delay locks.
func WithLogger(l *slog.Logger) Option {
	return func(c *config) error {
		if l == nil {
			return invalid("WithLogger", "nil")
		}
		c.session.Logger = l
		return nil
	}
}

// Tuning holds settings that few services need. Zero keeps the default.
type Tuning struct {
	// Turn limits how long after a grant the client hands the lock to its own goroutines that
	// asked for it after another client had queued: 1 ms by default, 1 s at most.
	//
	// With a negative Turn, each goroutine that wants a mutex or a write lock queues by itself.
	// All clients' goroutines are then served in the exact order in which they queue, but each
	// handover takes messages, and [Linger] is refused except for readers. For a semaphore, a
	// negative Turn only removes the turn. See docs/guide/waiting.md.
	Turn time.Duration
	// WatchAfter is the age at which the client subscribes to the record of a held lock, 1 s by
	// default. A subscribed client learns of a break immediately, and any other client at its
	// next renewal. With less than a millisecond, the client subscribes from the start; with a
	// negative duration, it never does.
	WatchAfter time.Duration
	// ReleaseTimeout limits how long [Lock.Unlock] waits for the server: 5 s by default, 1 h at
	// most.
	ReleaseTimeout time.Duration
	// MaxLingering limits how many locks the client keeps idle for [Linger], 10,000 by default,
	// or none if negative. Beyond that, the client gives up the least recently used lock.
	MaxLingering int
}

const (
	maxTurn           = time.Second
	maxReleaseTimeout = time.Hour
)

// WithTuning applies the nonzero fields of t.
func WithTuning(t Tuning) Option {
	return func(c *config) error {
		switch {
		case t.Turn > maxTurn:
			return invalid("Turn", "%v is more than %v", t.Turn, maxTurn)
		case t.ReleaseTimeout < 0 || t.ReleaseTimeout > maxReleaseTimeout:
			return invalid("ReleaseTimeout", "must be positive and at most %v, not %v", maxReleaseTimeout, t.ReleaseTimeout)
		}
		c.session.ReleaseTimeout = cmp.Or(t.ReleaseTimeout, c.session.ReleaseTimeout)
		if t.Turn != 0 {
			c.turn = t.Turn
		}
		if t.MaxLingering != 0 {
			c.lingering = max(t.MaxLingering, 0)
		}
		switch {
		case t.WatchAfter > clock.MaxFixedTTL: // no lease lasts that long, and adding it to a time would overflow
			c.session.WatchAfter = -1
		case t.WatchAfter != 0:
			c.session.WatchAfter = t.WatchAfter.Truncate(time.Millisecond)
			if t.WatchAfter < 0 {
				c.session.WatchAfter = -1
			}
		}
		return nil
	}
}
