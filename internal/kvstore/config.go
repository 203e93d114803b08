package kvstore

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	// DefaultBucket is the name of the bucket if none is given.
	DefaultBucket = "natslock"
	// maxReplicas is the largest number of replicas that a server allows.
	maxReplicas = 5
	// minMsgSize is the smallest acceptable max_msg_size. It leaves room for the largest
	// value and its headers, which count toward the limit.
	minMsgSize = MaxRecord + 4<<10
	// protocol is the version of the protocol for keys, records and headers that this
	// release uses. A bucket's metadata names the version that its records follow, and a
	// bucket without that entry is refused.
	protocol     = "3"
	metaProtocol = "natslock.protocol"
	metaID       = "natslock.id"
	// tick is the time unit in which a bucket's first sequence counts.
	tick = 10 * time.Microsecond
	// lowFirstSeq tells first sequences derived from the time apart from those that started
	// at 1 or came from a clock that was years behind. It is the first sequence for July
	// 2025, and every bucket that uses this protocol was created later.
	lowFirstSeq = 3e13
)

// epoch is the time from which first sequences are counted.
var epoch = time.Date(2016, time.January, 1, 0, 0, 0, 0, time.UTC)

// firstSeq returns the first sequence of a bucket created at the given time: the number of
// ticks since epoch. Provided that a bucket stores fewer than 100,000 records per second,
// its revisions stay below the current tick, so revisions keep rising when the bucket is
// deleted and re-created. A fencing token is 64 times its revision and stays below 2^53
// until 2060.
func firstSeq(at time.Time) uint64 {
	return uint64(max(at.Sub(epoch)/tick, 1)) // the clock may be set to a time before the epoch
}

// Config describes a bucket: how to find it, and how to create it if it is missing. The
// zero value describes a file-backed bucket named "natslock", to be created if it is
// missing.
type Config struct {
	// Bucket is the bucket's name. It may contain letters, digits, '-' and '_'.
	Bucket string
	// Replicas is the number of servers that store the bucket: 1, 3 or 5. 0 means 3 on a
	// cluster, where locks then survive the loss of a server, and 1 elsewhere. For
	// StreamConfig, which does no I/O, 0 means 1. Replicas is used only if the bucket has
	// to be created.
	Replicas int
	// Storage defaults to file storage. A memory bucket with one replica loses all records
	// when its server restarts, so it is refused unless memory storage is set here.
	Storage jetstream.StorageType
	// MaxBytes limits the size, in bytes, of a bucket that Open creates. 0 means no limit.
	// A full bucket refuses new records and never evicts live ones. On a single server it
	// still accepts a replacement that is no larger than the record it replaces, but a
	// cluster may refuse even that.
	MaxBytes int64
	// Placement determines where a missing bucket is created.
	Placement *jetstream.Placement
	// NoCreate makes Open fail if the bucket is missing, instead of creating it.
	NoCreate bool
	// Logger receives warnings about settings that work but should be changed. If it is
	// nil, they are discarded.
	Logger *slog.Logger
}

func (cfg Config) withDefaults() (Config, error) {
	if cfg.Bucket == "" {
		cfg.Bucket = DefaultBucket
	}
	if len(cfg.Bucket) > maxBucketName {
		return cfg, fmt.Errorf("%w: bucket name %.64q has %d bytes; the limit is %d", ErrInvalidKey, cfg.Bucket, len(cfg.Bucket), maxBucketName)
	}
	for _, c := range cfg.Bucket {
		if !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_", c) {
			return cfg, fmt.Errorf("%w: bucket name %.64q may only contain letters, digits, '-' and '_'", ErrInvalidKey, cfg.Bucket)
		}
	}
	switch {
	case cfg.Replicas < 0 || cfg.Replicas > maxReplicas:
		return cfg, fmt.Errorf("%w: %d replicas: a stream can have 1 to %d; use 1, 3 or 5", ErrInvalidOption, cfg.Replicas, maxReplicas)
	case cfg.MaxBytes < -1:
		return cfg, fmt.Errorf("%w: a limit of %d bytes; use 0 for no limit", ErrInvalidOption, cfg.MaxBytes)
	case cfg.Storage != jetstream.FileStorage && cfg.Storage != jetstream.MemoryStorage:
		return cfg, fmt.Errorf("%w: unknown storage %d: use jetstream.FileStorage or jetstream.MemoryStorage", ErrInvalidOption, cfg.Storage)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return cfg, nil
}

// maxBucketName leaves room for the names of the bucket's streams, which are limited to 255
// bytes. A server closes a connection that sends a much longer name.
const maxBucketName = 240

func streamName(bucket string) string    { return "KV_" + bucket }
func subjectPrefix(bucket string) string { return "$KV." + bucket + "." }

// StreamConfig returns the configuration of the stream that Open would create for cfg, for
// use with declarative tools. Each call generates a new notification ID and a new first
// sequence. StreamConfig does no I/O. The error matches [ErrInvalidKey] if cfg's bucket
// name is invalid.
func (cfg Config) StreamConfig() (jetstream.StreamConfig, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return jetstream.StreamConfig{}, err
	}
	// The ID distinguishes the notifications of two buckets that have the same name in two
	// JetStream domains of one account.
	id := strings.ToLower(rand.Text()[:10])
	maxBytes := cfg.MaxBytes
	if maxBytes == 0 {
		maxBytes = -1
	}
	return jetstream.StreamConfig{
		Name:              streamName(cfg.Bucket),
		Description:       "distributed locks",
		Subjects:          []string{subjectPrefix(cfg.Bucket) + ">"},
		Retention:         jetstream.LimitsPolicy,
		MaxConsumers:      -1,
		MaxMsgs:           -1,
		MaxBytes:          maxBytes,
		MaxMsgsPerSubject: 1,
		MaxMsgSize:        -1,
		Discard:           jetstream.DiscardNew, //safety:discard-new
		Storage:           cfg.Storage,
		Replicas:          cmp.Or(cfg.Replicas, 1),
		Placement:         cfg.Placement,
		DenyDelete:        true,
		DenyPurge:         true,
		AllowDirect:       true,
		AllowMsgTTL:       true,
		// Revisions must keep rising when the bucket is deleted and re-created.
		FirstSeq: firstSeq(time.Now()), //safety:tokens-rise
		RePublish: &jetstream.RePublish{
			Source:      subjectPrefix(cfg.Bucket) + ">",
			Destination: "natslock." + cfg.Bucket + "." + id + ".>",
		},
		Metadata:           map[string]string{metaID: id, metaProtocol: protocol},
		AllowAtomicPublish: true,
	}, nil
}
