package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/natslock/locks/natslock"
)

// maxKeep is the longest keep that [natslock.Client.Once] accepts.
const maxKeep = 365 * 24 * time.Hour

// checkKeep validates --keep and the flags used with it, and makes --keep imply --nonblock.
func (c *runCmd) checkKeep() error {
	switch {
	case c.Keep == nil:
		return nil
	case *c.Keep < time.Second || *c.Keep > maxKeep:
		return fmt.Errorf("--keep %v: must be from 1s to %.0fh", *c.Keep, maxKeep.Hours())
	case c.Read || c.Write || c.Permits != nil:
		return errors.New("--keep takes a mutex: it cannot be combined with --read, --write or --permits")
	case c.Wait != nil && !c.once():
		return errors.New("--keep and --wait are mutually exclusive: --keep does not wait")
	}
	c.Nonblock = true
	return nil
}

// job runs a command under [natslock.Client.Once]. The function passed to Once delivers the
// lock and then waits for the command's result.
type job struct {
	client *natslock.Client
	keep   time.Duration
	result chan error // the command's result
	ended  chan error // the error that Once returned
}

func newJob(client *natslock.Client, keep time.Duration) *job {
	return &job{client, keep, make(chan error, 1), make(chan error, 1)}
}

// take is a [lockFunc]. Its error matches [natslock.ErrDone] if the job has already been done.
func (j *job) take(ctx context.Context, name string, opts ...natslock.LockOption) (*natslock.Lock, error) {
	held := make(chan *natslock.Lock, 1)
	go func() {
		j.ended <- j.client.Once(ctx, name, j.keep, func(_ context.Context, l *natslock.Lock) error {
			held <- l
			return <-j.result
		}, opts...)
	}()
	select {
	case l := <-held:
		return l, nil
	case err := <-j.ended:
		return nil, err
	}
}

var errNotDone = errors.New("the job is not done")

// end records that the job is done, or releases the lock so that the job can run again. It
// returns the error from Once.
func (j *job) end(done bool) error {
	if done {
		j.result <- nil
		err := <-j.ended
		if err != nil && !errors.Is(err, natslock.ErrLost) {
			return fmt.Errorf("the command exited with 0, but the server has not confirmed that the job is done; it may run again: %w", err)
		}
		return err
	}
	j.result <- errNotDone
	if err := <-j.ended; err != errNotDone {
		return err
	}
	return nil
}
