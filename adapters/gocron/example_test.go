package gocronlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/go-co-op/gocron/v2"

	gocronlock "github.com/natslock/locks/adapters/gocron"
	"github.com/natslock/locks/election"
	"github.com/natslock/locks/internal/verify/example"
	"github.com/natslock/locks/natslock"
)

// The replicas of a service share the runs of a job: each tick runs once, on one of the replicas.
func ExampleNewLocker() {
	locks, done := example.Client() // natslock.New(ctx, nc)
	defer done()
	reported := make(chan string, 10)
	report := func(_ context.Context, token uint64) { reported <- fmt.Sprint("reported, with a token: ", token > 0) }

	locker := gocronlock.NewLocker(locks)
	task := gocron.NewTask(func() {
		lock := locker.Held("billing.report") // its context ends with the lock
		report(lock.Context(), lock.Token())
	})
	s, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
	if err != nil {
		log.Fatal(err)
	}
	job, err := s.NewJob(gocron.CronJob("* * * * *", false), task, gocron.WithName("billing.report"))
	if err != nil {
		log.Fatal(err)
	}

	s.Start()
	if err := job.RunNow(); err != nil { // instead of waiting for a minute
		log.Fatal(err)
	}
	fmt.Println(<-reported)
	if err := s.Shutdown(); err != nil {
		log.Print(err)
	}
	// Output:
	// reported, with a token: true
}

// OnError is needed because gocron drops the errors of unlocks and does not report a lost lock.
func ExampleOnError() {
	locks, done := example.Client()
	defer done()

	locker := gocronlock.NewLocker(locks, gocronlock.OnError(func(job string, err error) {
		if errors.Is(err, natslock.ErrLost) {
			log.Printf("%s may have run twice: %v", job, err)
		}
	}))
	s, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
	if err != nil {
		log.Fatal(err)
	}
	_ = s.Shutdown()
	// Output:
}

// A job that runs every five seconds needs a shorter minimum hold than the default.
func ExampleMinHold() {
	locks, done := example.Client()
	defer done()
	ran := make(chan string, 10)

	s, err := gocron.NewScheduler()
	if err != nil {
		log.Fatal(err)
	}
	job, err := s.NewJob(gocron.CronJob("*/5 * * * * *", true), gocron.NewTask(func() { ran <- "polled" }),
		gocron.WithName("billing.poll"),
		gocron.WithDistributedJobLocker(gocronlock.NewLocker(locks, gocronlock.MinHold(time.Second))))
	if err != nil {
		log.Fatal(err)
	}
	s.Start()
	if err := job.RunNow(); err != nil { // instead of waiting for five seconds
		log.Fatal(err)
	}
	fmt.Println(<-ran)
	_ = s.Shutdown()
	// Output:
	// polled
}

// One replica of this service runs all jobs.
func ExampleNewElector() {
	locks, done := example.Client() // natslock.New(ctx, nc)
	defer done()
	ctx, stop := context.WithCancel(context.Background())
	ran := make(chan string, 1)
	report := func(_ context.Context, token uint64) {
		select {
		case ran <- fmt.Sprint("the leader reported, with a token: ", token > 0):
		default:
		}
	}

	elector := gocronlock.NewElector(election.New(locks, "billing.scheduler"))
	campaign := make(chan error)
	go func() { campaign <- elector.Run(ctx) }()

	s, err := gocron.NewScheduler(gocron.WithDistributedElector(elector))
	if err != nil {
		log.Fatal(err)
	}
	_, err = s.NewJob(gocron.DurationJob(10*time.Millisecond), gocron.NewTask(func() {
		term := elector.Term() // its context ends with the term
		report(term.Context(), term.Token())
	}))
	if err != nil {
		log.Fatal(err)
	}

	s.Start()
	fmt.Println(<-ran)
	_ = s.Shutdown()
	stop()
	<-campaign // the next leader follows immediately
	// Output:
	// the leader reported, with a token: true
}
