package doctor

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/internal/kvstore"
)

// TestDoctorHistoryRows checks a history's row for states that a real server reaches only slowly.
func TestDoctorHistoryRows(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	now := time.Now()
	state := func(set func(*kept)) *kept {
		h := &kept{
			bucket: &jetstream.StreamInfo{Config: jetstream.StreamConfig{Name: "KV_natslock"}},
			info: &jetstream.StreamInfo{
				Config: jetstream.StreamConfig{Name: "HISTORY_natslock", MaxAge: 7 * day, MaxBytes: 100 << 20,
					Sources: []*jetstream.StreamSource{{Name: "KV_natslock", OptStartSeq: 1}}},
				State:   jetstream.StreamState{Bytes: 1 << 20},
				Sources: []*jetstream.StreamSourceInfo{{Name: "KV_natslock", Active: time.Second}},
			},
			History: &kvstore.History{Begin: now.Add(-3 * day), Now: now},
		}
		set(h)
		return h
	}
	for name, c := range map[string]struct {
		set           func(*kept)
		status, found string
	}{
		"up to date":               {func(*kept) {}, checkOK, "1.0 MiB of 100.0 MiB of size"},
		"a new one":                {func(h *kept) { h.info.Sources[0].Active = -1 }, checkOK, "size"},
		"behind":                   {func(h *kept) { h.Behind, h.info.Sources[0].Lag = 7, 7 }, checkWarning, "; 7 writes behind the bucket"},
		"behind, not begun":        {func(h *kept) { h.Behind, h.info.Sources = 1, nil }, checkWarning, "; 1 write behind the bucket"},
		"silent":                   {func(h *kept) { h.info.Sources[0].Active = 2 * unfed }, checkWarning, "; 0 writes behind the bucket, which has been silent for 2m00s"},
		"without the last":         {func(h *kept) { h.Behind = 7 }, checkOK, "; the last 7 writes missing"},
		"without many of the last": {func(h *kept) { h.Behind = lostMany }, checkWarning, "; the last 1000 writes missing"},
		"a few lost":               {func(h *kept) { h.missing, h.all = lostMany-1, lostMany }, checkOK, "; of 1000 writes in the last hour 999 missing"},
		"a quarter lost":           {func(h *kept) { h.missing, h.all = lostMany, 4*lostMany }, checkOK, "1000 missing"},
		"more lost":                {func(h *kept) { h.missing, h.all = lostMany, 4*lostMany-4 }, checkWarning, "1000 missing"},
		"full":                     {func(h *kept) { h.info.State.Bytes = 95 << 20 }, checkWarning, ": it is too small for 7d, and reaches back 3d00h"},
		"full, and old enough":     {func(h *kept) { h.info.State.Bytes, h.Begin = 95<<20, now.Add(-6*day-12*time.Hour) }, checkOK, "size"},
		"without a limit":          {func(h *kept) { h.info.State.Bytes, h.info.Config.MaxBytes = 95<<20, -1 }, checkOK, "95.0 MiB of size"},
	} {
		h := state(c.set)
		broken, _ := h.broken()
		require.Empty(t, broken, name)
		status, found, repair := h.judge()
		require.Equal(t, c.status, status, name)
		require.Contains(t, found, "since "+show.Clock(h.Begin), name)
		require.Regexp(t, c.found+"$", found, name)
		require.Equal(t, status != checkOK, repair != "", name)
	}
	// Writes lost after an election say nothing about how often a lock is taken.
	for _, since := range []time.Duration{2 * time.Hour, 10 * time.Minute} {
		for _, of := range []func(*kept) *jetstream.StreamInfo{func(h *kept) *jetstream.StreamInfo { return h.bucket }, func(h *kept) *jetstream.StreamInfo { return h.info }} {
			h := state(func(h *kept) { h.missing, h.all = lostMany, lostMany })
			at := now.Add(-since)
			of(h).Cluster = &jetstream.ClusterInfo{Name: "C", Leader: "a", LeaderSince: &at}
			_, _, repair := h.judge()
			if since > lostSince {
				require.Contains(t, repair, "a thousand times a second")
				continue
			}
			require.Contains(t, repair, "Stream "+of(h).Config.Name+" has had a new leader since "+show.Clock(at))
			require.NotContains(t, repair, "a thousand")
		}
	}
	for name, c := range map[string]struct {
		set   func(*kept)
		found string
	}{
		"no leader": {func(h *kept) {
			h.info.Cluster = &jetstream.ClusterInfo{Name: "C", Replicas: []*jetstream.PeerInfo{{Name: "a", Offline: true}, {Name: "b"}}}
		}, "stream HISTORY_natslock has no leader, a is offline"},
		"transformed": {func(h *kept) {
			h.info.Config.Sources[0].SubjectTransforms = []jetstream.SubjectTransformConfig{{Source: "a", Destination: "b"}}
		}, "stream HISTORY_natslock does not copy all of KV_natslock"},
		"of another domain": {func(h *kept) { h.info.Config.Sources[0].External = &jetstream.ExternalStream{APIPrefix: "$JS.hub.API"} },
			"stream HISTORY_natslock does not copy all of KV_natslock"},
		"of another bucket": {func(h *kept) { h.info.Config.Sources[0].Name = "KV_other" }, "stream HISTORY_natslock does not copy all of KV_natslock"},
		"later":             {func(h *kept) { h.info.Config.Sources[0].OptStartSeq = 2 }, "stream HISTORY_natslock copies revisions from 2 on, but KV_natslock was re-created and is at 0"},
		"an error": {func(h *kept) { h.info.Sources[0].Error = &jetstream.APIError{Description: "no room"} },
			"the server cannot copy KV_natslock: no room"},
	} {
		found, repair := state(c.set).broken()
		require.Equal(t, c.found, found, name)
		require.NotEmpty(t, repair, name)
	}
	// The repair suggests a size and an age that fit the rate of writes.
	for _, c := range []struct {
		size   uint64
		reach  time.Duration
		repair string
	}{
		{255 << 20, 30 * time.Minute, `"lockctl init --history 7d --history-size 112302489600" or more: 145.1 KiB a second are written, which makes 104.6 GiB, a quarter of it to spare. Or "lockctl init --history 30m", for which the size is enough`},
		{255 << 20, 5*day + 3*time.Hour, `"lockctl init --history 7d --history-size 457179136" or more: 603 B a second are written, which makes 435.4 MiB, a quarter of it to spare. Or "lockctl init --history 5d", for which the size is enough`},
		{255 << 20, 90 * time.Minute, `"lockctl init --history 7d --history-size 37434163200" or more: 48.4 KiB a second are written, which makes 34.9 GiB, a quarter of it to spare. Or "lockctl init --history 1h", for which the size is enough`},
		{1 << 40, 0, `"lockctl init --history 7d --history-size 831230790598656000" or more: 1024.0 GiB a second are written, which makes 774144000.0 GiB, a quarter of it to spare`},
	} {
		require.Equal(t, c.repair, enough(state(func(*kept) {}).info.Config, c.size, c.reach))
	}
	for age, flag := range map[time.Duration]string{0: "7d", 7 * day: "7d", 36 * time.Hour: "36h"} {
		require.Equal(t, flag, ageOf(jetstream.StreamConfig{MaxAge: age}))
	}
}
