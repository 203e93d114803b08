package certmagiclock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/caddyserver/certmagic"
	"go.uber.org/zap"

	certmagiclock "github.com/natslock/locks/adapters/certmagic"
	"github.com/natslock/locks/internal/verify/example"
	"github.com/natslock/locks/natslock"
)

// The instances of a cluster share a directory, and each takes a lock before it obtains a
// certificate.
func ExampleNew() {
	ctx := context.Background()
	nc, stop := example.Connect()
	defer stop()
	dir, err := os.MkdirTemp("", "certmagic-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	locks, err := natslock.New(ctx, nc)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close(context.Background()) // before nc.Close; a canceled ctx would not wait for holders
	certmagic.Default.Storage = certmagiclock.New(&certmagic.FileStorage{Path: dir}, locks)

	cfg, stopCache := newConfig(nil, newAuthority(), zap.NewNop())
	defer stopCache()
	fmt.Println(cfg.ManageSync(ctx, []string{"example.com"}))
	fmt.Println(locks.Stats().Granted, "lock taken")
	// Output:
	// <nil>
	// 1 lock taken
}

// newStorage returns a storage as in the example of New. Its directory does not exist yet.
func newStorage() (storage *certmagiclock.Storage, done func()) {
	locks, done := example.Client()
	return certmagiclock.New(&certmagic.FileStorage{Path: "certificates"}, locks), done
}

// A name may contain any characters. Only one goroutine in the cluster can hold it at a time.
func ExampleStorage_Lock() {
	ctx := context.Background()
	storage, done := newStorage()
	defer done()

	if err := storage.Lock(ctx, "issue_cert_*.example.com"); err != nil {
		log.Fatal(err)
	}
	fmt.Println("locked")
	fmt.Println(storage.Unlock(ctx, "issue_cert_*.example.com"))
	// Output:
	// locked
	// <nil>
}

// TryLock does not wait.
func ExampleStorage_TryLock() {
	ctx := context.Background()
	storage, done := newStorage()
	defer done()

	for range 2 {
		locked, err := storage.TryLock(ctx, "ari_1")
		fmt.Println(locked, err)
	}
	fmt.Println(storage.Unlock(ctx, "ari_1"))
	// Output:
	// true <nil>
	// false <nil>
	// <nil>
}

// RenewLockLease asks the server whether the lock is still held, and acquires a lost lock again.
func ExampleStorage_RenewLockLease() {
	ctx := context.Background()
	storage, done := newStorage()
	defer done()

	if err := storage.Lock(ctx, "issue_cert_example.com"); err != nil {
		log.Fatal(err)
	}
	fmt.Println(storage.RenewLockLease(ctx, "issue_cert_example.com", time.Hour))
	fmt.Println(storage.Unlock(ctx, "issue_cert_example.com"))
	// Output:
	// <nil>
	// <nil>
}

// Unlock returns an error if the name is not locked or the lock was lost.
func ExampleStorage_Unlock() {
	storage, done := newStorage()
	defer done()

	err := storage.Unlock(context.Background(), "storage_clean")
	fmt.Println(errors.Is(err, natslock.ErrReleased), errors.Is(err, natslock.ErrLost))
	// Output: true false
}

// Certmagic logs the description.
func ExampleStorage_String() {
	storage, done := newStorage()
	defer done()

	fmt.Println(storage)
	// Output: FileStorage:certificates
}
