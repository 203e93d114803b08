package natslock_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// Nothing that is exported panics for a nil argument, or sends what is too long.
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
		Args: []any{context.Background()},
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
}
