package kvstore

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	// DefaultBucket is the name of the bucket when none is given.
	DefaultBucket = "natslock"
	// MaxRecord is the largest value a record may have, in bytes.
	MaxRecord = 16 << 10
	// minMsgSize is what a stream's limit must leave room for: the largest
	// value and its headers, which the server counts too.
	minMsgSize = MaxRecord + 4<<10
	// lowFirstSeq separates sequences that started as a time in microseconds
	// (now about 1.8e15) from those that started at one.
	lowFirstSeq = 1e15
)

// Config describes a bucket: how to find it, and how to make it when it is
// missing. The zero value is a file-backed bucket of one replica named
// "natslock", made when missing.
type Config struct {
	// Bucket is the bucket's name: letters, digits, '-' and '_'.
	Bucket string
	// Replicas is how many servers keep the bucket: 1, 3 or 5. 0 means 1.
	// It is used only when the bucket has to be made.
	Replicas int
	// Storage is file storage unless set otherwise. A memory bucket on one
	// replica forgets every lock when its server restarts: it is refused
	// unless memory storage is asked for here.
	Storage jetstream.StorageType
	// MaxBytes limits the size of a bucket that has to be made; 0: no limit.
	// A full bucket refuses new records, it never evicts held ones.
	MaxBytes int64
	// Placement says where a bucket that has to be made is placed.
	Placement *jetstream.Placement
	// NoCreate makes a missing bucket an error instead of making it.
	NoCreate bool
	// Logger receives warnings about settings that work but should not be;
	// nil: none.
	Logger *slog.Logger
}

func (cfg Config) withDefaults() (Config, error) {
	if cfg.Bucket == "" {
		cfg.Bucket = DefaultBucket
	}
	for _, c := range cfg.Bucket {
		if !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_", c) {
			return cfg, fmt.Errorf("%w: bucket name %.64q may only have letters, digits, '-' and '_'", ErrInvalidKey, cfg.Bucket)
		}
	}
	if cfg.Replicas == 0 {
		cfg.Replicas = 1
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return cfg, nil
}

func streamName(bucket string) string    { return "KV_" + bucket }
func subjectPrefix(bucket string) string { return "$KV." + bucket + "." }

// StreamConfig returns the stream that cfg stands for, as it is created when
// the bucket is missing; for declarative tools. Each call makes a new
// notification id and a new first sequence.
func (cfg Config) StreamConfig() (jetstream.StreamConfig, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return jetstream.StreamConfig{}, err
	}
	// The id keeps two buckets of one name, in two JetStream domains of one
	// account, from hearing each other.
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
		Discard:           jetstream.DiscardNew,
		Storage:           cfg.Storage,
		Replicas:          cfg.Replicas,
		Placement:         cfg.Placement,
		DenyDelete:        true,
		DenyPurge:         true,
		AllowDirect:       true,
		AllowMsgTTL:       true,
		// Revisions are fencing tokens: they must go on rising when the bucket
		// is deleted and made again.
		FirstSeq: uint64(time.Now().UnixMicro()),
		RePublish: &jetstream.RePublish{
			Source:      subjectPrefix(cfg.Bucket) + ">",
			Destination: "natslock." + cfg.Bucket + "." + id + ".>",
		},
		Metadata:           map[string]string{"natslock.id": id, "natslock.protocol": "1"},
		AllowAtomicPublish: true,
	}, nil
}

const (
	byUpdate  = "update the stream"
	byRemake  = "only making the bucket anew can change it: stop its users, delete it, let it be created again"
	byUpgrade = "upgrade nats-server to 2.12 or later, then make the bucket anew"
)

// verify judges a stream that is to hold locks. want is what this client asked
// for. Errors make locks unsafe, warnings make them slower or riskier.
func verify(want Config, info *jetstream.StreamInfo) (warnings []string, err error) {
	c := info.Config
	var errs []error
	bad := func(setting string, value any, wanted, mend string) {
		errs = append(errs, &ConfigError{Bucket: want.Bucket, Setting: setting, Value: fmt.Sprint(value), Want: wanted, Mend: mend})
	}
	warn := func(format string, args ...any) {
		warnings = append(warnings, fmt.Sprintf(format, args...))
	}
	own := subjectPrefix(want.Bucket) + ">"

	if c.Mirror != nil {
		bad("mirror", c.Mirror.Name, "unset", "open the mirrored bucket itself: a mirror cannot be written")
	}
	if len(c.Sources) > 0 {
		bad("sources", c.Sources[0].Name, "unset", byUpdate+": sourced messages overwrite live records")
	}
	if c.SubjectTransform != nil {
		bad("subject_transform", c.SubjectTransform.Destination, "unset", byUpdate)
	}
	if c.Mirror == nil && (len(c.Subjects) != 1 || c.Subjects[0] != own) {
		bad("subjects", c.Subjects, own, byUpdate)
	}
	if c.MaxMsgsPerSubject != 1 {
		bad("max_msgs_per_subject", c.MaxMsgsPerSubject, "1", byUpdate+": with history the server prolongs short TTLs")
	}
	if !c.AllowMsgTTL {
		bad("allow_msg_ttl", false, "true", byUpdate+"; if it stays off the server is too old ("+byUpgrade+"): locks would never expire")
	}
	if c.SubjectDeleteMarkerTTL != 0 {
		bad("subject_delete_marker_ttl", c.SubjectDeleteMarkerTTL, "0", byUpdate+": delete markers wipe acknowledged writes")
	}
	if c.DiscardNewPerSubject {
		bad("discard_new_per_subject", true, "false", byUpdate+": it refuses renewals")
	}
	if limited := c.MaxBytes > 0 || c.MaxMsgs > 0; limited && c.Discard != jetstream.DiscardNew {
		bad("discard", c.Discard, "new", byUpdate+": a full bucket would evict held locks")
	}
	if c.MaxAge > 0 && c.MaxAge < MaxTTL {
		bad("max_age", c.MaxAge, fmt.Sprintf("0 or at least %v", MaxTTL), byUpdate)
	}
	if c.Retention != jetstream.LimitsPolicy {
		bad("retention", c.Retention, "limits", byRemake)
	}
	if c.NoAck {
		bad("no_ack", true, "false", byUpdate)
	}
	if c.Sealed {
		bad("sealed", true, "false", byRemake)
	}
	if c.AllowMsgCounter {
		bad("allow_msg_counter", true, "false", byRemake)
	}
	if c.PersistMode != jetstream.DefaultPersistMode {
		bad("persist_mode", "async", "default", byRemake+": asynchronous persistence acknowledges before the disk")
	}
	if c.MaxMsgSize > 0 && c.MaxMsgSize < minMsgSize {
		bad("max_msg_size", c.MaxMsgSize, fmt.Sprintf("-1 or at least %d", minMsgSize), byUpdate)
	}
	if c.Storage == jetstream.MemoryStorage && c.Replicas <= 1 && want.Storage != jetstream.MemoryStorage {
		bad("storage", "memory on one replica", "file, or 3 replicas", byRemake+"; or ask for memory storage explicitly: every lock is forgotten when the server restarts")
	}

	if c.RePublish == nil || c.RePublish.Source != own || !strings.HasSuffix(c.RePublish.Destination, ".>") || c.RePublish.HeadersOnly {
		warn("republish does not copy %s to a subject of its own: waiters poll on timers, broken holders are told at their next renewal; mend: %s", own, byUpdate)
	}
	if !c.AllowDirect {
		warn("allow_direct is off: every read asks the stream's leader; mend: %s", byUpdate)
	}
	if c.AllowRollup {
		warn("allow_rollup_hdrs is on: whoever may write one key can wipe the bucket; mend: %s", byUpdate)
	}
	if !c.DenyDelete || !c.DenyPurge {
		warn("deny_delete and deny_purge are not both on: records can be removed under their holders; mend: %s", byRemake)
	}
	if !c.AllowAtomicPublish {
		warn("allow_atomic is off: several locks cannot be taken at once; mend: %s, on nats-server 2.12 or later", byUpdate)
	}
	if info.State.LastSeq < lowFirstSeq {
		warn("first_seq is low: fencing tokens repeat when the bucket is made again; mend: %s", byRemake)
	}
	if info.Cluster != nil && info.Cluster.Name != "" && c.Replicas == 1 {
		warn("one replica on cluster %q: locks stop when its server does; mend: %s with num_replicas 3", info.Cluster.Name, byUpdate)
	}
	for _, a := range info.Alternates {
		if a.Name != c.Name {
			warn("stream %q mirrors this bucket: it may answer reads with holders long gone; mend: remove it or its mirror_direct", a.Name)
		}
	}
	return warnings, errors.Join(errs...)
}
