package settings

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/election"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/rwlock"
	"github.com/natslock/locks/semaphore"
	"github.com/natslock/locks/testutil"
)

func TestMain(m *testing.M) { kit.LeakCheck(m) }

const stream = "KV_natslock"

// client is a client with everything that a test looks at.
type client struct {
	*natslock.Client
	nc   *nats.Conn
	link *testutil.Link
	log  kit.Log

	mu     sync.Mutex
	atRisk map[string]error
}

func join(t *testing.T, s *testutil.Server) *client {
	t.Helper()
	c := &client{atRisk: make(map[string]error)}
	c.nc, c.link = s.ConnectLink()
	c.Client = kit.NewClient(t, c.nc, c.log.Option(),
		admin.WithObserver(func(_ context.Context, ev admin.Event) {
			if ev.Type == admin.EventAtRisk {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.atRisk[ev.Name] = ev.Cause
			}
		}))
	return c
}

func (c *client) reconnect() {
	before := c.nc.Stats().Reconnects
	c.link.Cut()
	c.link.Heal()
	for c.nc.Stats().Reconnects == before || !c.nc.IsConnected() {
		time.Sleep(10 * time.Millisecond)
	}
	time.Sleep(100 * time.Millisecond) // until the bucket is verified
}

// handle is a held lock of any kind.
type handle interface {
	Unlock(context.Context) error
}

// kinds are the ways in which each client holds something.
var kinds = map[string]struct {
	lock func(ctx context.Context, c *natslock.Client) (handle, error)
	try  func(ctx context.Context, c *natslock.Client) (handle, error)
}{
	"mutex": {
		func(ctx context.Context, c *natslock.Client) (handle, error) { return c.Lock(ctx, "l") },
		func(ctx context.Context, c *natslock.Client) (handle, error) { return c.TryLock(ctx, "l") },
	},
	"writer": {
		func(ctx context.Context, c *natslock.Client) (handle, error) { return rwlock.New(c).Lock(ctx, "w") },
		func(ctx context.Context, c *natslock.Client) (handle, error) { return rwlock.New(c).TryLock(ctx, "w") },
	},
	"reader": { // behind the writer of the other client
		func(ctx context.Context, c *natslock.Client) (handle, error) { return rwlock.New(c).RLock(ctx, "r") },
		func(ctx context.Context, c *natslock.Client) (handle, error) { return rwlock.New(c).TryLock(ctx, "r") },
	},
	"semaphore": {
		func(ctx context.Context, c *natslock.Client) (handle, error) {
			return semaphore.New(c, 1).Acquire(ctx, "s")
		},
		func(ctx context.Context, c *natslock.Client) (handle, error) {
			return semaphore.New(c, 1).TryAcquire(ctx, "s")
		},
	},
	"election": {
		func(ctx context.Context, c *natslock.Client) (handle, error) {
			t, err := election.New(c, "e").Campaign(ctx)
			if err != nil {
				return nil, err
			}
			return term{t}, nil
		},
		func(ctx context.Context, c *natslock.Client) (handle, error) { return c.TryLock(ctx, "e") },
	},
}

type term struct{ *election.Term }

func (t term) Unlock(ctx context.Context) error { return t.Resign(ctx) }

// verdict is what a setting means for a client.
type verdict int

const (
	refused verdict = iota // the server refuses the update
	unfit
	worse
	nothing // the server accepts the update, and nothing changes
)

// changes are all settings in the table of docs/protocol/reference.md.
var changes = []struct {
	setting string
	set     func(*jetstream.StreamConfig)
	want    verdict
	gone    bool          // the server removes or refuses records, so leases end and nothing is released
	within  time.Duration // how soon the next waiter gets a lock; 0: immediately
	silent  bool          // a watch ends because nothing is published
}{
	{setting: "max_msgs_per_subject", set: func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 2 }, want: unfit},
	{setting: "allow_msg_ttl", set: func(c *jetstream.StreamConfig) { c.AllowMsgTTL = false }},
	{setting: "subject_delete_marker_ttl", set: func(c *jetstream.StreamConfig) { c.SubjectDeleteMarkerTTL = time.Second }},
	{setting: "subjects", set: func(c *jetstream.StreamConfig) { c.Subjects = append(c.Subjects, "other") }, want: unfit},
	{setting: "retention", set: func(c *jetstream.StreamConfig) { c.Retention = jetstream.InterestPolicy }, want: unfit, gone: true},
	{setting: "discard", set: func(c *jetstream.StreamConfig) { c.MaxBytes, c.Discard = 1<<20, jetstream.DiscardOld }, want: unfit},
	{setting: "max_age", set: func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour }, want: unfit, gone: true},
	{setting: "max_msg_size", set: func(c *jetstream.StreamConfig) { c.MaxMsgSize = 4096 }, want: worse},
	{setting: "persist_mode", set: func(c *jetstream.StreamConfig) { c.PersistMode = jetstream.AsyncPersistMode }},
	{setting: "mirror", set: func(c *jetstream.StreamConfig) {
		c.Mirror, c.Subjects, c.FirstSeq = &jetstream.StreamSource{Name: "other"}, nil, 0
	}},
	{setting: "sources", set: func(c *jetstream.StreamConfig) { c.Sources = []*jetstream.StreamSource{{Name: "other"}} }, want: unfit},
	{setting: "subject_transform", set: func(c *jetstream.StreamConfig) {
		c.SubjectTransform = &jetstream.SubjectTransformConfig{Source: "$KV.natslock.x.>", Destination: "$KV.natslock.y.>"}
	}, want: unfit},
	{setting: "discard_new_per_subject", set: func(c *jetstream.StreamConfig) { c.DiscardNewPerSubject = true }, want: unfit, gone: true},
	{setting: "no_ack", set: func(c *jetstream.StreamConfig) { c.NoAck = true }, want: unfit, gone: true},
	{setting: "sealed", set: func(c *jetstream.StreamConfig) { c.Sealed, c.DenyDelete, c.DenyPurge = true, true, true }, want: unfit, gone: true},
	{setting: "allow_msg_counter", set: func(c *jetstream.StreamConfig) { c.AllowMsgCounter = true }},
	{setting: "storage", set: func(c *jetstream.StreamConfig) { c.Storage = jetstream.MemoryStorage }},
	{setting: "metadata.natslock.protocol", set: func(c *jetstream.StreamConfig) { c.Metadata["natslock.protocol"] = "4" }, want: unfit},
	{setting: "metadata.natslock.protocol", set: func(c *jetstream.StreamConfig) { delete(c.Metadata, "natslock.protocol") }, want: unfit},
	{setting: "republish", set: func(c *jetstream.StreamConfig) { c.RePublish.Destination = "natslock.natslock.other.>" }, want: worse},
	{setting: "republish", set: func(c *jetstream.StreamConfig) { c.RePublish = nil }, want: worse, within: 6 * time.Second, silent: true},
	{setting: "republish", set: func(c *jetstream.StreamConfig) { c.RePublish.HeadersOnly = true }, want: worse, within: 6 * time.Second, silent: true},
	{setting: "allow_direct", set: func(c *jetstream.StreamConfig) { c.AllowDirect = false }, want: worse},
	{setting: "allow_rollup_hdrs", set: func(c *jetstream.StreamConfig) { c.AllowRollup, c.DenyPurge = true, false }},
	{setting: "allow_msg_schedules", set: func(c *jetstream.StreamConfig) { c.AllowMsgSchedules, c.AllowRollup, c.DenyPurge = true, true, false }},
	{setting: "deny_delete", set: func(c *jetstream.StreamConfig) { c.DenyDelete = false }},
	{setting: "deny_purge", set: func(c *jetstream.StreamConfig) { c.DenyPurge = false }},
	{setting: "allow_atomic", set: func(c *jetstream.StreamConfig) { c.AllowAtomicPublish = false }, want: worse},
	{setting: "num_replicas", set: func(c *jetstream.StreamConfig) { c.Replicas = 3 }},
	{setting: "first_seq", set: func(c *jetstream.StreamConfig) { c.FirstSeq = 1 }, want: nothing},
}

// Each setting is changed while a client holds a lock of each kind and another client waits
// for it. Both clients reconnect, and therefore verify the bucket.
func TestChanges(t *testing.T) {
	for _, ch := range changes {
		testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
			js, err := jetstream.New(s.Connect())
			require.NoError(t, err)
			a, b := join(t, s), join(t, s)
			held, next := make(map[string]handle), make(map[string]chan error)
			got := make(map[string]handle)
			var mu sync.Mutex
			for kind, k := range kinds {
				first := k.lock
				if kind == "reader" {
					first = func(ctx context.Context, c *natslock.Client) (handle, error) { return rwlock.New(c).Lock(ctx, "r") }
				}
				held[kind], err = first(t.Context(), a.Client)
				require.NoError(t, err)
				next[kind] = make(chan error, 1)
				go func() {
					l, err := k.lock(t.Context(), b.Client)
					if err == nil {
						mu.Lock()
						got[kind] = l
						mu.Unlock()
					}
					next[kind] <- err
				}()
			}
			events, watchEnds := make(chan admin.Event, 1000), make(chan error, 1)
			go func() {
				var last error
				for ev, err := range admin.New(a.Client).Watch(t.Context(), ">") {
					if last = err; err == nil {
						events <- ev
					}
				}
				watchEnds <- last
			}()
			time.Sleep(3 * time.Second)

			str, err := js.Stream(t.Context(), stream)
			require.NoError(t, err)
			sc := str.CachedInfo().Config
			fit := sc
			str, err = js.Stream(t.Context(), stream) // the change must not affect what it is restored from
			require.NoError(t, err)
			sc = str.CachedInfo().Config
			ch.set(&sc)
			_, err = js.UpdateStream(t.Context(), sc)
			if ch.want == refused {
				require.Errorf(t, err, "%s: the server takes the update", ch.setting)
				t.Logf("%-28s the server refuses it: %v", ch.setting, err)
				return
			}
			require.NoError(t, err, ch.setting)
			a.reconnect()
			b.reconnect()
			require.Truef(t, ch.want == nothing || strings.Contains(a.log.String(), ch.setting) && strings.Contains(b.log.String(), ch.setting), "%s: not logged: %s", ch.setting, &b.log)

			if ch.want == unfit {
				for kind, k := range kinds {
					select {
					case err = <-next[kind]:
						// A record that the server has removed keeps nobody out, so the lock
						// may have been granted before the client knew.
						if err != nil || !ch.gone {
							require.ErrorIs(t, err, kvstore.ErrBucketConfig, "%s: %s", ch.setting, kind)
						}
					case <-time.After(time.Second):
						t.Fatalf("%s: %s: it still waits", ch.setting, kind)
					}
					for _, c := range []*client{a, b} {
						_, err := k.try(t.Context(), c.Client)
						require.ErrorIs(t, err, kvstore.ErrBucketConfig, "%s: %s", ch.setting, kind)
					}
				}
				for _, c := range []*client{a, b} {
					require.ErrorIs(t, c.Healthy(), kvstore.ErrBucketConfig)
				}
				if !ch.gone {
					require.Len(t, a.atRisk, len(kinds), ch.setting)
					for kind, l := range held {
						require.NoErrorf(t, l.Unlock(t.Context()), "%s: %s", ch.setting, kind)
					}
				}
				if _, err = js.UpdateStream(t.Context(), fit); err != nil {
					t.Logf("%-28s unfit for good: %v", ch.setting, err)
					return
				}
				for kind, l := range held { // those that are left
					_ = l.Unlock(t.Context())
					mu.Lock()
					if l := got[kind]; l != nil {
						_ = l.Unlock(t.Context())
					}
					mu.Unlock()
				}
				time.Sleep(20 * time.Second) // what could not be released has ended
				for kind, k := range kinds {
					l, err := k.try(t.Context(), b.Client)
					require.NoErrorf(t, err, "%s: %s after the repair", ch.setting, kind)
					require.NoError(t, l.Unlock(t.Context()))
				}
				require.NoError(t, b.Healthy())
				require.True(t, strings.Contains(b.log.String(), "fit again"))
				t.Logf("%-28s unfit: refused, and granted again after the repair", ch.setting)
				return
			}

			for kind, k := range kinds {
				_, err := k.try(t.Context(), b.Client)
				require.ErrorIs(t, err, natslock.ErrLocked, "%s: %s", ch.setting, kind)
				released := time.Now()
				require.NoError(t, held[kind].Unlock(t.Context()))
				require.NoError(t, <-next[kind])
				require.LessOrEqualf(t, time.Since(released), max(ch.within, 500*time.Millisecond), "%s: %s", ch.setting, kind)
				mu.Lock()
				l := got[kind]
				mu.Unlock()
				if kind != "reader" { // readers let readers in
					_, err = k.try(t.Context(), a.Client)
					require.ErrorIs(t, err, natslock.ErrLocked, "%s: %s", ch.setting, kind)
				}
				require.NoError(t, l.Unlock(t.Context()))
				l, err = k.try(t.Context(), a.Client)
				require.NoErrorf(t, err, "%s: %s", ch.setting, kind)
				require.NoError(t, l.Unlock(t.Context()))
			}
			require.NoError(t, a.Healthy())
			if ch.silent {
				select {
				case err := <-watchEnds:
					require.ErrorIs(t, err, kvstore.ErrNoWatch)
				case <-time.After(11 * time.Second):
					t.Fatalf("%s: the watch is silent", ch.setting)
				}
			} else {
				time.Sleep(time.Second) // until the last events have arrived
				seen := map[admin.EventType]int{}
				for range len(events) {
					seen[(<-events).Type]++
				}
				require.GreaterOrEqual(t, seen[admin.EventWatching], 2, ch.setting)
				require.GreaterOrEqual(t, seen[admin.EventReleased], len(kinds), ch.setting)
			}
			t.Logf("%-28s goes on", ch.setting)
		})
	}
}

// TestNoticed checks how soon a change that no reconnect follows is noticed.
func TestNoticed(t *testing.T) {
	for who, c := range map[string]struct {
		within time.Duration
		does   func(t *testing.T, c *client)
	}{
		"watches": {10 * time.Second, func(t *testing.T, c *client) {
			go func() {
				for range admin.New(c.Client).Watch(t.Context(), ">") {
					continue
				}
			}()
		}},
		"takes locks": {2*time.Minute + 2*time.Second, func(t *testing.T, c *client) {
			go func() {
				_, err := c.TryLock(t.Context(), "held")
				for t0 := time.Now(); errors.Is(err, natslock.ErrLocked) && time.Since(t0) < 3*time.Minute; _, err = c.TryLock(t.Context(), "held") {
					time.Sleep(time.Second)
				}
			}()
		}},
		"waits": {5*time.Minute + 7*time.Second, func(t *testing.T, c *client) {
			go func() { _, _ = c.Lock(t.Context(), "held") }()
		}},
		"holds": {5*time.Minute + 7*time.Second, func(t *testing.T, c *client) {
			l, err := c.Lock(t.Context(), "other")
			require.NoError(t, err)
			t.Cleanup(func() { runtime.KeepAlive(l) }) // otherwise it would no longer be renewed
		}},
	} {
		testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
			js, err := jetstream.New(s.Connect())
			require.NoError(t, err)
			holder, one := join(t, s), join(t, s)
			held, err := holder.Lock(t.Context(), "held", natslock.TTL(24*time.Hour))
			require.NoError(t, err)
			c.does(t, one)
			time.Sleep(time.Second)
			str, err := js.Stream(t.Context(), stream)
			require.NoError(t, err)
			sc := str.CachedInfo().Config
			sc.MaxBytes, sc.Discard = 1<<20, jetstream.DiscardOld
			_, err = js.UpdateStream(t.Context(), sc)
			require.NoError(t, err)
			changed := time.Now()
			for one.Healthy() == nil {
				time.Sleep(100 * time.Millisecond)
				require.LessOrEqual(t, time.Since(changed), c.within, who)
			}
			t.Log(fmt.Sprintf("a client that %s: after", who), time.Since(changed))
			require.NoError(t, held.Unlock(t.Context()))
			time.Sleep(3 * time.Second) // until the loop ends
		})
	}
}
