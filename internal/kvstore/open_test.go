package kvstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/testutil"
)

func TestOpenCreates(t *testing.T) {
	ctx := t.Context()
	nc := testutil.RunServer(t).Connect()
	var log bytes.Buffer
	begun := time.Now()
	s := open(t, nc, kvstore.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if w := s.Warnings(); len(w) > 0 {
		t.Fatalf("a new bucket has warnings: %q", w)
	}
	if !strings.Contains(log.String(), "created lock bucket") || !strings.Contains(log.String(), "account=$G") {
		t.Fatalf("the log does not name the new bucket and its account: %s", &log)
	}

	str, err := kit.JetStream(t, nc).Stream(ctx, "KV_natslock")
	check(t, err)
	got := str.CachedInfo().Config
	if got.FirstSeq < kvstore.FirstSeq(begun) || got.FirstSeq > kvstore.FirstSeq(time.Now()) {
		t.Fatalf("the first sequence is no time of creation: %d", got.FirstSeq)
	}
	id := got.Metadata["natslock.id"]
	if len(id) != 10 {
		t.Fatalf("notification id %q", id)
	}
	maps.DeleteFunc(got.Metadata, func(k, _ string) bool { return strings.HasPrefix(k, "_nats.") })
	want := jetstream.StreamConfig{
		Name:               "KV_natslock",
		Description:        "distributed locks",
		Subjects:           []string{"$KV.natslock.>"},
		Retention:          jetstream.LimitsPolicy,
		MaxConsumers:       -1,
		MaxMsgs:            -1,
		MaxBytes:           -1,
		MaxMsgSize:         -1,
		MaxMsgsPerSubject:  1,
		Discard:            jetstream.DiscardNew,
		Storage:            jetstream.FileStorage,
		Replicas:           1,
		Duplicates:         2 * time.Minute, // the server's default; no write has a message ID
		DenyDelete:         true,
		DenyPurge:          true,
		AllowDirect:        true,
		AllowMsgTTL:        true,
		AllowAtomicPublish: true,
		FirstSeq:           got.FirstSeq,
		RePublish:          &jetstream.RePublish{Source: "$KV.natslock.>", Destination: "natslock.natslock." + id + ".>"},
		Metadata:           map[string]string{"natslock.id": id, "natslock.protocol": "3"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("created\n%+v\nwant\n%+v", got, want)
	}
}

// A bucket's first sequence counts ten-microsecond ticks since 2016, and a fencing token is 64
// times a revision.
func TestFirstSeq(t *testing.T) {
	year := func(y int) time.Time { return time.Date(y, time.January, 1, 0, 0, 0, 0, time.UTC) }
	for _, c := range []struct {
		at   time.Time
		want uint64
	}{
		{year(2016).Add(time.Second), 100_000},
		{year(2016).Add(19 * time.Microsecond), 1},
		{time.Date(2026, time.November, 22, 0, 0, 0, 0, time.UTC), 3978 * 86_400 * 100_000},
		{year(2016), 1}, // the server starts there anyway
		{time.Unix(0, 0), 1},
		{time.Time{}, 1},
	} {
		equal(t, c.at.String(), kvstore.FirstSeq(c.at), c.want)
	}
	for y := 2026; y < 2060; y++ {
		first := kvstore.FirstSeq(year(y))
		if first < kvstore.LowFirstSeq {
			t.Errorf("%d: %d is low", y, first)
		}
		// A double represents every integer below 2^53, and JavaScript and jq read JSON numbers
		// as doubles.
		if last := record.Token(kvstore.FirstSeq(year(y+1)), record.GrantsPerRevision-1); last >= 1<<53 {
			t.Errorf("%d: token %d is not below 2^53", y, last)
		}
	}
}

func TestOpenExisting(t *testing.T) {
	ctx := t.Context()
	nc := testutil.RunServer(t).Connect()
	one := open(t, nc, kvstore.Config{})
	create(t, one, "lock.a", "held")
	before, err := kit.JetStream(t, nc).Stream(ctx, "KV_natslock")
	check(t, err)

	// The settings in a call take effect only if the bucket has to be created.
	two := open(t, nc, kvstore.Config{NoCreate: true, MaxBytes: 1 << 20, Storage: jetstream.MemoryStorage})
	after, err := kit.JetStream(t, nc).Stream(ctx, "KV_natslock")
	check(t, err)
	if a, b := before.CachedInfo().Config, after.CachedInfo().Config; !reflect.DeepEqual(a, b) {
		t.Fatalf("opening changed\n%+v\nto\n%+v", a, b)
	}
	equal(t, "keys", keysOf(t, two, ">", 0), "lock.a ")
	equal(t, "made at", two.Created(), one.Created())
	// The first store is notified of the second store's write.
	_, events := watch(t, one, "lock.b")
	rev := create(t, two, "lock.b", "")
	wantEvent(t, events, kvstore.Put, "lock.b", rev)
}

func TestOpenRace(t *testing.T) {
	srv := testutil.RunServer(t)
	race(t, kvstore.Config{}, func(int) *nats.Conn { return srv.Connect() })
}

// race makes eight clients create the same bucket simultaneously and write to it.
func race(t *testing.T, cfg kvstore.Config, connect func(i int) *nats.Conn) {
	t.Helper()
	type result struct {
		s   *kvstore.Store
		err error
	}
	const n = 8
	ch := make(chan result, n)
	for i := range n {
		js := kit.JetStream(t, connect(i))
		go func() {
			s, err := kvstore.Open(t.Context(), js, cfg)
			if err == nil {
				defer s.Close()
				_, err = s.Create(t.Context(), fmt.Sprintf("lock.%d", i), nil, ttl)
			}
			ch <- result{s, err}
		}()
	}
	var made time.Time
	for range n {
		r := kit.Receive(t, ch, "an opened bucket")
		check(t, r.err)
		if made.IsZero() {
			made = r.s.Created()
		}
		equal(t, "made at", r.s.Created(), made)
	}
}

func TestOpenRefuses(t *testing.T) {
	ctx := t.Context()
	nc := testutil.RunServer(t).Connect()
	js := kit.JetStream(t, nc)

	_, err := kvstore.Open(ctx, js, kvstore.Config{NoCreate: true})
	wantErr(t, err, kvstore.ErrNotFound)
	for _, bucket := range []string{"a.b", "a b", "*", "ä"} {
		_, err = kvstore.Open(ctx, js, kvstore.Config{Bucket: bucket})
		wantErr(t, err, kvstore.ErrInvalidKey)
	}
	_, err = kvstore.Open(ctx, nil, kvstore.Config{})
	wantErr(t, err, kvstore.ErrUnavailable)
	_, err = kvstore.Open(ctx, js, kvstore.Config{Replicas: 3}) // no cluster
	wantErr(t, err, kvstore.ErrUnavailable)
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	_, err = kvstore.Open(canceled, js, kvstore.Config{})
	wantErr(t, err, context.Canceled)
	_, err = js.Stream(ctx, "KV_natslock")
	wantErr(t, err, jetstream.ErrStreamNotFound)
	equal(t, "subscriptions left by failed opens: nats.go's own", nc.NumSubscriptions(), 1)
}

// A reply can be quicker than the client's check of its context. A call whose context had already
// ended would sometimes proceed to its next request and create a bucket.
func TestEndedContext(t *testing.T) {
	nc := testutil.RunServer(t).Connect()
	s := open(t, nc, kvstore.Config{})
	rev := create(t, s, "lock.a", "")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for what, do := range map[string]func() error{
		"verify": func() error { return s.Verify(ctx) },
		"get":    func() error { _, err := s.Get(ctx, "lock.a", 0); return err },
		"list":   func() error { _, err := s.List(ctx, ">", 0); return err },
		"state":  func() error { _, err := s.State(ctx, ">"); return err },
		"create": func() error { _, err := s.Create(ctx, "lock.b", nil, ttl); return err },
		"update": func() error { _, err := s.Update(ctx, "lock.a", nil, ttl, rev); return err },
		"delete": func() error { _, err := s.Delete(ctx, "lock.a", rev); return err },
	} {
		before := nc.Stats().OutMsgs
		wantErr(t, do(), context.Canceled)
		equal(t, "messages sent to "+what, nc.Stats().OutMsgs, before)
	}
}

// While a server is removing the files of a deleted bucket, it replies that it cannot create a
// store, so the client asks again.
func TestOpenWhileFilesAreRemoved(t *testing.T) {
	srv := testutil.RunServer(t)
	proxy := srv.Connect()
	var creates atomic.Int32
	_, err := proxy.Subscribe("busy.API.>", func(m *nats.Msg) {
		subject := "$JS." + strings.TrimPrefix(m.Subject, "busy.")
		if strings.Contains(subject, ".STREAM.CREATE.") && creates.Add(1) <= 2 {
			_ = m.Respond([]byte(`{"error":{"code":500,"err_code":10049,"description":"error creating store for stream"}}`))
			return
		}
		_ = proxy.PublishMsg(&nats.Msg{Subject: subject, Reply: m.Reply, Header: m.Header, Data: m.Data})
	})
	check(t, err)
	check(t, proxy.Flush())
	js, err := jetstream.NewWithAPIPrefix(srv.Connect(), "busy.API")
	check(t, err)
	s := openJS(t, js, kvstore.Config{})
	// There may be a cluster behind a prefix, so the client requests three replicas until a
	// server says that it is alone.
	equal(t, "tries", creates.Load(), 4)
	check(t, s.Verify(t.Context()))
	st, err := s.State(t.Context(), "")
	check(t, err)
	equal(t, "replicas", st.Replicas, 1)
}

func TestMemoryStorage(t *testing.T) {
	ctx := t.Context()
	nc := testutil.RunServer(t).Connect()
	makeStream(t, nc, func(c *jetstream.StreamConfig) { c.Storage = jetstream.MemoryStorage })
	_, err := kvstore.Open(ctx, kit.JetStream(t, nc), kvstore.Config{})
	wantConfigError(t, err, "storage")
	s := open(t, nc, kvstore.Config{Storage: jetstream.MemoryStorage})
	create(t, s, "lock.a", "")
	check(t, s.Verify(ctx))
}

func wantConfigError(t *testing.T, err error, setting string) *kvstore.ConfigError {
	t.Helper()
	wantErr(t, err, kvstore.ErrBucketConfig)
	var c *kvstore.ConfigError
	if !errors.As(err, &c) {
		t.Fatalf("%v is no *ConfigError", err)
	}
	if c.Setting != setting {
		t.Fatalf("the first setting named is %s, want %s: %v", c.Setting, setting, err)
	}
	if c.Bucket == "" || c.Value == "" || c.Want == "" || c.Repair == "" || !strings.Contains(err.Error(), c.Repair) {
		t.Fatalf("incomplete: %+v", c)
	}
	return c
}

func TestUnsafeSettings(t *testing.T) {
	nc := testutil.RunServer(t).Connect()
	js := kit.JetStream(t, nc)
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "other", Subjects: []string{"other.>"}, AllowDirect: true})
	check(t, err)
	for i, c := range []struct {
		setting string
		set     func(*jetstream.StreamConfig)
	}{
		{"mirror", func(c *jetstream.StreamConfig) {
			c.Mirror = &jetstream.StreamSource{Name: "other"}
			c.Subjects, c.RePublish, c.FirstSeq, c.AllowAtomicPublish = nil, nil, 0, false
		}},
		{"sources", func(c *jetstream.StreamConfig) { c.Sources = []*jetstream.StreamSource{{Name: "other"}} }},
		{"subject_transform", func(c *jetstream.StreamConfig) {
			c.SubjectTransform = &jetstream.SubjectTransformConfig{Source: c.Subjects[0], Destination: "x.>"}
			c.RePublish = nil
		}},
		{"subjects", func(c *jetstream.StreamConfig) {
			c.Subjects = []string{strings.TrimSuffix(c.Subjects[0], ">") + "lock.>"}
		}},
		{"subjects", func(c *jetstream.StreamConfig) { c.Subjects = append(c.Subjects, c.Name+"-more.>") }},
		{"max_msgs_per_subject", func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 2 }},
		{"max_msgs_per_subject", func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = -1 }},
		{"allow_msg_ttl", func(c *jetstream.StreamConfig) { c.AllowMsgTTL = false }},
		{"subject_delete_marker_ttl", func(c *jetstream.StreamConfig) {
			c.SubjectDeleteMarkerTTL = time.Second
			c.DenyPurge, c.AllowRollup = false, true // as the server then requires
		}},
		{"discard_new_per_subject", func(c *jetstream.StreamConfig) { c.DiscardNewPerSubject = true }},
		{"discard", func(c *jetstream.StreamConfig) { c.Discard, c.MaxBytes = jetstream.DiscardOld, 1<<20 }},
		{"discard", func(c *jetstream.StreamConfig) { c.Discard, c.MaxMsgs = jetstream.DiscardOld, 1000 }},
		{"max_age", func(c *jetstream.StreamConfig) { c.MaxAge = 24 * time.Hour }},
		{"retention", func(c *jetstream.StreamConfig) { c.Retention = jetstream.WorkQueuePolicy }},
		{"retention", func(c *jetstream.StreamConfig) { c.Retention = jetstream.InterestPolicy }},
		{"no_ack", func(c *jetstream.StreamConfig) { c.NoAck, c.AllowAtomicPublish = true, false }},
		{"allow_msg_counter", func(c *jetstream.StreamConfig) {
			c.AllowMsgCounter = true
			c.AllowMsgTTL, c.Discard = false, jetstream.DiscardOld // as the server then requires
		}},
		{"persist_mode", func(c *jetstream.StreamConfig) {
			c.PersistMode, c.AllowAtomicPublish = jetstream.AsyncPersistMode, false
		}},
		{"storage", func(c *jetstream.StreamConfig) { c.Storage = jetstream.MemoryStorage }},
		{"metadata.natslock.protocol", func(c *jetstream.StreamConfig) { c.Metadata["natslock.protocol"] = "2" }},
		{"metadata.natslock.protocol", func(c *jetstream.StreamConfig) { c.Metadata["natslock.protocol"] = "4" }},
		{"metadata.natslock.protocol", func(c *jetstream.StreamConfig) { c.Metadata["natslock.protocol"] = "" }},
		{"metadata.natslock.protocol", func(c *jetstream.StreamConfig) { delete(c.Metadata, "natslock.protocol") }},
		{"metadata.natslock.protocol", func(c *jetstream.StreamConfig) {
			c.Metadata["natslock.protocol"], c.RePublish = "03", nil // repairing it writes metadata too
		}},
		{"metadata.natslock.protocol", func(c *jetstream.StreamConfig) { c.Metadata, c.RePublish = nil, nil }},
	} {
		bucket := fmt.Sprintf("b%d", i)
		t.Run(c.setting, func(t *testing.T) {
			cfg := kvstore.Config{Bucket: bucket}
			sc, err := cfg.StreamConfig()
			check(t, err)
			c.set(&sc)
			_, err = js.CreateStream(t.Context(), sc)
			check(t, err)
			subs := nc.NumSubscriptions()
			_, err = kvstore.Open(t.Context(), js, cfg)
			wantErr(t, err, kvstore.ErrBucketConfig)
			var first *kvstore.ConfigError
			if !errors.As(err, &first) {
				t.Fatalf("%v is no *ConfigError", err)
			}
			// Several settings can be wrong at the same time, and the error names all of them.
			if !strings.Contains(err.Error(), c.setting+" is ") {
				t.Fatalf("%s is not named: %v", c.setting, err)
			}
			if c.setting != "allow_msg_counter" {
				wantConfigError(t, err, c.setting)
			}
			equal(t, "subscriptions", nc.NumSubscriptions(), max(subs, 1))
			repair(t, js, cfg, c.setting)
		})
	}
}

// repair updates a bucket with a wrong setting to what [kvstore.Config] says, and checks that
// [kvstore.Examine] predicted the result.
func repair(t *testing.T, js jetstream.JetStream, cfg kvstore.Config, setting string) {
	t.Helper()
	ctx := t.Context()
	info, err := kvstore.Inspect(ctx, js, cfg)
	check(t, err)
	repaired, err := kvstore.Repaired(cfg, info)
	check(t, err)
	hopeless, found := false, false
	findings, err := kvstore.Examine(cfg, info)
	check(t, err)
	for _, f := range findings {
		wrong := f.Level != kvstore.Fine
		if (f.Why != "") != wrong || (f.Repair != "") != wrong || f.Value == "" || f.Want == "" {
			t.Fatalf("incomplete: %+v", f)
		}
		found = found || wrong && f.Setting == setting
		hopeless = hopeless || f.Level == kvstore.Unfit && !f.Update
	}
	equal(t, "found", found, true)
	if hopeless {
		equal(t, "left alone", repaired == info, true)
		return
	}
	_, err = js.UpdateStream(ctx, repaired.Config)
	check(t, err)
	info, err = kvstore.Inspect(ctx, js, cfg)
	check(t, err)
	left, err := kvstore.Examine(cfg, info)
	check(t, err)
	for _, f := range left {
		if f.Level == kvstore.Unfit || f.Level == kvstore.Worse && !f.Remake {
			t.Errorf("not repaired: %+v", f)
		}
	}
	now, err := info.Settings()
	check(t, err)
	again, err := kvstore.Repaired(cfg, info)
	check(t, err)
	more, err := again.Settings()
	check(t, err)
	equal(t, "nothing more to repair", reflect.DeepEqual(more, now), true)
	s, err := kvstore.Open(ctx, js, cfg)
	check(t, err)
	defer s.Close()
	_, err = s.Create(ctx, "lock.repaired", nil, ttl)
	check(t, err)
}

// A bucket with another protocol is refused along with advice on what to do, because this release
// knows no other protocol and records are never converted. Without an entry the protocol is
// unknown.
func TestOtherProtocol(t *testing.T) {
	const reCreate = "only re-creating the bucket can change it: stop its users, delete it and let a client create it; or use another bucket"
	const otherRelease = "use a release of this program that knows the bucket's protocol, or another bucket"
	const upgrade = "only re-creating the bucket can change it: stop its users, delete it and let a client create it, as described in docs/operate/upgrading.md, section 2 to 3; or use another bucket"
	for _, c := range []struct {
		name   string
		set    func(map[string]string)
		value  string
		repair string
		remake bool
	}{
		{"first", func(m map[string]string) { m["natslock.protocol"] = "1" }, `"1"`, upgrade, true},
		{"earlier", func(m map[string]string) { m["natslock.protocol"] = "2" }, `"2"`, upgrade, true},
		{"unnamed", func(m map[string]string) { delete(m, "natslock.protocol") }, "unset", reCreate, true},
		{"later", func(m map[string]string) { m["natslock.protocol"] = "4" }, `"4"`, otherRelease, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			nc := testutil.RunServer(t).Connect()
			s := open(t, nc, kvstore.Config{})
			create(t, s, "lock.a", "")
			str, err := kit.JetStream(t, nc).Stream(t.Context(), "KV_natslock")
			check(t, err)
			sc := str.CachedInfo().Config
			c.set(sc.Metadata)
			_, err = kit.JetStream(t, nc).UpdateStream(t.Context(), sc)
			check(t, err)

			_, opened := kvstore.Open(t.Context(), kit.JetStream(t, nc), kvstore.Config{})
			for _, err := range []error{opened, s.Verify(t.Context())} {
				found := wantConfigError(t, err, "metadata.natslock.protocol")
				equal(t, "error", err.Error(), `bucket "natslock": metadata.natslock.protocol is `+c.value+`, must be "3": `+c.repair+
					": clients of different protocols do not exclude each other")
				equal(t, "found", found.Value, c.value)
			}
			info, err := kvstore.Inspect(t.Context(), kit.JetStream(t, nc), kvstore.Config{})
			check(t, err)
			findings, err := kvstore.Examine(kvstore.Config{}, info)
			check(t, err)
			for _, f := range findings {
				if f.Setting == "metadata.natslock.protocol" {
					equal(t, "re-create", f.Remake, c.remake)
					equal(t, "update", f.Update, false)
				}
			}
		})
	}
}

// A bucket can be sealed only after its creation.
func TestSealed(t *testing.T) {
	nc := testutil.RunServer(t).Connect()
	str := makeStream(t, nc, func(c *jetstream.StreamConfig) { c.DenyDelete, c.DenyPurge = false, false })
	sc := str.CachedInfo().Config
	sc.Sealed = true
	_, err := kit.JetStream(t, nc).UpdateStream(t.Context(), sc)
	check(t, err)
	_, err = kvstore.Open(t.Context(), kit.JetStream(t, nc), kvstore.Config{})
	wantConfigError(t, err, "sealed")
}

func TestSeveralUnsafeSettings(t *testing.T) {
	nc := testutil.RunServer(t).Connect()
	makeStream(t, nc, func(c *jetstream.StreamConfig) { c.MaxAge, c.Retention = time.Hour, jetstream.InterestPolicy })
	_, err := kvstore.Open(t.Context(), kit.JetStream(t, nc), kvstore.Config{})
	wantConfigError(t, err, "max_age")
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok || len(joined.Unwrap()) != 2 {
		t.Fatalf("%v should join two errors", err)
	}
	wantConfigError(t, joined.Unwrap()[1], "retention")
}

func TestWarnings(t *testing.T) {
	nc := testutil.RunServer(t).Connect()
	js := kit.JetStream(t, nc)
	for i, c := range []struct {
		about string
		set   func(*jetstream.StreamConfig)
	}{
		{"republish", func(c *jetstream.StreamConfig) { c.RePublish = nil }},
		{"republish", func(c *jetstream.StreamConfig) { c.RePublish.HeadersOnly = true }},
		{"republish", func(c *jetstream.StreamConfig) {
			c.RePublish.Source = strings.TrimSuffix(c.RePublish.Source, ">") + "lock.>"
		}},
		{"max_msg_size", func(c *jetstream.StreamConfig) { c.MaxMsgSize = kvstore.MaxRecord }},
		{"allow_direct", func(c *jetstream.StreamConfig) { c.AllowDirect = false }},
		{"allow_rollup_hdrs", func(c *jetstream.StreamConfig) { c.AllowRollup, c.DenyPurge = true, false }},
		{"deny_delete", func(c *jetstream.StreamConfig) { c.DenyDelete = false }},
		{"deny_purge", func(c *jetstream.StreamConfig) { c.DenyPurge = false }},
		{"allow_msg_schedules", func(c *jetstream.StreamConfig) {
			c.AllowMsgSchedules, c.Discard = true, jetstream.DiscardOld // as the server then requires
		}},
		{"allow_atomic", func(c *jetstream.StreamConfig) { c.AllowAtomicPublish = false }},
		{"first_seq", func(c *jetstream.StreamConfig) { c.FirstSeq = 0 }},
	} {
		bucket := fmt.Sprintf("b%d", i)
		t.Run(c.about, func(t *testing.T) {
			var log bytes.Buffer
			cfg := kvstore.Config{Bucket: bucket, Logger: slog.New(slog.NewTextHandler(&log, nil))}
			sc, err := cfg.StreamConfig()
			check(t, err)
			c.set(&sc)
			_, err = js.CreateStream(t.Context(), sc)
			check(t, err)
			s := open(t, nc, cfg)
			if !strings.Contains(strings.Join(s.Warnings(), "\n"), c.about) {
				t.Fatalf("no word of %s in %q", c.about, s.Warnings())
			}
			if !strings.Contains(log.String(), c.about) {
				t.Fatalf("no word of %s in the log: %s", c.about, &log)
			}
			// The store works all the same, except that it has no watches if the bucket sends no
			// notifications.
			rev := create(t, s, "lock.a", "")
			_, err = s.Get(t.Context(), "lock.a", rev)
			check(t, err)
			_, err = s.Watch("lock.a", func(kvstore.Event) {})
			equal(t, "ErrNoWatch", errors.Is(err, kvstore.ErrNoWatch), c.about == "republish")
			repair(t, js, cfg, c.about)
		})
	}
}

func TestCluster(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	cluster := testutil.RunCluster(t, 3)
	race(t, kvstore.Config{Bucket: "raced", Replicas: 3}, func(i int) *nats.Conn { return cluster.ConnectTo(i % 3) })
	nc := cluster.Connect()
	js := kit.JetStream(t, nc)
	s := open(t, nc, kvstore.Config{Bucket: "single", Replicas: 1})
	if w := strings.Join(s.Warnings(), "\n"); !strings.Contains(w, "one replica") {
		t.Fatalf("no word of the single replica: %q", w)
	}
	s = open(t, nc, kvstore.Config{}) // a cluster keeps three replicas unless told otherwise
	if w := s.Warnings(); len(w) > 0 {
		t.Fatalf("the default bucket has warnings: %q", w)
	}
	st, err := s.State(ctx, "")
	check(t, err)
	if st.Replicas != 3 {
		t.Fatalf("the default bucket has %d replicas", st.Replicas)
	}
	cfg := kvstore.Config{Bucket: "three", Replicas: 3}
	s = open(t, nc, cfg)
	if w := s.Warnings(); len(w) > 0 {
		t.Fatalf("a new bucket has warnings: %q", w)
	}
	rev := create(t, s, "lock.a", "")
	st, err = s.State(ctx, "lock.*")
	check(t, err)
	if !st.Complete || st.Replicas != 3 || st.LastRevision < rev {
		t.Fatalf("state is %+v", st)
	}
	// Replicas lag behind what was acknowledged, but a read with a revision to reach never shows
	// that.
	for range 25 {
		next, err := s.Update(ctx, "lock.a", nil, ttl, rev)
		if errors.Is(err, kvstore.ErrInFlight) {
			continue // according to the leader, the previous write still is
		}
		check(t, err)
		rev = next
		r, err := s.Get(ctx, "lock.a", rev)
		check(t, err)
		equal(t, "revision", r.Revision, rev)
		_, err = s.Get(ctx, "lock.none", rev)
		wantErr(t, err, kvstore.ErrNotFound)
		equal(t, "keys", keysOf(t, s, "lock.*", rev), "lock.a ")
	}
	_, err = js.CreateStream(ctx, jetstream.StreamConfig{Name: "copy", Mirror: &jetstream.StreamSource{Name: "KV_three"}, AllowDirect: true, MirrorDirect: true})
	check(t, err)
	for check(t, s.Verify(ctx)); !strings.Contains(strings.Join(s.Warnings(), "\n"), `"copy" mirrors`); check(t, s.Verify(ctx)) {
		if ctx.Err() != nil { // the server asked learns of the mirror a moment later
			t.Fatalf("no word of the mirror: %q", s.Warnings())
		}
	}
}

func TestJetStreamOff(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, srv *testutil.Server) {
		nc := srv.Connect()
		err := kit.Quickly(t, fast, "Open", func() error {
			_, err := kvstore.Open(t.Context(), kit.JetStream(t, nc), kvstore.Config{})
			return err
		})
		wantErr(t, err, kvstore.ErrUnavailable, nats.ErrNoResponders)
	}, testutil.WithoutJetStream())
}

func TestJetStreamOffForAccount(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, srv *testutil.Server) {
		nc := srv.Connect(nats.UserInfo("a", "a"))
		err := kit.Quickly(t, fast, "Open", func() error {
			_, err := kvstore.Open(t.Context(), kit.JetStream(t, nc), kvstore.Config{})
			return err
		})
		wantErr(t, err, kvstore.ErrUnavailable)
	}, testutil.WithConfigText(`
		accounts { A { users: [{user: a, password: a}] }, B { jetstream: enabled, users: [{user: b, password: b}] } }
	`))
}

func TestVerify(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, srv *testutil.Server) {
		ctx := t.Context()
		nc := srv.Connect()
		js := kit.JetStream(t, nc)
		s := open(t, nc, kvstore.Config{})
		last := create(t, s, "lock.a", "")
		check(t, s.Verify(ctx))
		_, events := watch(t, s, "lock.a")

		str, err := js.Stream(ctx, "KV_natslock")
		check(t, err)
		sc := str.CachedInfo().Config
		sc.MaxAge = time.Hour
		_, err = js.UpdateStream(ctx, sc)
		check(t, err)
		wantConfigError(t, s.Verify(ctx), "max_age")
		sc.MaxAge, sc.AllowDirect = 0, false
		_, err = js.UpdateStream(ctx, sc)
		check(t, err)
		check(t, s.Verify(ctx))
		if w := strings.Join(s.Warnings(), "\n"); !strings.Contains(w, "allow_direct") {
			t.Fatalf("no word of allow_direct: %q", w)
		}

		check(t, js.DeleteStream(ctx, "KV_natslock"))
		wantErr(t, kit.Quickly(t, fast, "Verify", func() error { return s.Verify(ctx) }), kvstore.ErrNotFound)
		wantErr(t, kit.Quickly(t, fast, "Create", func() error {
			_, err := s.Create(ctx, "lock.a", nil, ttl)
			return err
		}), kvstore.ErrUnavailable, kvstore.ErrNoStream)

		time.Sleep(time.Second) // or both would have the same creation time
		// Another client re-creates the bucket. The first client learns of it exactly once.
		other := open(t, nc, kvstore.Config{})
		wantErr(t, s.Verify(ctx), kvstore.ErrRemade)
		check(t, s.Verify(ctx))
		equal(t, "event", kit.Receive(t, events, "a recheck").Kind, kvstore.Recheck)
		equal(t, "made at", s.Created(), other.Created())
		rev := create(t, other, "lock.a", "")
		if rev <= last {
			t.Fatalf("revision %d of the new bucket is not above %d of the old", rev, last)
		}
		wantEvent(t, events, kvstore.Put, "lock.a", rev)
		rev, err = s.Update(ctx, "lock.a", nil, ttl, rev)
		check(t, err)
		wantEvent(t, events, kvstore.Put, "lock.a", rev)
	})
}

func TestVerifyDisconnected(t *testing.T) {
	nc, link := testutil.RunServer(t).ConnectLink()
	s := open(t, nc, kvstore.Config{})
	create(t, s, "lock.a", "")
	states := make(chan kvstore.ConnState, 10)
	s.OnConnection(func(st kvstore.ConnState) { states <- st })
	link.Cut()
	kit.Receive(t, states, "the cut")
	wantErr(t, s.Verify(t.Context()), kvstore.ErrUnavailable)
}
