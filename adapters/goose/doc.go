// Package gooselock makes the replicas of a service migrate their database one after another.
// It implements the lockers of github.com/pressly/goose/v3 on locks of natslock, for any
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
// Up, UpTo and UpByOne first check without the lock whether migrations are pending, and take it
// only then. Down, DownTo, ApplyVersion, Status and GetDBVersion always take it, and HasPending
// and GetVersions never do. goose keeps the lock for all migrations of the call.
//
// The replicas take turns in the order in which they queue. The first one applies all
// migrations, and the others find none pending.
//
// # When the lock is lost
//
// goose does not watch its lock. With [UntilLost] the context of the call ends with the lock,
// and goose stops: the statement is interrupted and its transaction rolled back. A migration
// that runs without a transaction can then be partly applied.
//
// Without UntilLost the migrations continue, and another replica can migrate at the same time.
// In both cases the call's error matches [natslock.ErrLost], because goose returns the error of
// the unlock. Migrations that were applied earlier are in the results or in a
// goose.PartialError.
package gooselock
