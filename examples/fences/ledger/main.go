// Command ledger increments, under a lock, the balance of an account in a SQL database
// that several processes share. A row keeps the fencing token of its last writer, and
// each statement that changes the row compares tokens.
//
// Stop a running process, as if its machine were suspended. Its lease ends, and the next
// process takes over. When the first process wakes up, the database refuses its write:
//
//	cd examples/fences; lockctl server &
//	go build -o /tmp/ledger ./ledger
//	/tmp/ledger & first=$!; sleep 1; kill -STOP $first
//	/tmp/ledger -times 5; kill -CONT $first; sleep 1; kill $first
package main

import (
	"cmp"
	"context"
	"database/sql"
	"flag"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	_ "modernc.org/sqlite"

	"github.com/natslock/locks/examples/fences"
	"github.com/natslock/locks/natslock"
)

func main() {
	server := flag.String("server", cmp.Or(os.Getenv("NATS_URL"), nats.DefaultURL), "NATS `URL`")
	file := flag.String("db", filepath.Join(os.TempDir(), "ledger.db"), "SQLite `file`")
	times := flag.Int("times", 1000, "number of increments")
	flag.Parse()
	log.SetFlags(log.Lmicroseconds)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *server, *file, *times); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, server, file string, times int) error {
	db, err := sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(10000)")
	if err != nil {
		return err
	}
	defer db.Close()
	nc, err := nats.Connect(server, nats.Name("ledger"), nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort())
	if err != nil {
		return err
	}
	defer nc.Close()
	locks, err := natslock.New(ctx, nc, natslock.WithTTL(2*time.Second))
	if err != nil {
		return err
	}
	defer locks.Close(context.Background()) // before nc.Close
	l, err := locks.Lock(ctx, "accounts.shared")
	if err != nil {
		return err
	}
	defer l.Unlock(ctx)
	return count(ctx, db, l.Token(), times)
}

// count adds 1 to the balance the given number of times. To simulate code that does not
// notice the loss of its lock, it does not use the lock's context.
func count(ctx context.Context, db *sql.DB, token uint64, times int) error {
	for _, statement := range []string{
		fences.Schema,
		`INSERT INTO accounts (id, balance) VALUES ('shared', 0) ON CONFLICT DO NOTHING`,
	} {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	// Read the balance only as part of the claim, because after that no older holder can
	// change it.
	balance, err := fences.Claim(ctx, db, token, "shared")
	if err != nil {
		return err
	}
	for range times {
		select {
		case <-time.After(50 * time.Millisecond): // the work
		case <-ctx.Done():
			return nil
		}
		balance++
		if err := fences.SetBalance(ctx, db, token, "shared", balance); err != nil {
			return err // fence.ErrSuperseded: a newer holder is at work
		}
		log.Printf("pid %d: balance %d, token %d", os.Getpid(), balance, token)
	}
	return nil
}
