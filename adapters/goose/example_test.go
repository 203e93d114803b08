package gooselock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"testing/fstest"

	"github.com/pressly/goose/v3"
	_ "modernc.org/sqlite"

	gooselock "github.com/natslock/locks/adapters/goose"
	"github.com/natslock/locks/internal/verify/example"
	"github.com/natslock/locks/natslock"
)

// A service migrates its database when it starts. Its replicas take turns, and the first one
// applies all migrations.
func ExampleNewLocker() {
	locks, done := example.Client() // natslock.New(ctx, nc)
	defer done()
	ctx := context.Background()
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	db.SetMaxOpenConns(1)       // an in-memory database belongs to its connection
	migrations := fstest.MapFS{ // in a service, an embed.FS
		"00001_bills.sql": {Data: []byte("-- +goose Up\nCREATE TABLE bills (id INTEGER PRIMARY KEY);\n")},
	}

	locker := gooselock.NewLocker(locks, "billing.migrations")
	provider, err := goose.NewProvider(goose.DialectSQLite3, db, migrations, goose.WithLocker(locker))
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := gooselock.UntilLost(ctx)
	defer cancel()
	results, err := provider.Up(ctx)

	fmt.Println(len(results), "applied,", err)
	// Output:
	// 1 applied, <nil>
}

// UntilLost stops the migrations when the lock is lost, and the service reports that they stopped.
func ExampleUntilLost() {
	locks, done := example.Client()
	defer done()
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	provider, err := goose.NewProvider(goose.DialectSQLite3, db, nil,
		goose.WithLocker(gooselock.NewLocker(locks, "billing.migrations")),
		goose.WithGoMigrations(goose.NewGoMigration(1, &goose.GoFunc{RunTx: func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "CREATE TABLE bills (id INTEGER PRIMARY KEY)") // ends with the lock
			return err
		}}, nil)))
	if err != nil {
		log.Fatal(err)
	}

	ctx, cancel := gooselock.UntilLost(context.Background())
	defer cancel()
	switch _, err := provider.Up(ctx); {
	case errors.Is(err, natslock.ErrLost):
		fmt.Println("another replica may have migrated:", err)
	case errors.Is(err, natslock.ErrUnavailable):
		fmt.Println("migrated, but the next replica may have to wait:", err)
	case err != nil:
		log.Fatal(err)
	default:
		fmt.Println("migrated")
	}
	// Output:
	// migrated
}
