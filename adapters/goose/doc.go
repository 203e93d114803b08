// Package gooselock makes a service's replicas take turns migrating their database. It implements
// the locker interfaces of github.com/pressly/goose/v3 with natslock locks, and works with any
// database that goose supports.
//
//	locker := gooselock.NewLocker(locks, "billing.migrations")
//	provider, err := goose.NewProvider(goose.DialectSQLite3, db, migrations, goose.WithLocker(locker))
//	...
//	ctx, cancel := gooselock.UntilLost(ctx)
//	defer cancel()
//	results, err := provider.Up(ctx)
//
// # Which calls take the lock
//
// Up, UpTo and UpByOne first check, without the lock, whether any migrations are pending, and
// take the lock only if so. Down, DownTo, ApplyVersion, Status and GetDBVersion always take it,
// and HasPending and GetVersions never do. goose holds the lock for all of the call's migrations.
//
// Replicas take turns in the order in which they queue. The first one applies all migrations, and
// the others find none pending.
//
// # When the lock is lost
//
// goose does not watch its lock. With [UntilLost], the call's context ends with the lock, which
// stops goose: the running statement is interrupted and its transaction rolled back. A migration
// that runs without a transaction may be left partly applied.
//
// Without UntilLost, the migrations continue, and another replica may migrate at the same time.
// In both cases the call's error matches [natslock.ErrLost], because goose returns the error from
// Unlock. Migrations that had already been applied are in the results or in a goose.PartialError.
package gooselock
