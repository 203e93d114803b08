package natslock_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// refused checks that err matches ErrInvalid and says what was created incorrectly.
func refused(t *testing.T, err error, text string) {
	t.Helper()
	require.ErrorIs(t, err, natslock.ErrInvalid)
	require.ErrorContains(t, err, text)
}

// TestZeroClient checks that every method of a client that was not created by New returns an error
// that says so.
func TestZeroClient(t *testing.T) {
	ctx := t.Context()
	run := func(context.Context, *natslock.Lock) error { panic("no lock was granted") }
	for _, c := range []*natslock.Client{nil, {}} {
		for _, acquire := range []func(context.Context, string, ...natslock.LockOption) (*natslock.Lock, error){c.Lock, c.TryLock} {
			l, err := acquire(ctx, "x")
			refused(t, err, "was not created by New")
			require.Nil(t, l)
		}
		refused(t, c.Do(ctx, "x", run), "was not created by New")
		refused(t, c.TryDo(ctx, "x", run), "was not created by New")
		refused(t, admin.New(c).Break(ctx, admin.BreakRequest{Kind: admin.KindMutex, Name: "x", ID: "A"}), "was not created by New")
		_, err := c.Adopt(ctx, natslock.Handle{Name: "x"})
		refused(t, err, "was not created by New")
		_, err = admin.New(c).Inspect(ctx, admin.KindMutex, "x")
		refused(t, err, "was not created by New")
		n := 0
		for _, err := range admin.New(c).List(ctx, ">") {
			refused(t, err, "was not created by New")
			n++
		}
		for _, err := range admin.New(c).Watch(ctx, ">") {
			refused(t, err, "was not created by New")
			n++
		}
		require.Equal(t, 2, n)
		require.Zero(t, c.Stats())
		refused(t, c.Healthy(), "was not created by New")
		refused(t, c.Close(ctx), "was not created by New")
	}
}

// TestZeroLock checks that a lock that was never granted is not held, and that its context has
// ended.
func TestZeroLock(t *testing.T) {
	ctx := t.Context()
	for _, l := range []*natslock.Lock{nil, {}} {
		require.Zero(t, l.Name())
		require.Zero(t, l.ID())
		require.Zero(t, l.Token())
		require.Zero(t, l.Remaining())
		kit.Receive(t, l.Context().Done(), "the end of no lock")
		refused(t, context.Cause(l.Context()), "was not returned by an acquire")
		refused(t, l.Err(), "was not returned by an acquire")
		refused(t, l.Extend(ctx, 0), "was not returned by an acquire")
		refused(t, l.SetMeta(ctx, nil), "was not returned by an acquire")
		refused(t, l.Unlock(ctx), "was not returned by an acquire")
		refused(t, l.Do(func(context.Context, *natslock.Lock) error { panic("it runs") }), "was not returned by an acquire")
	}
}

// TestNilAndTooLong checks that no exported function panics on a nil argument or sends a value that
// is too long.
func TestNilAndTooLong(t *testing.T) {
	memory := kvstore.NewMemory(kvstore.DefaultBucket)
	c, sent := kit.Counted(t, memory)
	other, _ := kit.FaultyInMemory(t, memory, 0)
	lock := kit.Must(t, other.Lock, "held")
	set, err := other.LockAll(t.Context(), []string{"a1", "a2"})
	require.NoError(t, err)
	nc := testutil.RunServer(t).Connect()
	lockWith := func(o natslock.LockOption) error {
		_, err := c.TryLock(t.Context(), "option", o)
		return err
	}
	s := kit.Surface{
		Funcs: map[string]any{
			"New": natslock.New, "Join": natslock.Join,
			"WithJetStream": natslock.WithJetStream, "WithBucket": natslock.WithBucket, "WithReplicas": natslock.WithReplicas,
			"WithBucketConfig": natslock.WithBucketConfig, "WithCreate": natslock.WithCreate, "WithTTL": natslock.WithTTL,
			"WithOwner": natslock.WithOwner, "WithLogger": natslock.WithLogger, "WithTuning": natslock.WithTuning,
			"TTL": natslock.TTL, "MaxWait": natslock.MaxWait, "Meta": natslock.Meta, "Until": natslock.Until, "NoRenew": natslock.NoRenew,
			"Linger": natslock.Linger, "MinHold": natslock.MinHold, "Detached": natslock.Detached, "EarlyWarning": natslock.EarlyWarning,
		},
		Types: map[string]func(*testing.T) any{
			"Client": func(*testing.T) any { return c }, "Lock": func(*testing.T) any { return lock }, "LockSet": func(*testing.T) any { return set },
			"Handle": func(*testing.T) any { return new(natslock.Handle) },
		},
		Args: []any{context.Background(), nc},
		Apply: []any{
			lockWith,
			func(o natslock.Option) error { _, err := natslock.New(t.Context(), nc, o); return err },
		},
		Sent: sent,
		Except: map[string]string{
			"Lock.Unlock(nil Context)":    "a deferred Unlock works after every end",
			"LockSet.Unlock(nil Context)": "as that of a Lock",
			"Handle.MarshalText of nil":   "a method of the value",
		},
	}
	s.RefusesNilAndTooLong(t)
	kit.Unlock(t, kit.Must(t, c.Lock, "after")) // the refused Close has closed nothing
}
