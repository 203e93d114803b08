package kvstore

import (
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
)

// Level is the severity of a [Finding].
type Level int

const (
	// Fine: the setting is as it should be.
	Fine Level = iota
	// Worse: the bucket is safe, and slower, riskier or less private than need be.
	Worse
	// Unfit: the bucket is not safe. [Open] refuses it.
	Unfit
)

// Finding is the verdict on one setting of a bucket.
type Finding struct {
	Level   Level
	Setting string // the stream's setting, by its JSON name, or "nats-server"
	Value   string // the present value
	Want    string // the recommended or required value
	// The consequence of the value, and its repair. Both are empty if the setting is
	// as it should be. Operators read them, so they name locks.
	Why, Repair string
	// Update says that an update of the stream repairs it; see [Repaired].
	Update bool
	// Remake says that no update can repair it. The bucket has to be deleted and
	// re-created, which ends every record in it.
	Remake bool
}

// warning is the finding in a sentence.
func (f Finding) warning() string {
	return fmt.Sprintf("%s is %s, should be %s: %s; repair: %s", f.Setting, f.Value, f.Want, f.Why, f.Repair)
}

const (
	byUpdate  = "update the stream"
	byRemake  = "only re-creating the bucket can change it: stop its users, delete it, let a client create it"
	byRelease = "use a release of this program that knows the bucket's protocol, or another bucket"
	byRecords = byRemake + "; or use another bucket"
	byUpgrade = "upgrade nats-server to " + MinServer + " or later, then re-create the bucket"
)

// Examine judges every setting of a stream that is to be a bucket, in a fixed order. The
// result includes the settings that are right. info is the answer of a server, and names
// the version of the server that leads the stream. Of cfg it uses Bucket, and Storage: a
// memory bucket on one replica is right only if cfg asks for it. Examine does no I/O.
// The error matches [ErrInvalidKey] if the bucket name in cfg is not valid.
func Examine(cfg Config, info *jetstream.StreamInfo) ([]Finding, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	c := info.Config
	own := subjectPrefix(cfg.Bucket) + ">"
	var all []Finding
	judge := func(ok bool, bad Level, setting string, value any, want, why, repair string) *Finding {
		f := Finding{Setting: setting, Value: fmt.Sprint(value), Want: want}
		if !ok {
			f.Level, f.Why, f.Repair = bad, why, repair
			f.Update, f.Remake = strings.HasPrefix(repair, byUpdate), strings.HasPrefix(repair, byRemake)
		}
		all = append(all, f)
		return &all[len(all)-1]
	}

	level, server := serverOf(c.Metadata)
	judge(level >= minLevel, Unfit, serverSetting, server, MinServer+" or later", //safety:server-level
		"older servers skip the conditions of writes, so that two hold a lock", byServer)
	spoken, named := c.Metadata[metaProtocol]
	value, repair := fmt.Sprintf("%.32q", spoken), byRelease
	if !named { // and no update changes records
		value, repair = "unset", byRecords
	}
	judge(spoken == protocol, Unfit, "metadata."+metaProtocol, value, strconv.Quote(protocol), //safety:protocol
		"clients of different protocols do not exclude each other", repair)

	mirror, sources, transform := "unset", "unset", "unset"
	if c.Mirror != nil {
		mirror = c.Mirror.Name
	}
	if len(c.Sources) > 0 {
		sources = c.Sources[0].Name
	}
	if c.SubjectTransform != nil {
		transform = c.SubjectTransform.Destination
	}
	judge(c.Mirror == nil, Unfit, "mirror", mirror, "unset", "a mirror cannot be written", "open the mirrored bucket itself")
	judge(len(c.Sources) == 0, Unfit, "sources", sources, "unset", "sourced messages overwrite live records", byUpdate)
	judge(c.SubjectTransform == nil, Unfit, "subject_transform", transform, "unset", "records end up under other keys", byUpdate)
	if c.Mirror == nil {
		judge(len(c.Subjects) == 1 && c.Subjects[0] == own, Unfit, "subjects", c.Subjects, own, "records are missed, or others' messages taken for records", byUpdate)
	}
	judge(c.MaxMsgsPerSubject == 1, Unfit, "max_msgs_per_subject", c.MaxMsgsPerSubject, "1", //safety:one-record
		"with history the server prolongs short TTLs", byUpdate)
	judge(c.AllowMsgTTL, Unfit, "allow_msg_ttl", c.AllowMsgTTL, "true", "locks would never expire", //safety:ttl-allowed
		byUpdate+"; if it stays off the server is too old ("+byUpgrade+")")
	judge(c.SubjectDeleteMarkerTTL == 0, Unfit, "subject_delete_marker_ttl", c.SubjectDeleteMarkerTTL, "0", //safety:no-markers
		"delete markers wipe acknowledged writes", byUpdate)
	judge(!c.DiscardNewPerSubject, Unfit, "discard_new_per_subject", c.DiscardNewPerSubject, "false", "it refuses renewals", byUpdate)
	limited := c.MaxBytes > 0 || c.MaxMsgs > 0
	judge(!limited || c.Discard == jetstream.DiscardNew, Unfit, "discard", //safety:no-eviction
		strings.ToLower(strings.TrimPrefix(c.Discard.String(), "Discard")), "new",
		"a full bucket would evict held locks", byUpdate)
	judge(c.MaxAge <= 0 || c.MaxAge >= maxTTL, Unfit, "max_age", c.MaxAge, fmt.Sprintf("0 or at least %v", maxTTL), "long leases end early", byUpdate)
	retention := byUpdate
	if c.Retention == jetstream.WorkQueuePolicy {
		retention = byRemake
	}
	judge(c.Retention == jetstream.LimitsPolicy, Unfit, "retention", strings.ToLower(c.Retention.String()), "limits", "records vanish when a consumer has read them", retention)
	judge(!c.NoAck, Unfit, "no_ack", c.NoAck, "false", "no write is ever confirmed", byUpdate)
	judge(!c.Sealed, Unfit, "sealed", c.Sealed, "false", "nothing can be written", byRemake)
	judge(!c.AllowMsgCounter, Unfit, "allow_msg_counter", c.AllowMsgCounter, "false", "it refuses plain records", byRemake)
	persist := "default"
	if c.PersistMode != jetstream.DefaultPersistMode {
		persist = "async"
	}
	judge(persist == "default", Unfit, "persist_mode", persist, "default", "asynchronous persistence acknowledges before the disk", byRemake)
	judge(c.MaxMsgSize <= 0 || c.MaxMsgSize >= minMsgSize, Unfit, "max_msg_size", c.MaxMsgSize, fmt.Sprintf("-1 or at least %d", minMsgSize), "long records are refused", byUpdate)
	storage := strings.ToLower(c.Storage.String())
	if c.Storage == jetstream.MemoryStorage && c.Replicas <= 1 {
		storage += " on one replica"
	}
	judge(c.Storage != jetstream.MemoryStorage || c.Replicas > 1 || cfg.Storage == jetstream.MemoryStorage, Unfit, "storage", storage, //safety:survives-restart
		"file, or 3 replicas",
		"every lock is forgotten when the server restarts", byRemake+"; or ask for memory storage explicitly")

	republish := "unset"
	if c.RePublish != nil {
		republish = c.RePublish.Source + " to " + c.RePublish.Destination
		if c.RePublish.HeadersOnly {
			republish += ", headers only"
		}
	}
	judge(notifies(c, own) != "", Worse, "republish", republish, own+" to a subject of its own",
		"waiters poll on timers, and a broken holder learns of it at its next renewal", byUpdate)
	judge(c.AllowDirect, Worse, "allow_direct", c.AllowDirect, "true", "every read asks the stream's leader", byUpdate)
	rollup := byUpdate
	if c.AllowMsgSchedules {
		rollup = byRemake // the server turns it on with them, and purges too
	}
	judge(!c.AllowRollup, Worse, "allow_rollup_hdrs", c.AllowRollup, "false", "every user that may write one key can wipe the bucket", rollup)
	judge(!c.AllowMsgSchedules, Worse, "allow_msg_schedules", c.AllowMsgSchedules, "false", "every user that may write one key can make the server write others", byRemake)
	judge(c.DenyDelete, Worse, "deny_delete", c.DenyDelete, "true", "records can be removed under their holders", byUpdate)
	judge(c.DenyPurge, Worse, "deny_purge", c.DenyPurge, "true", "records can be removed under their holders", rollup)
	judge(c.AllowAtomicPublish, Worse, "allow_atomic", c.AllowAtomicPublish, "true", "a later version cannot write several records in one step", byUpdate)
	// The server echoes the request, so what counts is where it is.
	judge(info.State.LastSeq >= lowFirstSeq, Worse, "first_seq", info.State.LastSeq, "the time in ten-microsecond ticks since 2016", "fencing tokens repeat when the bucket is re-created", byRemake)
	clustered := info.Cluster != nil && info.Cluster.Name != ""
	replicas := judge(!clustered || c.Replicas > 1, Worse, "num_replicas", c.Replicas, "3 or 5 on a cluster", "locks stop when its server does", byUpdate+" with num_replicas 3")
	if clustered && c.Replicas == 1 {
		replicas.Value = fmt.Sprintf("one replica on cluster %q", info.Cluster.Name)
	}
	for _, a := range info.Alternates {
		if a.Name != c.Name {
			judge(false, Worse, "alternates", fmt.Sprintf("stream %q mirrors this bucket", a.Name), "none", "it may answer reads with holders long gone", "remove it or its mirror_direct")
		}
	}
	return all, nil
}

// notifies returns the prefix of the subjects to which the stream copies its keys, with
// a dot. It is "" for a stream that copies none.
func notifies(c jetstream.StreamConfig, own string) string {
	rp := c.RePublish
	if rp == nil || rp.HeadersOnly || rp.Source != own || !strings.HasSuffix(rp.Destination, ".>") {
		return ""
	}
	return strings.TrimSuffix(rp.Destination, ">")
}

// verify says whether a stream can be a bucket. want is what this client wants
// for. Errors make it unsafe, warnings make it slower or riskier.
func verify(want Config, info *jetstream.StreamInfo) (warnings []string, err error) {
	findings, err := Examine(want, info)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, f := range findings {
		switch f.Level {
		case Worse:
			warnings = append(warnings, f.warning())
		case Unfit:
			errs = append(errs, &ConfigError{ //safety:unfit
				Bucket: want.Bucket, Setting: f.Setting, Value: f.Value, Want: f.Want, Repair: f.Repair + ": " + f.Why,
			})
		}
	}
	return warnings, errors.Join(errs...)
}

// Repaired returns the configuration c of a bucket's stream, with every setting
// repaired that an update of the stream can repair. It also sets Replicas, MaxBytes and
// Placement to the values of cfg, where cfg has them. [Examine] reports the settings
// that are left. The error matches [ErrInvalidKey] if the bucket name in cfg is not
// valid.
//
// If the bucket would still be unfit, it has to be re-created, and the result is c
// unchanged. So it is if nothing is wrong. The method does no I/O.
func Repaired(cfg Config, c jetstream.StreamConfig) (jetstream.StreamConfig, error) {
	right, err := cfg.StreamConfig()
	if err != nil {
		return c, err
	}
	m := c
	m.Sources, m.SubjectTransform = nil, nil
	m.Subjects = right.Subjects
	m.MaxMsgsPerSubject = right.MaxMsgsPerSubject
	m.AllowMsgTTL = true
	m.SubjectDeleteMarkerTTL = 0
	m.DiscardNewPerSubject = false
	if m.MaxAge < maxTTL {
		m.MaxAge = 0
	}
	if m.Retention == jetstream.InterestPolicy {
		m.Retention = jetstream.LimitsPolicy
	}
	m.NoAck = false
	if m.MaxMsgSize > 0 && m.MaxMsgSize < minMsgSize {
		m.MaxMsgSize = -1
	}
	m.AllowDirect, m.DenyDelete, m.AllowAtomicPublish = true, true, true
	if !m.AllowMsgSchedules {
		m.AllowRollup, m.DenyPurge = false, true
	}
	if notifies(m, right.RePublish.Source) == "" {
		m.RePublish = right.RePublish
		m.Metadata = maps.Clone(c.Metadata)
		if m.Metadata == nil {
			m.Metadata = map[string]string{}
		}
		m.Metadata[metaID] = right.Metadata[metaID]
	}
	if cfg.Replicas > 0 {
		m.Replicas = cfg.Replicas
	}
	if cfg.MaxBytes > 0 {
		m.MaxBytes = cfg.MaxBytes
	}
	if m.MaxBytes > 0 || m.MaxMsgs > 0 {
		m.Discard = jetstream.DiscardNew
	}
	if cfg.Placement != nil {
		m.Placement = cfg.Placement
	}
	left, err := Examine(cfg, &jetstream.StreamInfo{Config: m})
	for _, f := range left {
		// A configuration that no server has answered with names no server.
		if f.Level == Unfit && (f.Setting != serverSetting || m.Metadata[metaLevel] != "") {
			return c, err
		}
	}
	return m, err
}
