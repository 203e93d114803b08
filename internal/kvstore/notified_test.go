package kvstore_test

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/testutil"
)

// A store warns that no notification arrives when a fourth write comes a second after the
// third. Before that, the third write's notification may still be under way, and those of
// the first two may have been lost behind a gateway.
func TestNoNotification(t *testing.T) {
	for user, warnings := range map[string]int{"deaf": 1, "hears": 0} {
		testutil.Bubble(t, func(t *testing.T, srv *testutil.Server) {
			var log strings.Builder
			s := open(t, srv.Connect(nats.UserInfo(user, "p")), kvstore.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
			warned := func() int {
				synctest.Wait()
				return strings.Count(log.String(), "no notification of a change has ever arrived")
			}
			watch(t, s, "lock.a")
			rev := create(t, s, "lock.a", "")
			for _, pause := range []time.Duration{0, 3 * time.Second, 500 * time.Millisecond} {
				time.Sleep(pause)
				var err error
				rev, err = s.Update(t.Context(), "lock.a", nil, ttl, rev)
				check(t, err)
				equal(t, "warnings to "+user, warned(), 0)
			}
			for range 3 {
				time.Sleep(time.Second + time.Millisecond)
				var err error
				rev, err = s.Update(t.Context(), "lock.a", nil, ttl, rev)
				check(t, err)
				equal(t, "warnings to "+user, warned(), warnings)
			}
		}, testutil.WithConfigText(`authorization { users: [
			{ user: hears, password: p }
			{ user: deaf, password: p, permissions: { subscribe: { deny: ["natslock.>"] } } }
		] }`))
	}
}
