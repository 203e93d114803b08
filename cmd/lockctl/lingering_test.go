//go:build unix

package main_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/rwlock"
	"github.com/natslock/locks/testutil"
)

// lingering takes a mutex and a lock for reading, which linger, and leaves them idle. It
// returns when the records say so.
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

// ls, info and their JSON show that a lock lingers, and whether it was idle when its client
// renewed it last.
func TestLingeringIsShown(t *testing.T) {
	t.Parallel()
	s := serve(t)
	c := lingering(t, s)
	ls := locks(t, s, "ls")
	require.Equal(t, "exclusive", ls[0].Mode)
	require.Equal(t, "shared", ls[1].Mode)
	require.True(t, ls[0].Holder.Lingers)
	require.True(t, ls[1].Readers[0].Lingers)
	_, out, _ := run(t, s, "ls")
	require.Regexp(t, `(?m)^mutex +m +idle +worker on `, out)
	require.Regexp(t, `(?m)^rw +r +idle +\S.* and 1 more .* 2 +0$`, out)
	_, out, _ = run(t, s, "ls", "--wide")
	require.Equal(t, 3, strings.Count(out, " idle "), out)
	_, out, _ = run(t, s, "info", "m")
	require.Contains(t, out, "mutex m: held, idle when last renewed\n")
	require.Regexp(t, `lingers +idle when last renewed: another client that waits gets it`, out)
	_, out, _ = run(t, s, "info", "r")
	require.Contains(t, out, "rw r: held by 2 readers, idle when last renewed\n")

	l, err := c.Lock(timeout(t), "m", natslock.Linger(time.Hour))
	require.NoError(t, err)
	h := await(t, s, "m", "in use", func(l lock) bool { return !l.Holder.Idle }).Holder
	require.True(t, h.Lingers)
	_, out, _ = run(t, s, "ls", "m")
	require.Regexp(t, `(?m)^mutex +m +exclusive +worker`, out)
	_, out, _ = run(t, s, "info", "m")
	require.Contains(t, out, "mutex m: held\n")
	require.Regexp(t, `lingers +its client may keep it idle`, out)
	require.NoError(t, l.Unlock(timeout(t)))

	reader, err := rwlock.New(c).RLock(timeout(t), "r")
	require.NoError(t, err)
	await(t, s, "r", "a reader inside", func(l lock) bool { return l.Readers[0].Idle != l.Readers[1].Idle })
	_, out, _ = run(t, s, "ls", "r")
	require.Regexp(t, `(?m)^rw +r +shared `, out)
	require.NoError(t, reader.Unlock(timeout(t)))
	take(t, c, "plain")
	h = locks(t, s, "ls", "plain")[0].Holder
	require.False(t, h.Lingers || h.Idle)
	_, out, _ = run(t, s, "info", "plain")
	require.NotContains(t, out, "lingers")
}

// break says that a lock was idle, and its client frees it at once.
func TestLingeringBroken(t *testing.T) {
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

// top shows an idle lock, also on a narrow screen, and counts no hand-overs among its
// grants.
func TestLingeringInTop(t *testing.T) {
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

// watch marks the events of a lock that was idle, and does not call that time held.
func TestLingeringInWatch(t *testing.T) {
	t.Parallel()
	s := serve(t)
	c := client(t, s, natslock.WithTTL(3*time.Second))
	text, object := watch(t, s, "-v", "m"), watch(t, s, "-v", "--json", "m")
	l := take(t, c, "m", natslock.Linger(time.Hour))
	require.NoError(t, l.Unlock(timeout(t)))
	kit.Eventually(t, "a renewal", func() bool {
		return strings.Contains(text.out.String(), "renewed") && strings.Contains(object.out.String(), "renewed")
	})
	code, _, errs := run(t, s, "run", "m", "--", "true")
	require.Zero(t, code, errs)
	kit.Eventually(t, "the other's release", func() bool { return strings.Count(object.out.String(), `"released"`) == 2 })
	kit.Eventually(t, "the same text", func() bool { return strings.Count(text.out.String(), "released ") == 2 })
	lines := strings.Split(strings.TrimSpace(text.out.String()), "\n")
	evs := eventsOf(t, object, len(lines))
	require.Equal(t, "granted", evs[0].Event)
	require.True(t, evs[0].Lingers)
	require.False(t, evs[0].Idle)
	var idle []string
	for i, ev := range evs {
		require.Equal(t, ev.Idle, strings.Contains(lines[i], "  idle"), lines[i])
		if ev.Idle {
			require.True(t, ev.Lingers)
			require.Nil(t, ev.Held)
			idle = append(idle, ev.Event)
		}
	}
	require.Subset(t, idle, []string{"renewed", "released"})
	last := evs[len(evs)-1]
	require.False(t, last.Lingers || last.Idle)
}
