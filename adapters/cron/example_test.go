package cronlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/robfig/cron/v3"

	cronlock "github.com/natslock/locks/adapters/cron"
	"github.com/natslock/locks/internal/verify/example"
	"github.com/natslock/locks/natslock"
)

// All replicas of a service have this job, and one of them runs it each hour. The job stops when
// its lock is lost.
func ExampleOnceFunc() {
	locks, done := example.Client() // natslock.New(ctx, nc)
	defer done()

	c := cron.New()
	job := cronlock.OnceFunc(locks, "billing.report", func(ctx context.Context, l *natslock.Lock) error {
		return report(ctx, l.Token())
	})
	id, err := c.AddJob("0 * * * *", job)
	if err != nil {
		log.Fatal(err)
	}
	c.Start()
	c.Entry(id).WrappedJob.Run() // instead of waiting for an hour
	<-c.Stop().Done()
	// Output:
	// reported, with a token: true
}

func report(_ context.Context, token uint64) error {
	_, err := fmt.Println("reported, with a token:", token > 0)
	return err
}

// A job without a context can be wrapped in a chain. Once lets a panic pass through to Recover.
func ExampleOnce() {
	locks, done := example.Client()
	defer done()
	cleanup := cron.FuncJob(func() { fmt.Println("cleaned up") })

	c := cron.New()
	once := cronlock.Once(locks, "billing.cleanup", cronlock.OnError(func(err error) {
		if !errors.Is(err, natslock.ErrLocked) { // another replica has the tick
			log.Print(err)
		}
	}))
	id, err := c.AddJob("@daily", cron.NewChain(cron.Recover(cron.DefaultLogger), once).Then(cleanup))
	if err != nil {
		log.Fatal(err)
	}
	c.Start()
	c.Entry(id).WrappedJob.Run() // instead of waiting for a day
	<-c.Stop().Done()
	// Output:
	// cleaned up
}

// A service can stop its jobs when it shuts down.
func ExampleContext() {
	locks, done := example.Client()
	defer done()
	ctx, stop := context.WithCancel(context.Background())
	begun := make(chan struct{})

	c := cron.New()
	id, err := c.AddJob("@hourly", cronlock.OnceFunc(locks, "billing.export", func(ctx context.Context, _ *natslock.Lock) error {
		close(begun)
		<-ctx.Done()
		fmt.Println("stopped:", ctx.Err())
		return nil
	}, cronlock.Context(ctx)))
	if err != nil {
		log.Fatal(err)
	}
	c.Start()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.Entry(id).WrappedJob.Run() // instead of waiting for an hour
	}()
	<-begun
	stop()
	<-c.Stop().Done()
	<-ended
	// Output:
	// stopped: context canceled
}
