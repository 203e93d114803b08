// Command mutex increments, under a lock, a number that many processes share. The record
// keeps the fencing token of its last writer, and a writer with a lower token is refused,
// so a process that was suspended and lost the lock without noticing does no harm.
//
//	lockctl server &
//	(for i in 1 2 3; do go run ./examples/mutex & done; wait)
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/natslock"
)

// account is the shared resource. Token is the fencing token of its last writer.
type account struct {
	Balance int    `json:"balance"`
	Token   uint64 `json:"token"`
}

var errFenced = errors.New("a holder with a higher token has already written")

func main() {
	server := flag.String("server", cmp.Or(os.Getenv("NATS_URL"), nats.DefaultURL), "NATS `URL`")
	times := flag.Int("times", 10, "`number` of increments")
	flag.Parse()
	log.SetFlags(log.Lmicroseconds)
	if err := run(*server, *times); err != nil {
		log.Fatal(err)
	}
}

func run(server string, times int) error {
	ctx := context.Background()
	nc, err := nats.Connect(server, nats.Name("mutex"), nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort())
	if err != nil {
		return err
	}
	defer nc.Close()
	locks, err := natslock.New(ctx, nc)
	if err != nil {
		return err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	kv, err := js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: "example-accounts"})
	if err != nil {
		return err
	}
	for range times {
		err := locks.Do(ctx, "accounts.shared", func(ctx context.Context, l *natslock.Lock) error {
			// ctx ends with the lock, so nothing here outlives the lock for long.
			return deposit(ctx, kv, 1, l.Token())
		}, natslock.MaxWait(time.Minute))
		if err != nil {
			return err
		}
	}
	return locks.Close(ctx)
}

// deposit reads, changes and writes the account.
func deposit(ctx context.Context, kv jetstream.KeyValue, amount int, token uint64) error {
	var a account
	entry, err := kv.Get(ctx, "shared")
	if err != nil && !errors.Is(err, jetstream.ErrKeyNotFound) {
		return err
	}
	var revision uint64
	if err == nil {
		revision = entry.Revision()
		if err := json.Unmarshal(entry.Value(), &a); err != nil {
			return err
		}
	}
	if a.Token > token {
		return errFenced
	}
	a.Balance, a.Token = a.Balance+amount, token
	value, err := json.Marshal(a)
	if err != nil {
		return err
	}
	// The check above and this write are atomic, because a write in between would change
	// the revision and make this write fail.
	if _, err := kv.Update(ctx, "shared", value, revision); err != nil {
		return fmt.Errorf("%w: %w", errFenced, err)
	}
	log.Printf("pid %d: balance %d, token %d", os.Getpid(), a.Balance, token)
	return nil
}
