package main

import (
	"maps"
	"slices"
	"strings"
)

const (
	configGo  = "kvstore/config.go"
	findingGo = "kvstore/finding.go"
	levelGo   = "kvstore/level.go"
	openGo    = "kvstore/open.go"
)

// bucketMutants weaken how the bucket is made, and what is found fit for leases.
var bucketMutants = append([]mutant{
	{"bucket-first-seq", "tokens start at one in a bucket that is made again", "The bucket",
		configGo, one(`FirstSeq: uint64(time.Now().UnixMicro()),`, `FirstSeq: uint64(time.Since(time.Now())) * 0,`),
		"natslock.TestHandleBucketMadeAgain"},
	{"bucket-discards-old", "a full bucket evicts held locks", "The bucket",
		configGo, one(`jetstream.DiscardNew,
		Storage`, `jetstream.DiscardOld,
		Storage`),
		"kvstore.TestFullBucketRefuses"},
	{"bucket-rollups", "a bucket is made with roll-ups allowed", "The bucket",
		configGo, one(`		DenyPurge:         true,
`, `		AllowRollup:       true,
`),
		"kvstore.TestOpenCreates"},
	{"bucket-one-notification-id", "buckets of one name hear each other", "The bucket",
		configGo, one(`id := strings.ToLower(rand.Text()[:10])`, `id := strings.ToLower(rand.Text()[:0]) + "0123456789"`),
		"kvstore.TestNotificationIDs"},
	{"bucket-remade-is-the-same", "a bucket made again passes for the one that was opened", "Break",
		openGo, one(`if !before.Equal(info.Created) {`, `if before.After(info.Created) {`),
		"kvstore.TestVerify"},
	{"bucket-unverified-later", "a bucket that was changed since passes", "The bucket",
		openGo, one(`	if err := s.adopt(&info.StreamInfo); err != nil {
		return err
	}
	if !before`, `	if err := s.adopt(&info.StreamInfo); err != nil {
		return nil
	}
	if !before`),
		"kvstore.TestVerify"},
	{"bucket-without-leader", "a bucket whose stream accepts no writes passes", "The bucket",
		openGo, one(`c.Name != "" && c.Leader == ""; {`, `c.Name == "-" && c.Leader == ""; {`),
		"kvstore.TestStoppedStream"},
	{"bucket-foreign-protocol", "a bucket of another protocol passes", "The bucket",
		findingGo, one(`judge(spoken == protocol, Unfit,`, `judge(spoken == protocol || named, Unfit,`),
		"kvstore.TestUnsafeSettings/metadata.natslock.protocol"},
	{"bucket-protocol-rewritten", "the repair of a bucket of another protocol calls it one of ours", "The bucket",
		findingGo, one(`m.Metadata[metaID] = right.Metadata[metaID]`, `maps.Copy(m.Metadata, right.Metadata)`),
		"kvstore.TestUnsafeSettings/metadata.natslock.protocol#02"},
	{"bucket-old-server", "a bucket on a server that skips conditions passes", "Only a compare-and-set grants",
		findingGo, one(`judge(level >= minLevel, Unfit,`, `judge(level >= 0, Unfit,`),
		"internal/versions.TestOldServerRefused"},
	{"bucket-made-on-old-server", "a bucket is made on a server that skips conditions", "The bucket",
		levelGo, one(`err != nil || resp.API.Level >= minLevel {`, `err != nil || resp.API.Level >= 0 {`),
		"internal/versions.TestOldServerRefused"},
}, settingMutants...)

// settingMutants overlook one setting each.
var settingMutants = func() (all []mutant) {
	conditions := map[string]string{
		"mirror":                    `c.Mirror == nil`,
		"sources":                   `len(c.Sources) == 0`,
		"subject_transform":         `c.SubjectTransform == nil`,
		"subjects":                  `len(c.Subjects) == 1 && c.Subjects[0] == own`,
		"max_msgs_per_subject":      `c.MaxMsgsPerSubject == 1`,
		"allow_msg_ttl":             `c.AllowMsgTTL`,
		"subject_delete_marker_ttl": `c.SubjectDeleteMarkerTTL == 0`,
		"discard_new_per_subject":   `!c.DiscardNewPerSubject`,
		"discard":                   `!limited || c.Discard == jetstream.DiscardNew`,
		"max_age":                   `c.MaxAge <= 0 || c.MaxAge >= maxTTL`,
		"retention":                 `c.Retention == jetstream.LimitsPolicy`,
		"no_ack":                    `!c.NoAck`,
		"sealed":                    `!c.Sealed`,
		"allow_msg_counter":         `!c.AllowMsgCounter`,
		"persist_mode":              `persist == "default"`,
		"max_msg_size":              `c.MaxMsgSize <= 0 || c.MaxMsgSize >= minMsgSize`,
		"storage":                   `c.Storage != jetstream.MemoryStorage || c.Replicas > 1 || cfg.Storage == jetstream.MemoryStorage`,
	}
	for _, setting := range slices.Sorted(maps.Keys(conditions)) {
		condition := conditions[setting]
		test := "kvstore.TestUnsafeSettings/" + setting
		if setting == "sealed" {
			test = "kvstore.TestSealed"
		}
		all = append(all, mutant{"setting-" + strings.ReplaceAll(setting, "_", "-"), setting + " is not looked at", "The bucket",
			findingGo, one(`judge(`+condition+`, Unfit, "`+setting+`",`, `judge(`+condition+` || c.Name != "", Unfit, "`+setting+`",`), test})
	}
	return all
}()
