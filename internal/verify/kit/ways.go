package kit

import (
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/rwlock"
)

// Mutex waits for a mutex.
func Mutex(c *natslock.Client) Taking { return c.Lock }

// TryMutex tries once to take a mutex.
func TryMutex(c *natslock.Client) Taking { return c.TryLock }

// Writer waits for the write lock.
func Writer(c *natslock.Client) Taking { return rwlock.New(c).Lock }

// TryWriter tries once to take the write lock.
func TryWriter(c *natslock.Client) Taking { return rwlock.New(c).TryLock }

// Reader waits for a read lock.
func Reader(c *natslock.Client) Taking { return rwlock.New(c).RLock }

// TryReader tries once to take a read lock.
func TryReader(c *natslock.Client) Taking { return rwlock.New(c).TryRLock }
