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
	pid       int // of the process that the records name; 0 for this one
	wrap      func(kv.KV) kv.KV
}

// configOf returns the defaults changed by options.
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

// WithJetStream reaches the bucket through js: a JetStream domain (jetstream.NewWithDomain) or
// an API prefix (jetstream.NewWithAPIPrefix). The default is the connection's own account and
// domain. Only clients of the same bucket exclude each other.
func WithJetStream(js jetstream.JetStream) Option {
	return func(c *config) error {
		if js == nil {
			return invalid("WithJetStream", "nil")
		}
		c.js = js
		return nil
	}
}

// WithBucket names the bucket, "natslock" by default: up to 240 letters, digits, '-' and '_'.
// Locks in different buckets are different locks.
func WithBucket(name string) Option {
	return func(c *config) error {
		if name == "" {
			return invalid("WithBucket", "the name is empty")
		}
		c.bucket = name
		return nil
	}
}

// WithReplicas sets the number of servers that store a bucket made by [New]: 1, 3 or 5, or New
// returns [ErrInvalid]. The default is three on a cluster, where locks then outlive the loss of
// a server, and one elsewhere. New never changes an existing bucket.
func WithReplicas(n int) Option {
	return func(c *config) error {
		if n != 1 && n != 3 && n != 5 { // two servers keep less than one: either loss stops them
			return invalid("WithReplicas", "%d: use 1, 3 or 5", n)
		}
		c.replicas = n
		return nil
	}
}

// WithBucketConfig sets the storage, limits and placement of a bucket that [New] makes: by
// default files without a limit. [WithBucket] and [WithReplicas] take precedence. New never
// changes an existing bucket.
func WithBucketConfig(cfg kvstore.Config) Option {
	return func(c *config) error {
		c.store = cfg
		return nil
	}
}

// WithCreate sets whether [New] may create a missing bucket, true by default. With false, New
// returns an error that matches kvstore.ErrNotFound instead.
func WithCreate(allowed bool) Option {
	return func(c *config) error {
		c.create = allowed
		return nil
	}
}

// WithTTL sets the lease of locks without a [TTL] of their own: 1 s to 24 h, rounded up to
// whole seconds, 15 s by default. Anything else is refused with [ErrInvalid]. The TTL limits
// the time for which a crashed holder keeps others out, and for which a holder survives without
// the server.
func WithTTL(d time.Duration) Option {
	return func(c *config) (err error) {
		c.session.TTL, err = clock.RoundTTL(d, false)
		return err
	}
}

// WithOwner sets the name that other clients see as the holder's, up to 1024 bytes. It need not
// be unique, and has no effect on the locking. The default is "name@host:pid" with the name of
// the connection (nats.Name), or "host:pid" if the connection has no name or one of more than
// 128 bytes.
func WithOwner(owner string) Option {
	return func(c *config) error {
		if len(owner) > 1024 {
			return invalid("WithOwner", "%d bytes, at most 1024 fit", len(owner))
		}
		c.owner = owner
		return nil
	}
}

// WithLogger sets the logger that receives warnings, [slog.Default] at the time of [New] by
// default. The client warns of each held lock that is lost or broken, that the server refuses
// to renew, or whose handle was dropped. It also warns of a bucket that has become unfit for
// locks, and of settings that work and should be others, such as one replica on a cluster. It
// does not log what it returns as an error, credentials, or values of records. A handler that
// blocks delays no held lock.
func WithLogger(l *slog.Logger) Option {
	return func(c *config) error {
		if l == nil {
			return invalid("WithLogger", "nil")
		}
		c.session.Logger = l
		return nil
	}
}

// Tuning has settings that hardly any service needs. Zero keeps the default, and a value out of
// its range makes [New] return [ErrInvalid].
type Tuning struct {
	// Turn limits the time after a grant in which the client hands the lock to its own
	// goroutines that asked after another client had queued: 1 ms by default, 1 s at most.
	// Other clients wait longer by one turn of each client before them. Readers have no turn.
	//
	// With a negative Turn each goroutine that wants a mutex or a write lock queues by itself:
	// goroutines of all clients are served in the exact order in which they queue, each
	// hand-over takes messages, and [Linger] is refused with [ErrInvalid], except for readers.
	// The permits of a semaphore only have no turn.
	Turn time.Duration
	// WatchAfter is the age at which a held lock gets a subscription to its record. The default
	// of 1 s spares short critical sections the subscription. A client that watches learns of a
	// break at once, and otherwise at the next renewal. Less than a millisecond watches from
	// the start, and a negative duration never.
	WatchAfter time.Duration
	// ReleaseTimeout limits the time for which [Lock.Unlock] waits for the server: 5 s by
	// default, 1 h at most.
	ReleaseTimeout time.Duration
	// MaxLingering limits the number of locks that the client keeps idle for [Linger], 10,000
	// by default. Beyond it the client gives up the least recently used one. A negative number
	// keeps none.
	MaxLingering int
}

const (
	maxTurn           = time.Second
	maxReleaseTimeout = time.Hour
)

// WithTuning sets the fields of t that are not zero.
func WithTuning(t Tuning) Option {
	return func(c *config) error {
		switch {
		case t.Turn > maxTurn:
			return invalid("Turn", "%v is more than %v", t.Turn, maxTurn)
		case t.ReleaseTimeout < 0 || t.ReleaseTimeout > maxReleaseTimeout:
			return invalid("ReleaseTimeout", "%v is not in (0, %v]", t.ReleaseTimeout, maxReleaseTimeout)
		}
		c.session.ReleaseTimeout = cmp.Or(t.ReleaseTimeout, c.session.ReleaseTimeout)
		if t.Turn != 0 {
			c.turn = t.Turn
		}
		if t.MaxLingering != 0 {
			c.lingering = max(t.MaxLingering, 0)
		}
		switch {
		case t.WatchAfter > clock.MaxFixedTTL: // no lease lasts as long, and the end of the sum would be before its beginning
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
