//go:build unix

package main_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/natslock"
)

// A broken holder that is paused frees nothing: the lock is shown as broken
// until its lease is over.
func TestBreakOfPausedHolder(t *testing.T) {
	t.Parallel()
	s := serve(t)
	p, _ := hold(t, s, "x", "--ttl", "20s")
	pause(t, p)
	code, out, errs := run(t, s, "break", "-f", "--reason", "it sleeps", "x")
	require.Zero(t, code, errs)
	require.Regexp(t, `broken: free when the holder has stopped, in (1\d|20)s at the latest`, out)
	h := locks(t, s, "info", "x")[0].Holder
	require.Equal(t, "it sleeps", h.Broken.Reason)
	_, out, _ = run(t, s, "info", "x")
	require.Contains(t, out, "it sleeps")
	_, out, _ = run(t, s, "ls")
	require.Contains(t, out, "(broken)")
	code, out, _ = run(t, s, "break", "-f", "x")
	require.Zero(t, code)
	require.Contains(t, out, "broken already")
	code, out, errs = run(t, s, "break", "-f", "--now", "x")
	require.Zero(t, code, errs)
	require.Contains(t, out, "free now")
	require.Empty(t, locks(t, s, "ls"))
}

func TestDemo(t *testing.T) {
	t.Parallel()
	began := time.Now()
	code, out, errs := run(t, nil, "demo")
	require.Zero(t, code, errs)
	within(t, 12*time.Second, time.Since(began))
	require.Equal(t, 19, strings.Count(out, "gets it, token "))
	require.Contains(t, out, "after the kill of victim")
	require.Contains(t, out, "is notified")
	require.Contains(t, out, "19 grants, tokens strictly rising, no overlap, counter 17 of 17")
	require.NotContains(t, out, "\x1b")
	require.Empty(t, errs)
}

// ls and info show a lock that its holder has left, for the rest of a minimum hold or to an adopter, as one that nobody
// renews. A break waits for its end, or lets the next one in at once.
func TestLookAtLeftLock(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(c *natslock.Client) error{
		"minimum hold": func(c *natslock.Client) error {
			l, err := c.Lock(timeout(t), "job", natslock.MinHold(time.Hour))
			return errors.Join(err, l.Unlock(timeout(t)))
		},
		"hand-over": func(c *natslock.Client) error {
			l, err := c.Lock(timeout(t), "job", natslock.TTL(time.Hour))
			_, err2 := l.Handoff(timeout(t))
			return errors.Join(err, err2)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t)
			withBucket(t, s)
			require.NoError(t, leave(client(t, s, natslock.WithOwner("scheduler"))))
			_, out, _ := run(t, s, "ls")
			require.Regexp(t, `(?m)^mutex +job +exclusive +scheduler on .* 59m`, out)
			_, out, _ = run(t, s, "info", "job")
			require.Regexp(t, `expires +in 59m\d\ds, TTL 1h0m0s: its holder does not renew it`, out)
			code, out, errs := run(t, s, "break", "-f", "job")
			require.Zero(t, code, errs)
			require.Regexp(t, `free when the holder has stopped, in 59m\d\ds at the latest`, out)
			code, _, errs = run(t, s, "break", "-f", "--now", "job")
			require.Zero(t, code, errs)
			_, out, _ = run(t, s, "info", "job")
			require.Equal(t, "job is free\n", out)
		})
	}
}
