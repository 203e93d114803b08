package natslock_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// refused checks that err says what was made in the wrong way.
func refused(t *testing.T, err error, text string) {
	t.Helper()
	require.ErrorIs(t, err, natslock.ErrInvalid)
	require.ErrorContains(t, err, text)
}

// A client that New has not made says so in each of its methods.
func TestZeroClient(t *testing.T) {
	ctx := t.Context()
	run := func(context.Context, *natslock.Lock) error { panic("no lock was granted") }
	for _, c := range []*natslock.Client{nil, {}} {
		for _, acquire := range []func(context.Context, string, ...natslock.LockOption) (*natslock.Lock, error){c.Lock, c.TryLock} {
			l, err := acquire(ctx, "x")
			refused(t, err, "made without New")
			require.Nil(t, l)
		}
		refused(t, c.Do(ctx, "x", run), "made without New")
		refused(t, c.TryDo(ctx, "x", run), "made without New")
		refused(t, admin.New(c).Break(ctx, admin.BreakRequest{Kind: admin.KindMutex, Name: "x", ID: "A"}), "made without New")
		_, err := c.Adopt(ctx, natslock.Handle{Name: "x"})
		refused(t, err, "made without New")
		_, err = admin.New(c).Inspect(ctx, admin.KindMutex, "x")
		refused(t, err, "made without New")
		n := 0
		for _, err := range admin.New(c).List(ctx, ">") {
			refused(t, err, "made without New")
			n++
		}
		for _, err := range admin.New(c).Watch(ctx, ">") {
			refused(t, err, "made without New")
			n++
		}
		require.Equal(t, 2, n)
		require.Zero(t, c.Stats())
		refused(t, c.Healthy(), "made without New")
		refused(t, c.Close(ctx), "made without New")
	}
}

// A lock that was never granted is not held, and its context has ended.
func TestZeroLock(t *testing.T) {
	ctx := t.Context()
	for _, l := range []*natslock.Lock{nil, {}} {
		require.Zero(t, l.Name())
		require.Zero(t, l.ID())
		require.Zero(t, l.Token())
		require.Zero(t, l.Remaining())
		kit.Receive(t, l.Context().Done(), "the end of no lock")
		refused(t, context.Cause(l.Context()), "no acquire has returned")
		refused(t, l.Err(), "no acquire has returned")
		refused(t, l.Extend(ctx, 0), "no acquire has returned")
		refused(t, l.SetMeta(ctx, nil), "no acquire has returned")
		refused(t, l.Unlock(ctx), "no acquire has returned")
		refused(t, l.Do(func(context.Context, *natslock.Lock) error { panic("it runs") }), "no acquire has returned")
	}
}

// A nil option, and a nil function to run, are refused before anything is sent.
func TestNilOption(t *testing.T) {
	s := testutil.RunServer(t)
	c := kit.Join(t, s)
	before := c.NC.Stats().OutMsgs
	_, err := natslock.New(t.Context(), c.NC, natslock.WithTTL(time.Minute), nil)
	refused(t, err, "nil")
	_, err = c.Lock(t.Context(), "x", natslock.NoRenew(), nil)
	refused(t, err, "nil")
	_, err = c.TryLock(t.Context(), "x", nil)
	refused(t, err, "nil")
	refused(t, c.Do(t.Context(), "x", nil), "nil")
	refused(t, c.TryDo(t.Context(), "x", nil), "nil")
	require.Equal(t, before, c.NC.Stats().OutMsgs, "nothing is sent")
	l := kit.Must(t, c.Lock, "x")
	refused(t, l.Do(nil), "nil")
	kit.Unlock(t, l)
}
