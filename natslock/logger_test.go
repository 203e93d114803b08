package natslock_test

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// TestLossIsLogged checks that a lost or broken lock is logged with its name and the reason, but
// not a lock that was unlocked, ended as planned or was ended by Close.
func TestLossIsLogged(t *testing.T) {
	for _, c := range []struct {
		name, says string // says is empty if nothing is logged
		opts       []natslock.LockOption
		end        func(*testing.T, *testutil.Server, *kit.Member, *natslock.Lock)
	}{
		{name: "without an answer", says: "without a confirmation", end: func(_ *testing.T, _ *testutil.Server, m *kit.Member, _ *natslock.Lock) {
			m.Link.Blackhole(true)
		}},
		{name: "not renewed", says: "its lease is not renewed and was not extended in time", opts: []natslock.LockOption{natslock.NoRenew()},
			end: func(*testing.T, *testutil.Server, *kit.Member, *natslock.Lock) {}},
		{name: "extended without an answer", says: "without a confirmation", opts: []natslock.LockOption{natslock.NoRenew()},
			end: func(t *testing.T, _ *testutil.Server, m *kit.Member, l *natslock.Lock) {
				m.Link.Blackhole(true)
				go func() { _ = l.Extend(t.Context(), time.Minute) }()
			}},
		{name: "broken", says: "the host is gone", end: func(t *testing.T, s *testutil.Server, _ *kit.Member, l *natslock.Lock) {
			other := kit.NewClient(t, s.Connect())
			require.NoError(t, admin.New(other).Break(t.Context(), admin.BreakRequest{Name: l.Name(), ID: l.ID(), Reason: "the host is gone"}))
		}},
		{name: "without its bucket", says: "the bucket has been deleted", end: func(t *testing.T, s *testutil.Server, _ *kit.Member, _ *natslock.Lock) {
			kit.DeleteBucket(t, s.Connect())
		}},
		{name: "unlocked", end: func(t *testing.T, _ *testutil.Server, _ *kit.Member, l *natslock.Lock) { kit.Unlock(t, l) }},
		{name: "closed", end: func(_ *testing.T, _ *testutil.Server, m *kit.Member, _ *natslock.Lock) { kit.CloseNow(m.Client) }},
		{name: "planned", end: func(*testing.T, *testutil.Server, *kit.Member, *natslock.Lock) {}},
	} {
		t.Run(c.name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				kit.NewClient(t, s.Connect()) // creates the bucket, which logs a warning
				var log kit.Log
				m := kit.Join(t, s, log.Option())
				opts := append([]natslock.LockOption{natslock.TTL(5 * time.Second)}, c.opts...)
				if c.name == "planned" {
					opts = []natslock.LockOption{natslock.Until(time.Now().Add(5 * time.Second))}
				}
				l := kit.Must(t, m.Lock, "l", opts...)
				time.Sleep(2 * time.Second)
				c.end(t, s, m, l)
				kit.Receive(t, l.Context().Done(), "the end")
				synctest.Wait()
				if c.says == "" {
					require.Empty(t, log.String())
					return
				}
				require.Contains(t, log.String(), "level=WARN")
				require.Contains(t, log.String(), "a held lock was lost")
				require.Contains(t, log.String(), "lock=l")
				require.Contains(t, log.String(), c.says)
				m.Link.Heal()
			})
		})
	}
}

// TestLoggerBlocks checks that a log handler that blocks delays neither renewals nor the end of a
// lock.
func TestLoggerBlocks(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		kit.NewClient(t, s.Connect())
		release := make(chan struct{})
		m, f := kit.JoinFaulty(t, s, natslock.WithLogger(slog.New(slog.NewTextHandler(stuck(release), nil))))
		lost := kit.Must(t, m.Lock, "lost", natslock.TTL(3*time.Second))
		kept := kit.Must(t, m.Lock, "kept", natslock.TTL(10*time.Second))
		f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
			if w.Key == "lock.lost" {
				return faults.Refuse(kit.Refusal(w, 10077, "maximum messages exceeded"))
			}
			return faults.Pass
		})
		begun := time.Now()
		kit.Receive(t, lost.Context().Done(), "the end")
		require.Less(t, time.Since(begun), 3*time.Second)
		time.Sleep(time.Minute)
		kit.WantHeld(t, kept)
		close(release)
		kit.Unlock(t, kept)
	})
}

// stuck blocks every write until it is closed.
type stuck chan struct{}

func (s stuck) Write(p []byte) (int, error) {
	<-s
	return len(p), nil
}

// TestDefaultLogger checks that warnings go to slog.Default without WithLogger, and that a
// discarding handler silences them.
func TestDefaultLogger(t *testing.T) {
	var log kit.Log
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer kit.Quiet()
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		quiet := natslock.WithLogger(slog.New(slog.DiscardHandler))
		lose := func(opts ...natslock.Option) string {
			log.Reset()
			m := kit.Join(t, s, opts...)
			l := kit.Must(t, m.Lock, "l", natslock.TTL(time.Second))
			m.Link.Blackhole(true)
			kit.Receive(t, l.Context().Done(), "the end")
			synctest.Wait()
			m.Link.Heal()
			kit.CloseNow(m.Client)
			time.Sleep(10 * time.Second)
			return log.String()
		}
		require.Empty(t, lose(quiet), "it has made the bucket, too")
		require.Contains(t, lose(), "a held lock was lost")
		require.Empty(t, lose(quiet))
	})
}

// TestOwnLockIsLogged checks that a goroutine that acquires the same lock twice, and so waits for
// itself, is logged once after a full TTL, while a wait for another client's lock is not logged.
func TestOwnLockIsLogged(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		var log kit.Log
		logs := func() int { return strings.Count(log.String(), "it has deadlocked") }
		c := kit.Join(t, s, log.Option())
		other := kit.Join(t, s)
		foreign := kit.Must(t, other.Lock, "foreign")
		c.Await(t, "foreign")
		held := kit.Must(t, c.Lock, "own")
		w := c.Begin(t, "own")
		time.Sleep(14 * time.Second)
		synctest.Wait()
		require.Zero(t, logs(), log.String())
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		require.Equal(t, 1, logs(), log.String())
		require.Contains(t, log.String(), "lock=own")
		require.NotContains(t, log.String(), "lock=foreign")
		kit.Unlock(t, held)
		kit.Unlock(t, w.Granted(t))
		kit.Unlock(t, foreign)
	})
}
