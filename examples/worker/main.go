// Command worker processes jobs from a stream, in any number of processes. A customer's
// jobs run one at a time, and jobs of different customers run in parallel. On SIGTERM, a
// worker finishes and acknowledges its current job.
package main

import (
	"cmp"
	"context"
	"errors"
	"log"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/natslock"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	nc, err := nats.Connect(cmp.Or(os.Getenv("NATS_URL"), nats.DefaultURL), nats.Name("worker"), nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort())
	if err != nil {
		log.Fatal(err)
	}
	locks, err := natslock.New(ctx, nc)
	if err != nil {
		log.Fatal(err)
	}
	jobs, err := consume(ctx, nc)
	if err != nil {
		log.Fatal(err)
	}
	context.AfterFunc(ctx, jobs.Stop) // take no more jobs
	workers := new(sync.WaitGroup)
	workers.Go(func() {
		for {
			job, err := jobs.Next()
			if errors.Is(err, jetstream.ErrMsgIteratorClosed) {
				return
			} else if err != nil {
				log.Print(err) // the server is unreachable; Next continues when it is back
				continue
			}
			// The signal ends the wait for the lock but, thanks to Detached, not the work.
			err = locks.Do(ctx, job.Subject(), func(ctx context.Context, _ *natslock.Lock) error {
				return work(ctx, string(job.Data()))
			}, natslock.Detached(), natslock.MaxWait(10*time.Second))
			if err != nil {
				log.Print(err)
				_ = job.NakWithDelay(time.Second) // not done, not exclusive, or not released in time: it will run again
			} else if err := job.DoubleAck(context.Background()); err != nil {
				log.Print(err) // the job will be redelivered
			}
		}
	})

	<-ctx.Done()
	end, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	err = errors.Join(
		locks.Close(end),   // waits until the current job is done
		wait(end, workers), // and acknowledged
	)
	nc.Close() // close the connection last
	if err != nil {
		log.Fatal(err)
	}
}

// wait waits until the workers have returned or ctx ends.
func wait(ctx context.Context, workers *sync.WaitGroup) error {
	done := make(chan struct{})
	go func() {
		workers.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
