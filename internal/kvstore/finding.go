package kvstore

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/internal/plain"
)

// Level is the severity of a [Finding].
type Level int

const (
	// Fine means that the setting is as it should be.
	Fine Level = iota
	// Worse means that the bucket is safe, but slower, riskier or less private than
	// necessary.
	Worse
	// Unfit means that the bucket is unsafe. [Open] refuses it.
	Unfit
)

// Finding is the verdict on one setting of a bucket.
type Finding struct {
	Level   Level
	Setting string // JSON name of the stream's setting, or "nats-server"
	Value   string // the current value
	Want    string // the recommended or required value
	// Why explains the consequence of the value, and Repair gives the remedy. Both are
	// empty if the setting is as it should be. They are written for operators, so they talk
	// about locks.
	Why, Repair string
	// Update reports whether updating the stream repairs the setting; see [Repaired].
	Update bool
	// Remake reports whether no update can repair the setting, so that the bucket has to be
	// deleted and re-created, losing every record in it.
	Remake bool
}

// warning describes the finding in a sentence.
func (f Finding) warning() string {
	return fmt.Sprintf("%s is %s, should be %s: %s; repair: %s", f.Setting, f.Value, f.Want, f.Why, f.Repair)
}

const (
	byUpdate  = "update the stream"
	byRemake  = "only re-creating the bucket can change it: stop its users, delete it and let a client create it"
	byRelease = "use a release of this program that knows the bucket's protocol, or another bucket"
	byRecords = byRemake + "; or use another bucket"
	byOwner   = byRemake + ", as described in docs/operate/upgrading.md, section 2 to 3; or use another bucket"
	byUpgrade = "upgrade nats-server to " + MinServer + " or later, then re-create the bucket"
)

// rule is the requirement for one setting.
type rule struct {
	setting string
	bad     Level // severity if the value does not fit
	// right is the value that a repair sets, or nil if the repair removes the setting. If
	// other values fit too, fits accepts them and want describes them.
	right any
	fits  func(value any) bool
	want  string
	is    string // describes the value, if the setting alone does not
	// See [Finding].
	why, repair string
}

// free lists the settings that can have any value. Every other setting has a rule.
var free = []string{"name", "description", "metadata", "placement", "max_msgs", "max_bytes", "max_consumers", "consumer_limits",
	"duplicate_window", "compression", "mirror_direct", "template_owner"}

// rules returns the requirements for the settings of cfg's bucket. If an Unfit rule is
// violated, two clients could hold the same lock, or no client could ever get one. A
// violated Worse rule only causes a warning.
func rules(cfg Config, info *Info, s Settings) []rule {
	own := subjectPrefix(cfg.Bucket) + ">"
	level, server := serverOf(info.Config.Metadata)
	spoken, named := info.Config.Metadata[metaProtocol]
	is, remedy := fmt.Sprintf("%.32q", spoken), byRelease
	switch { // updating the stream does not change its records
	case !named:
		is, remedy = "unset", byRecords
	case spoken == "1" || spoken == "2":
		remedy = byOwner
	}
	limited := !off(s["max_msgs"]) || !off(s["max_bytes"])
	single := info.Config.Replicas <= 1
	storage := text("storage", s["storage"])
	if storage == "memory" && single {
		storage += " on one replica"
	}
	retention, rollup := byUpdate, byUpdate
	if s["retention"] == "workqueue" {
		retention = byRemake
	}
	if !off(s["allow_msg_schedules"]) {
		rollup = byRemake // schedules make the server allow rollups and purges too
	}
	clustered, replicas := info.Cluster != nil && info.Cluster.Name != "", ""
	if clustered && single {
		replicas = fmt.Sprintf("one replica on cluster %q", info.Cluster.Name)
	}
	return []rule{
		{setting: serverSetting, bad: Unfit, is: server, fits: func(any) bool { return level >= minLevel }, want: MinServer + " or later", //safety:server-level
			why: "older servers ignore the conditions of writes, so two clients can hold the same lock", repair: byServer},
		{setting: "metadata." + metaProtocol, bad: Unfit, is: is, fits: func(any) bool { return spoken == protocol }, want: strconv.Quote(protocol), //safety:protocol
			why: "clients of different protocols do not exclude each other", repair: remedy},
		{setting: "mirror", bad: Unfit, why: "a mirror cannot be written to", repair: "open the mirrored bucket itself"},
		{setting: "sources", bad: Unfit, why: "sourced messages overwrite live records", repair: byUpdate},
		{setting: "subject_transform", bad: Unfit, why: "records end up under other keys", repair: byUpdate},
		{setting: "subjects", bad: Unfit, right: []string{own}, why: "records are missed, or other messages are taken for records", repair: byUpdate},
		{setting: "max_msgs_per_subject", bad: Unfit, right: 1, why: "with history, the server prolongs short TTLs", repair: byUpdate}, //safety:one-record
		{setting: "allow_msg_ttl", bad: Unfit, right: true, why: "locks would never expire", //safety:ttl-allowed
			repair: byUpdate + "; if it stays off, the server is too old (" + byUpgrade + ")"},
		{setting: "subject_delete_marker_ttl", bad: Unfit, why: "delete markers wipe acknowledged writes", repair: byUpdate}, //safety:no-markers
		{setting: "discard_new_per_subject", bad: Unfit, why: "renewals are refused", repair: byUpdate},
		{setting: "discard", bad: Unfit, right: "new", fits: func(v any) bool { return v == "new" || !limited }, //safety:no-eviction
			why: "a full bucket would evict held locks", repair: byUpdate},
		{setting: "max_age", bad: Unfit, right: 0, fits: atLeast(int64(maxTTL)), want: fmt.Sprintf("0 or at least %v", maxTTL), why: "long leases end early", repair: byUpdate},
		{setting: "retention", bad: Unfit, right: "limits", why: "records vanish once a consumer has read them", repair: retention},
		{setting: "no_ack", bad: Unfit, why: "no write is ever confirmed", repair: byUpdate},
		{setting: "sealed", bad: Unfit, why: "nothing can be written", repair: byRemake},
		{setting: "allow_msg_counter", bad: Unfit, why: "plain records are refused", repair: byRemake},
		{setting: "persist_mode", bad: Unfit, fits: func(v any) bool { return v == "default" || off(v) }, want: "default",
			why: "asynchronous persistence acknowledges writes before they reach the disk", repair: byRemake},
		{setting: "storage", bad: Unfit, is: storage, want: "file, or 3 replicas", //safety:survives-restart
			fits: func(v any) bool {
				return v == "file" || v == "memory" && (!single || cfg.Storage == jetstream.MemoryStorage)
			},
			why: "all locks are lost when the server restarts", repair: byRemake + "; or request memory storage explicitly"},

		{setting: "max_msg_size", bad: Worse, right: -1, fits: atLeast(minMsgSize), want: fmt.Sprintf("-1 or at least %d", minMsgSize),
			why: "long records are refused", repair: byUpdate},
		{setting: "republish", bad: Worse, fits: func(any) bool { return notifies(info.Config.RePublish, own) != "" }, want: own + " to a subject of its own",
			why: "waiters poll on timers, and a holder learns of a break only at its next renewal", repair: byUpdate},
		{setting: "allow_direct", bad: Worse, right: true, why: "every read goes to the stream's leader", repair: byUpdate},
		{setting: "allow_rollup_hdrs", bad: Worse, why: "every user that may write one key can wipe the bucket", repair: rollup},
		{setting: "allow_msg_schedules", bad: Worse, why: "every user that may write one key can make the server write others", repair: byRemake},
		{setting: "deny_delete", bad: Worse, right: true, why: "records can be removed under their holders", repair: byUpdate},
		{setting: "deny_purge", bad: Worse, right: true, why: "records can be removed under their holders", repair: rollup},
		{setting: "allow_atomic", bad: Worse, right: true, why: "a later version cannot write several records in one step", repair: byUpdate},
		// The server echoes the requested value, so check the actual sequence instead.
		{setting: "first_seq", bad: Worse, is: strconv.FormatUint(info.State.LastSeq, 10), fits: func(any) bool { return info.State.LastSeq >= lowFirstSeq },
			want: "the time in ten-microsecond ticks since 2016", why: "fencing tokens repeat when the bucket is re-created", repair: byRemake},
		{setting: "num_replicas", bad: Worse, right: 3, is: replicas, fits: func(any) bool { return !clustered || !single },
			want: "3 or 5 on a cluster", why: "locking stops when its server does", repair: byUpdate},
	}
}

// judge applies the rule to a value.
func (r rule) judge(value any) Finding {
	f := Finding{Setting: r.setting, Value: cmp.Or(r.is, text(r.setting, value)), Want: cmp.Or(r.want, text(r.setting, r.right))}
	if r.fits == nil && same(value, r.right) || r.fits != nil && r.fits(value) {
		return f
	}
	f.Level, f.Why, f.Repair = r.bad, r.why, r.repair
	f.Update, f.Remake = strings.HasPrefix(r.repair, byUpdate), strings.HasPrefix(r.repair, byRemake)
	return f
}

// Examine judges every setting of a stream that is to serve as a bucket, in a fixed order.
// The findings include settings that are fine, and settings that are set but unknown to
// this package. info is a server's response, so it names the version of the server that
// leads the stream. Examine uses only Bucket and Storage from cfg: a memory bucket with one
// replica is acceptable only if cfg asks for it. Examine does no I/O. The error matches
// [ErrInvalidKey] if cfg's bucket name is invalid.
func Examine(cfg Config, info *Info) ([]Finding, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	s, err := info.Settings()
	if err != nil {
		return nil, err
	}
	var all []Finding
	known := slices.Clone(free)
	for _, r := range rules(cfg, info, s) {
		all = append(all, r.judge(s[r.setting]))
		known = append(known, r.setting)
	}
	for _, name := range slices.Sorted(maps.Keys(s)) {
		// During a rolling upgrade, servers report settings that this package does not know
		// yet. That must not stop the clients.
		if !slices.Contains(known, name) && !off(s[name]) {
			all = append(all, rule{setting: name, bad: Worse, why: "unknown setting; locks may not be safe with it",
				repair: "unset it, or use a release of this program that knows it"}.judge(s[name]))
		}
	}
	for _, a := range info.Alternates {
		if a.Name != s["name"] {
			all = append(all, rule{setting: "alternates", bad: Worse, want: "none", why: "it may answer reads with holders that have long since ended",
				repair: "remove the mirror or its mirror_direct"}.judge(fmt.Sprintf("stream %q mirrors this bucket", a.Name)))
		}
	}
	return all, nil
}

// notifies returns the prefix of the subjects on which a stream republishes its keys,
// including the trailing dot, or "" if it does not republish them.
func notifies(rp *jetstream.RePublish, own string) string {
	if rp == nil || rp.HeadersOnly || rp.Source != own || !strings.HasSuffix(rp.Destination, ".>") {
		return ""
	}
	return strings.TrimSuffix(rp.Destination, ">")
}

// verify reports whether a stream can serve as the bucket that want describes. An error
// means that it is unsafe, and warnings mean that it is slower or riskier than necessary.
func verify(want Config, info *Info) (warnings []string, err error) {
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
	return warnings, plain.Join(errs...)
}

// Repaired returns the bucket's stream info with every setting corrected that updating the
// stream can correct. It also applies Replicas, MaxBytes and Placement from cfg, if they
// are set. Pass the result to [Examine] to find the problems that remain. The error matches
// [ErrInvalidKey] if cfg's bucket name is invalid.
//
// Repaired returns info unchanged if nothing is wrong, or if the bucket would remain unfit
// and therefore has to be re-created. It does no I/O.
func Repaired(cfg Config, info *Info) (*Info, error) {
	right, err := cfg.StreamConfig()
	if err != nil {
		return nil, err
	}
	if cfg, err = cfg.withDefaults(); err != nil {
		return nil, err
	}
	m, err := info.Settings()
	if err != nil {
		return nil, err
	}
	set := func(name string, value any, wanted bool) {
		if wanted {
			m[name] = value
		}
	}
	set("num_replicas", cfg.Replicas, cfg.Replicas > 0)
	set("max_bytes", cfg.MaxBytes, cfg.MaxBytes != 0)
	set("placement", cfg.Placement, cfg.Placement != nil)
	plain := &Info{}
	if plain.Raw, err = json.Marshal(m); err == nil {
		m, err = plain.Settings()
	}
	if err != nil {
		return nil, err
	}
	plain.State.LastSeq, plain.Cluster = lowFirstSeq, info.Cluster // an update cannot change these
	for _, r := range rules(cfg, plain, m) {
		switch f := r.judge(m[r.setting]); {
		case f.Level == Fine, r.setting == "num_replicas" && cfg.Replicas > 0: // as requested
		case r.setting == "republish":
			m[r.setting] = right.RePublish
			metadata, _ := m["metadata"].(map[string]any)
			if metadata == nil {
				metadata = map[string]any{}
			}
			metadata[metaID] = right.Metadata[metaID]
			m["metadata"] = metadata
		case f.Update && r.right == nil:
			delete(m, r.setting)
		case f.Update:
			m[r.setting] = r.right
		case f.Level == Unfit:
			// Only a configuration that comes from a server states the server's level.
			if r.setting != serverSetting || plain.Config.Metadata[metaLevel] != "" {
				return info, nil
			}
		}
	}
	after := *info
	if after.Raw, err = json.Marshal(m); err != nil {
		return nil, err
	}
	return &after, after.read()
}
