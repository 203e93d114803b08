package natslock_test

import (
	"bytes"
	"context"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/rwlock"
	"github.com/natslock/locks/semaphore"
	"github.com/natslock/locks/testutil"
)

// Owners and reasons of other clients are quoted in each error and each line of a log: they
// neither begin a line of their own nor control a terminal.
func TestForeignText(t *testing.T) {
	const evil = "ada\n2026-01-01 all is well \x1b[2J\u009b\xff\u202e"
	quoted := strconv.Quote(evil)
	harmless := func(t *testing.T, text, want string) {
		t.Helper()
		require.Contains(t, text, want)
		require.True(t, utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }), "%q", text)
	}
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		var log bytes.Buffer
		warned := natslock.WithLogger(slog.New(slog.NewJSONHandler(&log, nil)))
		holder := kit.Join(t, s, natslock.WithOwner(evil), natslock.WithTuning(natslock.Tuning{WatchAfter: 1}), warned)
		operator := kit.Join(t, s, natslock.WithOwner(evil))
		other := kit.Join(t, s)

		l := kit.Must(t, holder.Lock, "l", natslock.TTL(time.Hour))
		_, err := rwlock.New(holder.Client).Lock(t.Context(), "rw", natslock.TTL(time.Hour))
		require.NoError(t, err)
		_, err = semaphore.New(holder.Client, 1).Acquire(t.Context(), "s", natslock.TTL(time.Hour))
		require.NoError(t, err)
		for _, acquire := range []func() error{
			func() error { _, err := other.TryLock(t.Context(), "l"); return err },
			func() error {
				return other.TryDo(t.Context(), "l", func(context.Context, *natslock.Lock) error { return nil })
			},
			func() error { _, err := other.Lock(t.Context(), "l", natslock.MaxWait(time.Second)); return err },
			func() error {
				_, err := other.LockAll(t.Context(), []string{"k", "l"}, natslock.MaxWait(time.Second))
				return err
			},
			func() error { _, err := rwlock.New(other.Client).TryRLock(t.Context(), "rw"); return err },
			func() error { _, err := semaphore.New(other.Client, 1).TryAcquire(t.Context(), "s"); return err },
		} {
			harmless(t, acquire().Error(), quoted[:len(quoted)-1]+" on ")
		}

		kit.Break(t, operator.Client, l, evil)
		<-l.Context().Done()
		reason := "by " + quoted + ": " + quoted
		harmless(t, context.Cause(l.Context()).Error(), reason)
		harmless(t, l.Err().Error(), reason)
		harmless(t, l.Extend(t.Context(), time.Minute).Error(), reason)
		harmless(t, l.Unlock(t.Context()).Error(), reason)
		synctest.Wait()
		for line := range strings.Lines(log.String()) {
			require.NotContains(t, line, `ada\n`)
		}
		require.Contains(t, log.String(), strings.Trim(strconv.Quote(quoted), `"`))

		handed := kit.Must(t, holder.Lock, "handed", natslock.TTL(time.Hour))
		handle, err := handed.Handoff(t.Context())
		require.NoError(t, err)
		require.NoError(t, admin.New(operator.Client).Break(t.Context(), admin.BreakRequest{Kind: admin.KindMutex, Name: "handed", ID: handed.ID(), Reason: evil}))
		_, err = other.Adopt(t.Context(), handle)
		harmless(t, err.Error(), reason)
		_, err = other.TryLock(t.Context(), "handed")
		harmless(t, err.Error(), "broken by "+quoted)
	})
}
