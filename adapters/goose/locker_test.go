package gooselock_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"testing/fstest"
	"time"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
	"github.com/pressly/goose/v3/lock/locktesting"
	"github.com/stretchr/testify/require"

	gooselock "github.com/natslock/locks/adapters/goose"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// TestConformance runs goose's conformance suite with both of its interfaces.
func TestConformance(t *testing.T) {
	s := testutil.RunServer(t)
	migrations := fstest.MapFS{}
	for n := 1; n <= 5; n++ {
		sql := fmt.Sprintf("-- +goose Up\nCREATE TABLE t%d (id INTEGER PRIMARY KEY);\n-- +goose Down\nDROP TABLE t%d;\n", n, n)
		migrations[fmt.Sprintf("%05d_t.sql", n)] = &fstest.MapFile{Data: []byte(sql)}
	}
	for kind, option := range map[string]func(*gooselock.Locker) goose.ProviderOption{
		"locker":         func(l *gooselock.Locker) goose.ProviderOption { return goose.WithLocker(l) },
		"session locker": func(l *gooselock.Locker) goose.ProviderOption { return goose.WithSessionLocker(l) },
	} {
		t.Run(kind, func(t *testing.T) {
			path := database(t)
			locktesting.TestProviderLocking(t, func(t *testing.T) *goose.Provider {
				p, err := goose.NewProvider(goose.DialectSQLite3, open(t, path), migrations, option(gooselock.NewLocker(join(t, s), name)))
				require.NoError(t, err)
				return p
			})
		})
	}
	t.Run("concurrent", func(t *testing.T) {
		locktesting.TestConcurrentLocking(t, open(t, database(t)), func(t *testing.T) lock.Locker {
			return gooselock.NewLocker(join(t, s), name)
		}, 2*time.Second)
	})
}

// TestEachMigrationOnce checks that each migration is applied only once when two replicas, or two
// providers that share a Locker, migrate at the same time. The second one queues for the lock
// because it finds pending migrations, without which goose does not lock.
func TestEachMigrationOnce(t *testing.T) {
	for what, shared := range map[string]bool{"replicas": false, "one Locker": true} {
		t.Run(what, func(t *testing.T) {
			s, path, j := testutil.RunServer(t), database(t), &journal{}
			begun, proceed := make(chan struct{}), make(chan struct{})
			var migrations []*goose.Migration
			for version := int64(1); version <= 5; version++ {
				migrations = append(migrations, migration(version, func(ctx context.Context, tx *sql.Tx) error {
					defer j.begin(version)()
					if version == 1 {
						close(begun)
						<-proceed
					}
					_, err := tx.ExecContext(ctx, fmt.Sprintf("CREATE TABLE t%d (id INTEGER)", version))
					return err
				}))
			}
			first := join(t, s)
			second, option := first, locker(first)
			other := option
			if !shared {
				second = join(t, s)
				other = locker(second)
			}
			a := begin(t, t.Context(), provider(t, path, option, migrations...))
			receive(t, begun, "the first migration")
			b := begin(t, t.Context(), provider(t, path, other, migrations...))
			require.Eventually(t, func() bool { return second.Stats().Waiting > 0 }, patience, time.Millisecond)
			close(proceed)
			receive(t, a.done, "the first replica")
			receive(t, b.done, "the second replica")
			require.NoError(t, a.err)
			require.NoError(t, b.err)
			require.Len(t, a.results, 5)
			require.Empty(t, b.results)
			require.Equal(t, []int64{1, 2, 3, 4, 5}, j.begun)
			require.Zero(t, j.beside)
		})
	}
}

// TestUntilLost checks that when an operator breaks the lock of a migration, the migration's
// context ends, goose rolls it back and starts no other, and the next replica applies the rest.
func TestUntilLost(t *testing.T) {
	s, path := testutil.RunServer(t), database(t)
	m, next, operator := join(t, s, natslock.WithTuning(natslock.Tuning{WatchAfter: 1})), join(t, s), join(t, s)
	begun, cause, hangs := make(chan struct{}), make(chan error, 1), true
	migrations := []*goose.Migration{
		migration(1, func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "CREATE TABLE bills (id INTEGER)")
			return err
		}),
		migration(2, func(ctx context.Context, tx *sql.Tx) error {
			if _, err := tx.ExecContext(ctx, "ALTER TABLE bills ADD COLUMN sum INTEGER"); err != nil {
				return err
			}
			if hangs {
				close(begun)
				<-ctx.Done()
				cause <- context.Cause(ctx)
			}
			return ctx.Err()
		}),
		migration(3, func(context.Context, *sql.Tx) error { return nil }),
	}
	ctx, cancel := gooselock.UntilLost(t.Context())
	defer cancel()
	u := begin(t, ctx, provider(t, path, locker(m), migrations...))
	receive(t, begun, "the second migration")
	breakLock(t, operator.Client, false)
	receive(t, u.done, "the end of Up")
	require.ErrorIs(t, <-cause, natslock.ErrBroken)
	require.ErrorIs(t, u.err, natslock.ErrBroken)
	require.ErrorIs(t, u.err, context.Canceled)
	require.ErrorContains(t, u.err, name)
	require.ErrorContains(t, u.err, "it hangs")
	var partial *goose.PartialError
	require.ErrorAs(t, u.err, &partial)
	require.Len(t, partial.Applied, 1)

	hangs = false
	results, err := provider(t, path, locker(next), migrations...).Up(t.Context())
	require.NoError(t, err)
	require.Len(t, results, 2)
}

// TestUntilLostInterrupts checks that losing the lock interrupts a statement running in the
// database.
func TestUntilLostInterrupts(t *testing.T) {
	s, path := testutil.RunServer(t), database(t)
	m := join(t, s)
	statement := "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) INSERT INTO bills SELECT count(*) FROM n;"
	migrations := fstest.MapFS{
		"00001_bills.sql": {Data: []byte("-- +goose Up\nCREATE TABLE bills (id INTEGER PRIMARY KEY);\n" + statement + "\n")},
	}
	db := open(t, path)
	p, err := goose.NewProvider(goose.DialectSQLite3, db, migrations, locker(m, natslock.TTL(time.Second)))
	require.NoError(t, err)
	ctx, cancel := gooselock.UntilLost(t.Context())
	defer cancel()
	u := begin(t, ctx, p)
	for m.Stats().Granted == 0 {
		select {
		case <-u.done:
			t.Fatal(u.err)
		case <-time.After(time.Millisecond):
		}
	}
	m.link.Blackhole(true) // the server no longer replies
	receive(t, u.done, "the end of a statement that does not end by itself")
	require.ErrorIs(t, u.err, natslock.ErrLost)
	require.ErrorIs(t, context.Cause(ctx), natslock.ErrLost)
	var tables int
	require.NoError(t, db.QueryRow("SELECT count(*) FROM sqlite_master WHERE name = 'bills'").Scan(&tables))
	require.Zero(t, tables)
}

// TestLostUnnoticed checks that without UntilLost goose carries on when the lock is lost. Its error
// then matches ErrLost, and the results include what was applied. The next Up of the same Locker
// waits until the first has returned.
func TestLostUnnoticed(t *testing.T) {
	s, path := testutil.RunServer(t), database(t)
	m, operator := join(t, s, natslock.WithTuning(natslock.Tuning{WatchAfter: 1})), join(t, s)
	j, begun, proceed := &journal{}, make(chan struct{}), make(chan struct{})
	migrations := []*goose.Migration{migration(1, func(context.Context, *sql.Tx) error {
		defer j.begin(1)()
		close(begun)
		<-proceed
		return nil
	})}
	l := locker(m)
	u := begin(t, t.Context(), provider(t, path, l, migrations...))
	receive(t, begun, "the migration")
	breakLock(t, operator.Client, true)
	require.Eventually(t, func() bool { return m.Stats().Broken == 1 && m.Stats().Held == 0 }, patience, time.Millisecond)

	// The next Up has the lock, but waits for the first one until its own context ends.
	ctx, cancel := context.WithCancel(t.Context())
	hasty := begin(t, ctx, provider(t, path, l, migrations...))
	held := func() bool { return m.Stats().Held == 1 }
	require.Eventually(t, held, patience, time.Millisecond)
	cancel()
	receive(t, hasty.done, "the end of a wait")
	require.ErrorIs(t, hasty.err, context.Canceled)
	require.ErrorContains(t, hasty.err, "has not ended")
	follower := begin(t, t.Context(), provider(t, path, l, migrations...))
	require.Eventually(t, held, patience, time.Millisecond)

	close(proceed)
	receive(t, u.done, "the end of Up")
	require.ErrorIs(t, u.err, natslock.ErrBroken)
	require.Len(t, u.results, 1)
	receive(t, follower.done, "the end of the next Up")
	require.NoError(t, follower.err)
	require.Empty(t, follower.results)
	require.Equal(t, []int64{1}, j.begun)
}

// TestUnlockAfterCancel checks that canceling Up's context releases the lock.
func TestUnlockAfterCancel(t *testing.T) {
	s, path := testutil.RunServer(t), database(t)
	m := join(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	p := provider(t, path, locker(m), migration(1, func(ctx context.Context, _ *sql.Tx) error {
		cancel()
		<-ctx.Done()
		return ctx.Err()
	}))
	_, err := p.Up(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, natslock.ErrLost)
	info, err := admin.New(m.Client).Inspect(t.Context(), admin.KindMutex, name)
	require.NoError(t, err)
	require.Nil(t, info.Holder)
}

// TestWhichCallsLock checks which calls of goose take the lock and which do not. MaxWait bounds
// their wait.
func TestWhichCallsLock(t *testing.T) {
	s, path := testutil.RunServer(t), database(t)
	m, other := join(t, s), join(t, s)
	migrated := false
	p := provider(t, path, locker(m, natslock.MaxWait(10*time.Millisecond)), migration(1, func(context.Context, *sql.Tx) error {
		migrated = true
		return nil
	}))
	held, err := other.Lock(t.Context(), name)
	require.NoError(t, err)
	ctx := t.Context()
	for call, do := range map[string]func() error{
		"Up":           func() error { _, err := p.Up(ctx); return err },
		"UpTo":         func() error { _, err := p.UpTo(ctx, 1); return err },
		"UpByOne":      func() error { _, err := p.UpByOne(ctx); return err },
		"Down":         func() error { _, err := p.Down(ctx); return err },
		"DownTo":       func() error { _, err := p.DownTo(ctx, 0); return err },
		"ApplyVersion": func() error { _, err := p.ApplyVersion(ctx, 1, true); return err },
		"Status":       func() error { _, err := p.Status(ctx); return err },
		"GetDBVersion": func() error { _, err := p.GetDBVersion(ctx); return err },
	} {
		err := do()
		require.ErrorIs(t, err, natslock.ErrTimeout, call)
		var timeout *natslock.TimeoutError
		require.ErrorAs(t, err, &timeout, call)
	}
	pending, err := p.HasPending(ctx)
	require.NoError(t, err)
	require.True(t, pending)
	_, _, err = p.GetVersions(ctx)
	require.NoError(t, err)
	require.False(t, migrated)

	require.NoError(t, held.Unlock(ctx))
	_, err = p.Up(ctx)
	require.NoError(t, err)
	require.True(t, migrated)

	_, err = other.Lock(ctx, name)
	require.NoError(t, err)
	_, err = p.Up(ctx)
	require.NoError(t, err, "nothing is pending")
	_, err = p.UpByOne(ctx)
	require.ErrorIs(t, err, goose.ErrNoNextVersion)
}

// TestRefused checks that Unlock without Lock fails, and so does Lock with an invalid name or
// option.
func TestRefused(t *testing.T) {
	s := testutil.RunServer(t)
	m := join(t, s)
	l := gooselock.NewLocker(m, name)
	require.ErrorIs(t, l.Unlock(t.Context(), nil), natslock.ErrReleased)
	require.ErrorIs(t, l.SessionUnlock(t.Context(), nil), natslock.ErrReleased)
	require.ErrorIs(t, gooselock.NewLocker(m, "").Lock(t.Context(), nil), natslock.ErrInvalid)
	require.ErrorIs(t, gooselock.NewLocker(m, name, natslock.MaxWait(-1)).Lock(t.Context(), nil), natslock.ErrInvalid)
}
