package kvstore_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/proxy"
	"github.com/natslock/locks/testutil"
)

// Settings are judged as the server reports them, including settings that neither this package
// nor nats.go knows, and values that nats.go cannot read.
func TestRawSettings(t *testing.T) {
	const own = `"$KV.natslock.>"`
	for _, c := range []struct {
		setting, value string // "": absent
		want           kvstore.Level
	}{
		{"max_msgs_per_subject", `2`, kvstore.Unfit},
		{"max_msgs_per_subject", `-1`, kvstore.Unfit},
		{"max_msgs_per_subject", `"1"`, kvstore.Unfit},
		{"max_msgs_per_subject", ``, kvstore.Unfit},
		{"allow_msg_ttl", `false`, kvstore.Unfit},
		{"allow_msg_ttl", ``, kvstore.Unfit},
		{"subject_delete_marker_ttl", `1000000000`, kvstore.Unfit},
		{"subject_delete_marker_ttl", `0`, kvstore.Fine},
		{"subjects", `[` + own + `,"other"]`, kvstore.Unfit},
		{"subjects", `[]`, kvstore.Unfit},
		{"subjects", `["$KV.>"]`, kvstore.Unfit},
		{"retention", `"interest"`, kvstore.Unfit},
		{"retention", `"of a later server"`, kvstore.Unfit},
		{"retention", ``, kvstore.Unfit},
		{"discard", `"old"`, kvstore.Fine},
		{"max_age", `31622400000000000`, kvstore.Fine},
		{"max_age", `31622399999999999`, kvstore.Unfit},
		{"max_age", `-1`, kvstore.Fine},
		{"max_age", `"1h"`, kvstore.Unfit},
		{"max_msg_size", `20480`, kvstore.Fine},
		{"max_msg_size", `20479`, kvstore.Worse},
		{"persist_mode", `"default"`, kvstore.Fine},
		{"persist_mode", `""`, kvstore.Fine},
		{"persist_mode", `"async"`, kvstore.Unfit},
		{"persist_mode", `"of a later server"`, kvstore.Unfit},
		{"mirror", `{"name":"other"}`, kvstore.Unfit},
		{"mirror", `null`, kvstore.Fine},
		{"sources", `[{"name":"other"}]`, kvstore.Unfit},
		{"sources", `[]`, kvstore.Fine},
		{"subject_transform", `{"src":">","dest":"x.>"}`, kvstore.Unfit},
		{"discard_new_per_subject", `true`, kvstore.Unfit},
		{"no_ack", `true`, kvstore.Unfit},
		{"sealed", `true`, kvstore.Unfit},
		{"sealed", `"yes"`, kvstore.Unfit},
		{"allow_msg_counter", `true`, kvstore.Unfit},
		{"storage", `"memory"`, kvstore.Unfit},
		{"storage", `"of a later server"`, kvstore.Unfit},
		{"metadata.natslock.protocol", `"2"`, kvstore.Unfit},
		{"metadata.natslock.protocol", ``, kvstore.Unfit},
		{"nats-server", `"1"`, kvstore.Unfit},
		{"nats-server", ``, kvstore.Unfit},

		{"republish", ``, kvstore.Worse},
		{"republish", `{"src":` + own + `,"dest":"natslock.natslock.x.>","headers_only":true}`, kvstore.Worse},
		{"republish", `{"src":` + own + `,"dest":"natslock.natslock.x.>"}`, kvstore.Fine},
		{"republish", `{"src":` + own + `,"dest":7}`, kvstore.Worse},
		{"allow_direct", `false`, kvstore.Worse},
		{"allow_direct", ``, kvstore.Worse},
		{"allow_rollup_hdrs", `true`, kvstore.Worse},
		{"allow_msg_schedules", `true`, kvstore.Worse},
		{"deny_delete", `false`, kvstore.Worse},
		{"deny_purge", ``, kvstore.Worse},
		{"allow_atomic", `false`, kvstore.Worse},

		{"description", `"ours"`, kvstore.Fine},
		{"num_replicas", `3`, kvstore.Fine},
		{"placement", `{"cluster":"east"}`, kvstore.Fine},
		{"max_msgs", `1000`, kvstore.Fine},
		{"max_bytes", `1000000`, kvstore.Fine},
		{"max_consumers", `5`, kvstore.Fine},
		{"metadata.owner", `"ours"`, kvstore.Fine},
		{"compression", `"of a later server"`, kvstore.Fine},
		{"duplicate_window", `1000000000`, kvstore.Fine},

		{"unknown", ``, kvstore.Fine},
		{"unknown", `null`, kvstore.Fine},
		{"unknown", `false`, kvstore.Fine},
		{"unknown", `0`, kvstore.Fine},
		{"unknown", `-1`, kvstore.Fine},
		{"unknown", `""`, kvstore.Fine},
		{"unknown", `{}`, kvstore.Fine},
		{"unknown", `[]`, kvstore.Fine},
		{"unknown", `true`, kvstore.Worse},
		{"unknown", `1`, kvstore.Worse},
		{"unknown", `0.5`, kvstore.Worse},
		{"unknown", `-2`, kvstore.Worse},
		{"unknown", `1e400`, kvstore.Worse},
		{"unknown", `"deletes_records"`, kvstore.Worse},
		{"unknown", `{"after":0}`, kvstore.Worse},
		{"unknown", `[null]`, kvstore.Worse},
		{"Sealed", `true`, kvstore.Worse}, // JSON names are case-sensitive
	} {
		t.Run(c.setting+" "+c.value, func(t *testing.T) {
			settings := fitSettings(t)
			in, name := settings, c.setting
			if key, ok := strings.CutPrefix(name, "metadata."); ok {
				in, name = settings["metadata"].(map[string]any), key
			} else if name == "nats-server" {
				in, name = settings["metadata"].(map[string]any), "_nats.level"
			}
			if delete(in, name); c.value != "" {
				in[name] = json.RawMessage(c.value)
			}
			raw, err := json.Marshal(settings)
			check(t, err)
			info := &kvstore.Info{Raw: raw}
			info.State.LastSeq = kvstore.LowFirstSeq
			findings, err := kvstore.Examine(kvstore.Config{}, info)
			check(t, err)
			got := kvstore.Fine
			for _, f := range findings {
				if f.Level != kvstore.Fine && f.Setting != c.setting {
					t.Errorf("found %+v", f)
				}
				got = max(got, f.Level)
			}
			equal(t, "level", got, c.want)
		})
	}
}

// fitSettings returns the settings of a bucket without faults.
func fitSettings(t *testing.T) map[string]any {
	t.Helper()
	sc, err := kvstore.Config{}.StreamConfig()
	check(t, err)
	sc.Metadata["_nats.level"] = "2"
	raw, err := json.Marshal(sc)
	check(t, err)
	settings, err := (&kvstore.Info{Raw: raw}).Settings()
	check(t, err)
	return settings
}

// Servers of a later release report settings and values that this release does not know.
// Clients carry on regardless, and a repair keeps those settings.
func TestLaterServer(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, srv *testutil.Server) {
		js := proxy.JetStream(t, srv, func(nc *nats.Conn, m *nats.Msg) bool {
			return strings.Contains(m.Subject, ".STREAM.") && proxy.Rewrite(t, nc, m, func(answer map[string]any) {
				if c, ok := answer["config"].(map[string]any); ok {
					c["compression"], c["later"], c["deny_delete"] = "zstd", map[string]any{"on": true}, false
				}
			})
		})
		s := openJS(t, js, kvstore.Config{})
		rev := create(t, s, "lock.a", "")
		_, events := watch(t, s, "lock.a")
		_, err := s.Get(t.Context(), "lock.a", rev)
		check(t, err)
		rev, err = s.Update(t.Context(), "lock.a", nil, ttl, rev)
		check(t, err)
		wantEvent(t, events, kvstore.Put, "lock.a", rev)
		check(t, s.Verify(t.Context()))
		if w := fmt.Sprint(s.Warnings()); !strings.Contains(w, `later is {"on":true}`) || strings.Contains(w, "compression") {
			t.Fatalf("warnings are %s", w)
		}

		info, err := kvstore.Inspect(t.Context(), js, kvstore.Config{})
		check(t, err)
		after, err := kvstore.Repaired(kvstore.Config{}, info)
		check(t, err)
		repaired, err := after.Settings()
		check(t, err)
		equal(t, "compression", repaired["compression"], any("zstd"))
		equal(t, "later", fmt.Sprint(repaired["later"]), "map[on:true]")
		equal(t, "deny_delete", repaired["deny_delete"], any(true))
	})
}

// With the replicas that a repair adds, memory storage is no longer a fault.
func TestRepairedReplicas(t *testing.T) {
	is := fitSettings(t)
	is["storage"], is["allow_direct"] = "memory", false
	raw, err := json.Marshal(is)
	check(t, err)
	info := &kvstore.Info{Raw: raw}
	repaired, err := kvstore.Repaired(kvstore.Config{}, info)
	check(t, err)
	equal(t, "left alone", repaired, info)
	repaired, err = kvstore.Repaired(kvstore.Config{Replicas: 3}, info)
	check(t, err)
	equal(t, "allow_direct", repaired.Config.AllowDirect, true)
	equal(t, "num_replicas", repaired.Config.Replicas, 3)
}

// A single replica on a cluster is repaired unless it was requested, and a limit can be
// removed.
func TestRepairedByHand(t *testing.T) {
	is := fitSettings(t)
	is["num_replicas"], is["max_bytes"] = 1, 1000
	raw, err := json.Marshal(is)
	check(t, err)
	info := &kvstore.Info{Raw: raw}
	info.Cluster = &jetstream.ClusterInfo{Name: "C"}
	for _, c := range []struct {
		cfg      kvstore.Config
		replicas int
		bytes    int64
	}{
		{kvstore.Config{}, 3, 1000},
		{kvstore.Config{Replicas: 1}, 1, 1000},
		{kvstore.Config{Replicas: 5, MaxBytes: -1}, 5, -1},
	} {
		repaired, err := kvstore.Repaired(c.cfg, info)
		check(t, err)
		equal(t, "num_replicas", repaired.Config.Replicas, c.replicas)
		equal(t, "max_bytes", repaired.Config.MaxBytes, c.bytes)
	}
}
