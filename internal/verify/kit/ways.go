package kit

import (
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/rwlock"
)

// Mutex waits for a mutex.
func Mutex(c *natslock.Client) Taking { return c.Lock }

// TryMutex tries a mutex once.
func TryMutex(c *natslock.Client) Taking { return c.TryLock }

// Writer waits to write.
func Writer(c *natslock.Client) Taking { return rwlock.New(c).Lock }

// TryWriter tries to write once.
func TryWriter(c *natslock.Client) Taking { return rwlock.New(c).TryLock }

// Reader waits to read.
func Reader(c *natslock.Client) Taking { return rwlock.New(c).RLock }

// TryReader tries to read once.
func TryReader(c *natslock.Client) Taking { return rwlock.New(c).TryRLock }
