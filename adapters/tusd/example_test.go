package tusdlock_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/tus/tusd/v2/pkg/filestore"
	"github.com/tus/tusd/v2/pkg/handler"

	tusdlock "github.com/natslock/locks/adapters/tusd"
	"github.com/natslock/locks/internal/verify/example"
	"github.com/natslock/locks/natslock"
)

// All servers share the store, and each request locks its upload.
func ExampleNew() {
	ctx := context.Background()
	nc, stop := example.Connect()
	defer stop()
	dir, err := os.MkdirTemp("", "uploads-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	locks, err := natslock.New(ctx, nc)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close(context.Background()) // after the HTTP server has shut down, when ctx is canceled
	composer := handler.NewStoreComposer()
	filestore.New(dir).UseIn(composer)
	tusdlock.New(locks).UseIn(composer)

	uploads, err := handler.NewHandler(handler.Config{BasePath: "/files/", StoreComposer: composer})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(uploads.SupportedExtensions())
	// Output: creation,creation-with-upload,termination,concatenation,creation-defer-length
}

// UseIn sets the locker of a composer, in combination with any store.
func ExampleLocker_UseIn() {
	locks, done := example.Client()
	defer done()

	composer := handler.NewStoreComposer()
	tusdlock.New(locks).UseIn(composer)
	fmt.Println(composer.UsesLocker)
	// Output: true
}

// The second request asks the first to stop, and continues when the first has unlocked.
func ExampleLocker_NewLock() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()
	locker := tusdlock.New(locks)

	first, _ := locker.NewLock("uploads/1")
	err := first.Lock(ctx, func() {
		fmt.Println("first: asked to stop")
		_ = first.Unlock()
	})
	if err != nil {
		log.Fatal(err)
	}
	second, _ := locker.NewLock("uploads/1")
	if err := second.Lock(ctx, func() {}); err != nil {
		log.Fatal(err)
	}
	fmt.Println("second: locked")
	fmt.Println(second.Unlock())
	// Output:
	// first: asked to stop
	// second: locked
	// <nil>
}
