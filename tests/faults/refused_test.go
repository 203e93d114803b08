package faults_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// revocable is the store of a user who loses the permission to write. The server then does not
// reply, but reports the violation on the connection.
type revocable struct {
	kvstore.KV
	revoked atomic.Bool
}

func (r *revocable) Denied(key string) error {
	if !r.revoked.Load() {
		return r.KV.Denied(key)
	}
	return fmt.Errorf("%w: Permissions Violation for Publish to %q", kvstore.ErrPermission, "$KV.natslock."+key)
}

// TestRefusedRenewal checks that the reason for a refused renewal, whatever it is, is reported
// immediately in the log, to the observer and by Healthy, and again as the cause if the lock is
// lost. Once the server accepts renewals again, the lock continues as before.
func TestRefusedRenewal(t *testing.T) {
	refuse := func(code jetstream.ErrorCode, text string) func(kvstore.Write) faults.Fate {
		return func(w kvstore.Write) faults.Fate { return faults.Refuse(kit.Refusal(w, code, text)) }
	}
	for _, c := range []struct {
		name, says string
		fate       func(kvstore.Write) faults.Fate
	}{
		{"full", "maximum messages exceeded", refuse(10077, "maximum messages exceeded")},
		{"no resources", "insufficient resources", refuse(10023, "insufficient resources")},
		{"sealed", "invalid operation on sealed stream", refuse(10109, "invalid operation on sealed stream")},
		{"too large for the stream", "message size exceeds maximum allowed", refuse(10054, "message size exceeds maximum allowed")},
		{"too large for the server", "maximum payload exceeded", func(kvstore.Write) faults.Fate {
			return faults.NotSent(fmt.Errorf("%w: %w", kvstore.ErrUnavailable, nats.ErrMaxPayload))
		}},
		{"permission", "Permissions Violation", func(kvstore.Write) faults.Fate { return faults.Drop }},
	} {
		t.Run(c.name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				var log kit.Log
				var user *revocable
				var f *faults.Store
				m := kit.Join(t, s, log.Option(), faults.WrapStore(func(kv kvstore.KV) kvstore.KV {
					user = &revocable{KV: kv}
					f = faults.New(user, 1)
					return f
				}))
				l := kit.Must(t, m.Lock, "l", natslock.TTL(9*time.Second))
				log.Reset()
				fail := func(on bool) {
					f.OnSend(nil)
					if on {
						f.OnSend(func(_ int, w kvstore.Write) faults.Fate { return c.fate(w) })
					}
					user.revoked.Store(on && c.name == "permission")
				}
				fail(true)
				time.Sleep(4500 * time.Millisecond)
				require.ErrorContains(t, m.Events.Wait(t, admin.EventAtRisk, "l").Cause, c.says)
				err := m.Healthy()
				require.ErrorIs(t, err, natslock.ErrUnavailable)
				require.ErrorContains(t, err, c.says)
				require.NotContains(t, err.Error(), "unanswered")
				require.Contains(t, log.String(), "lock=l")
				require.Contains(t, log.String(), c.says)
				kit.WantHeld(t, l)
				extend, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				require.ErrorContains(t, l.Extend(extend, 0), c.says)

				fail(false)
				time.Sleep(4 * time.Second)
				require.NoError(t, m.Healthy())
				kit.WantHeld(t, l)

				log.Reset()
				fail(true)
				kit.Receive(t, l.Context().Done(), "the end")
				cause := context.Cause(l.Context())
				require.ErrorIs(t, cause, natslock.ErrLost)
				require.ErrorContains(t, cause, c.says)
				require.ErrorContains(t, m.Events.Wait(t, admin.EventExpired, "l").Cause, c.says)
				require.Equal(t, 1, strings.Count(log.String(), "refused to renew"), "once: %s", log.String())
				fail(false)
			})
		})
	}
}

// TestOutageIsNoRefusedRenewal checks that an outage is not reported as a refusal. It ends by
// itself, and the early warning covers it.
func TestOutageIsNoRefusedRenewal(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		var log kit.Log
		c, f := kit.JoinFaulty(t, s, log.Option())
		kit.Must(t, c.Lock, "l", natslock.TTL(9*time.Second))
		log.Reset()
		for _, err := range []error{
			kvstore.ErrInFlight,
			fmt.Errorf("%w: %w", kvstore.ErrUnavailable, kvstore.ErrNoStream),
			fmt.Errorf("%w: not sent: connection is reconnecting", kvstore.ErrUnavailable),
		} {
			f.OnSend(func(int, kvstore.Write) faults.Fate { return faults.Refuse(err) })
			time.Sleep(4 * time.Second)
			f.OnSend(nil)
			time.Sleep(4 * time.Second)
			require.NoError(t, c.Healthy())
		}
		require.Empty(t, log.String())
	})
}

// TestRevokedPermission has a user lose its permission while it holds a lock, so that the server no
// longer answers renewals.
func TestRevokedPermission(t *testing.T) {
	var options *server.Options
	user := func(p *server.Permissions) []*server.User {
		return []*server.User{{Username: "u", Password: "p", Permissions: p}}
	}
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		var log kit.Log
		nc := s.Connect(nats.UserInfo("u", "p"), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
		c := kit.NewClient(t, nc, log.Option())
		l := kit.Must(t, c.Lock, "l", natslock.TTL(6*time.Second))
		revoked := options.Clone()
		revoked.Users = user(&server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"$KV.>"}}})
		require.NoError(t, s.Server().ReloadOptions(revoked))
		kit.Receive(t, l.Context().Done(), "the end")
		require.ErrorContains(t, context.Cause(l.Context()), "Permissions Violation")
		synctest.Wait()
		require.Contains(t, log.String(), "refused to renew")
	}, testutil.WithConfig(func(o *server.Options) { o.Users, options = user(nil), o }))
}

// TestLostTooLarge checks that when renewals outgrow the message limit, the lock is lost with that
// reason.
func TestLostTooLarge(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, f := kit.JoinFaulty(t, s)
		l := kit.Must(t, c.Lock, "l", natslock.TTL(5*time.Second))
		f.OnSend(func(int, kvstore.Write) faults.Fate { return faults.Refuse(kvstore.ErrTooLarge) })
		<-l.Context().Done()
		require.ErrorIs(t, l.Err(), natslock.ErrLost)
		require.ErrorContains(t, l.Err(), "record too large")
	})
}
