package main

import (
	"errors"
	"fmt"

	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/rwlock"
	"github.com/natslock/locks/semaphore"
)

// choice is the set of flags that select the lock's kind and mode.
type choice struct {
	Read    bool `help:"Take the lock for reading, shared with other readers."`
	Write   bool `help:"Take the lock for writing, exclusively."`
	Permits *int `placeholder:"N" help:"Take one of N permits (1 to 256)."`
}

// check validates what kong's tags cannot express.
func (c *choice) check() error {
	switch {
	case c.Read && c.Write:
		return errors.New("--read and --write are mutually exclusive")
	case c.Permits != nil && (c.Read || c.Write):
		return errors.New("--permits cannot be combined with --read or --write")
	case c.Permits != nil && (*c.Permits < 1 || *c.Permits > semaphore.MaxPermits):
		return fmt.Errorf("--permits %d: must be from 1 to %d", *c.Permits, semaphore.MaxPermits)
	}
	return nil
}

// kind returns the kind of lock that the flags select.
func (c *choice) kind() admin.Kind {
	switch {
	case c.Permits != nil:
		return admin.KindSemaphore
	case c.Read || c.Write:
		return admin.KindRW
	}
	return admin.KindMutex
}

// method returns the function that takes the selected lock. It also records in how.nesting what
// the command wants.
func (c *choice) method(client *natslock.Client, how *taking) lockFunc {
	how.nesting.shared = c.Read
	switch rw := rwlock.New(client); {
	case c.Permits != nil:
		how.nesting.permits = *c.Permits
		sem := semaphore.New(client, *c.Permits)
		if how.once() {
			return sem.TryAcquire
		}
		return sem.Acquire
	case c.Read && how.once():
		return unqueued(client, admin.KindRW, rw.TryRLock)
	case c.Read:
		return how.nesting.reads(client, rw.TryRLock, rw.RLock)
	}
	return how.exclusive(client, c.Write)
}
