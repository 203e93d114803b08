// Command asynq enqueues one task in Redis at each tick of a schedule, no matter how many
// replicas run. Workers with an asynq.Server process the tasks.
//
// An election chooses the replica that enqueues. When the leader exits or dies, the next
// one starts a minute in the past, so that no tick is missed. The ID of a task is its tick,
// and Redis refuses an ID that it already has, so each tick has one task even if a
// suspended leader does not yet know that another one leads. asynq.Scheduler does not
// derive IDs from ticks, so this program enqueues the tasks itself.
//
//	cd examples/asynq; lockctl server & redis-server &
//	for i in 1 2 3; do go run . -cron '*/5 * * * * *' & done; wait
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/hibiken/asynq"
	"github.com/nats-io/nats.go"
	"github.com/robfig/cron/v3"

	"github.com/natslock/locks/election"
	"github.com/natslock/locks/natslock"
)

const (
	// late is how old a tick can be and still be enqueued. It must exceed the time without
	// a leader, which is one TTL plus half a second.
	late = time.Minute
	// retention is how long Redis remembers a tick after its task is done. It must be much
	// longer than late.
	retention = 24 * time.Hour
)

func main() {
	server := flag.String("server", cmp.Or(os.Getenv("NATS_URL"), nats.DefaultURL), "NATS `URL`")
	redis := flag.String("redis", cmp.Or(os.Getenv("REDIS_URL"), "redis://127.0.0.1:6379"), "Redis `URL`")
	spec := flag.String("cron", "* * * * *", "the `schedule` in UTC: five fields, or six starting with seconds")
	ttl := flag.Duration("ttl", 5*time.Second, "how long others wait after the leader crashes")
	flag.Parse()
	log.SetFlags(log.Lmicroseconds)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *server, *redis, *spec, *ttl); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, server, redis, spec string, ttl time.Duration) error {
	every, err := parse(spec)
	if err != nil {
		return err
	}
	to, err := asynq.ParseRedisURI(redis)
	if err != nil {
		return err
	}
	queue := asynq.NewClient(to)
	defer queue.Close()

	nc, err := nats.Connect(server, nats.Name("asynq"), nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort())
	if err != nil {
		return err
	}
	defer nc.Close()
	locks, err := natslock.New(ctx, nc, natslock.WithTTL(ttl))
	if err != nil {
		return err
	}
	log.Printf("pid %d: campaigning", os.Getpid())
	err = election.New(locks, "scheduler").Run(ctx, func(ctx context.Context, t *election.Term) error {
		log.Printf("pid %d: leading, token %d", os.Getpid(), t.Token())
		err := schedule(ctx, queue, every)
		log.Printf("pid %d: no longer leading: %v", os.Getpid(), err)
		return err
	})
	if ctx.Err() == nil {
		return err // another campaign would fail in the same way
	}
	return locks.Close(context.Background())
}

// parse rejects schedules such as "@every 5m", whose ticks would depend on when the leader
// started.
func parse(spec string) (cron.Schedule, error) {
	return cron.NewParser(cron.SecondOptional | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow).Parse(spec)
}

// schedule enqueues a task at each tick until ctx ends or Redis fails. If Redis fails,
// another replica, which may be able to reach Redis, takes over and starts with the missed
// tick.
func schedule(ctx context.Context, queue *asynq.Client, every cron.Schedule) error {
	tick := every.Next(time.Now().UTC().Add(-late))
	for {
		select {
		case <-time.After(time.Until(tick)):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err := enqueue(ctx, queue, tick); err != nil {
			return err
		}
		tick = every.Next(tick)
	}
}

// enqueue enqueues the task for a tick unless Redis already has it.
func enqueue(ctx context.Context, queue *asynq.Client, tick time.Time) error {
	at := tick.Format(time.RFC3339)
	_, err := queue.EnqueueContext(ctx, asynq.NewTask("report", []byte(at)),
		asynq.TaskID("report:"+at), asynq.Retention(retention))
	switch {
	case errors.Is(err, asynq.ErrTaskIDConflict):
		log.Printf("pid %d: tick %s was already enqueued", os.Getpid(), at)
	case err != nil:
		return err
	default:
		log.Printf("pid %d: enqueued tick %s", os.Getpid(), at)
	}
	return nil
}
