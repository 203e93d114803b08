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
	pid       int // that the records name; 0: that of this process
	wrap      func(kv.KV) kv.KV
}

// configOf is what options make of the defaults.
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

// WithBucket names the bucket, "natslock" by default. A name has up to 240 letters, digits, '-'
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

// WithReplicas sets on how many servers [New] creates a missing bucket: 1, 3 or 5. The default is
// three on a cluster, where locks then outlive the loss of a server, and one elsewhere. New never
// changes an existing bucket. Other replicas make New return [ErrInvalid].
func WithReplicas(n int) Option {
	return func(c *config) error {
		if n != 1 && n != 3 && n != 5 { // two servers keep less than one: either loss stops them
			return invalid("WithReplicas", "%d: use 1, 3 or 5", n)
		}
		c.replicas = n
		return nil
	}
}

// WithBucketConfig says more of how [New] creates a missing bucket than [WithReplicas], which takes
// precedence: storage, limits, placement. The default is a bucket in files, without a limit. New never
// changes an existing bucket. A bucket name in cfg has the effect of [WithBucket], which takes
// precedence too.
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
// [ErrInvalid]. The TTL bounds how long a crashed holder keeps others out, and
// how long a holder survives without the server.
func WithTTL(d time.Duration) Option {
	return func(c *config) (err error) {
		c.session.TTL, err = clock.RoundTTL(d, false)
		return err
	}
}

// WithOwner sets the name that other clients see as the holder's. It says which service that is,
// need not be unique, and has no effect on the locking. The default is "name@host:pid" with the
// name of the connection (nats.Name), or "host:pid" if that has none or more than 128 bytes. It
// has at most 1024 bytes.
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

// Tuning has the settings that hardly any service needs to change. The zero value of each field keeps the
// default. One that is out of its range makes [New] return [ErrInvalid].
type Tuning struct {
	// Turn limits the time after a grant by the server in which the client hands the lock to
	// goroutines of its own that came after another client had queued. Other clients wait
	// longer by one turn of each client before them. The default is 1 ms, and the most 1 s.
	// Readers of a reader-writer lock have no turn.
	//
	// With a negative Turn each goroutine that wants a mutex or a write lock queues by
	// itself: goroutines of all clients are served in the exact order in which they queue,
	// and each hand-over takes messages. [Linger] is refused then, with [ErrInvalid], but for
	// readers. The permits of a semaphore only have no turn.
	Turn time.Duration
	// WatchAfter is how long the client holds a lock before it watches the record. The
	// default of 1 s spares short critical sections the subscription. A client that
	// watches learns of a break at once, and otherwise at the next renewal. Less than a
	// millisecond watches from the start, and a negative duration never.
	WatchAfter time.Duration
	// ReleaseTimeout bounds how long [Lock.Unlock] waits for the server if its context does
	// not end before. The default is 5 s, and the most 1 h.
	ReleaseTimeout time.Duration
	// MaxLingering bounds the locks that the client keeps idle for [Linger]. One more has
	// the client give up the least recently used. The default is 10,000. A negative number
	// keeps none.
	MaxLingering int
}

const (
	maxTurn           = time.Second
	maxReleaseTimeout = time.Hour
)

// WithTuning changes what t has other than zero.
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
