//go:build unix

package main_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/rwlock"
	"github.com/natslock/locks/testutil"
)

// lingering unlocks a lingering mutex and two lingering read locks, and waits until their records
// show them as idle.
func lingering(t *testing.T, s *testutil.Server) *natslock.Client {
	t.Helper()
	c := client(t, s, natslock.WithOwner("worker"), natslock.WithTTL(3*time.Second))
	other := client(t, s, natslock.WithTTL(3*time.Second))
	linger := natslock.Linger(time.Hour)
	idle := func(l *natslock.Lock, err error) {
		t.Helper()
		require.NoError(t, err)
		require.NoError(t, l.Unlock(timeout(t)))
	}
	idle(c.Lock(timeout(t), "m", linger))
	idle(rwlock.New(c).RLock(timeout(t), "r", linger))
	idle(rwlock.New(other).RLock(timeout(t), "r", linger))
	kit.Eventually(t, "the renewals", func() bool {
		ls := locks(t, s, "ls")
		return len(ls) == 2 && ls[0].Holder.Idle && len(ls[1].Readers) == 2 && ls[1].Readers[0].Idle && ls[1].Readers[1].Idle
	})
	return c
}

// TestLingeringBroken checks that break says that the lock was idle, and that its client frees it
// immediately.
func TestLingeringBroken(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	s := serve(t)
	c := lingering(t, s)
	v := display(t, s, nil, "break", "m")
	v.shows("idle when last renewed", "Break it?", "The lock was idle")
	v.press("y\r")
	v.shows("broken: ")
	require.Zero(t, v.ends())
	await := func() bool { return len(locks(t, s, "info", "m")) == 0 }
	kit.Eventually(t, "it is free", await)
	code, out, _ := run(t, s, "break", "-f", "r")
	require.Equal(t, 64, code)
	require.Regexp(t, `(?m)^rw +idle +worker`, out)
	require.Zero(t, c.Stats().Broken, "nobody was inside")
}

// TestLingeringInTop checks that top shows idle locks, even on a narrow screen, and that local
// hand-overs do not count as grants.
func TestLingeringInTop(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	s := serve(t)
	c := lingering(t, s)
	v := display(t, s, nil, "top")
	v.until("two idle locks", func(text string) bool { return strings.Count(text, " idle ") == 2 })
	cycles, stop := context.WithCancel(t.Context())
	defer stop()
	go func() {
		for cycles.Err() == nil {
			if l, err := c.Lock(cycles, "m", natslock.Linger(time.Hour)); err == nil {
				_ = l.Unlock(context.Background())
			}
			time.Sleep(time.Millisecond)
		}
	}()
	v.until("grants", func(text string) bool {
		_, rest, _ := strings.Cut(text, "grants ")
		return rest != "" && !strings.HasPrefix(rest, "0.0/s")
	})
	require.Contains(t, v.text(), "hand-overs 0.0/s")
	stop()
	v.press("j" + keyEnter)
	v.shows("held by 2 readers, idle when last renewed")
	v.press("b")
	v.shows("Which one?", ", idle")
	v.press(keyEnter)
	v.shows("Break it?", "idle when last renewed")
}
