package main

import (
	"context"
	"errors"
	"io/fs"
	"log"
	"os"
	"time"

	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/rwlock"
)

type cache struct {
	locks *rwlock.RWLock
	file  string
	age   time.Duration
}

// use reads the cache, and rewrites it if it is too old. The read lock lingers, so further
// reads cost no messages until some process wants to write.
func (c cache) use(ctx context.Context) error {
	old := false
	err := c.locks.RDo(ctx, "cache", func(context.Context, *natslock.Lock) (err error) {
		old, err = c.read()
		return err
	}, natslock.Linger(10*time.Second))
	if err != nil || !old {
		return err
	}
	return c.locks.Do(ctx, "cache", func(ctx context.Context, l *natslock.Lock) error {
		if old, err := c.read(); err != nil || !old {
			return err // another process has rewritten it in the meantime
		}
		log.Printf("writing, token %d", l.Token())
		return os.WriteFile(c.file, []byte(time.Now().Format(time.RFC3339Nano)), 0o600)
	}, natslock.MaxWait(5*time.Second))
}

// read reads the cache, and reports whether it is too old.
func (c cache) read() (old bool, err error) {
	text, err := os.ReadFile(c.file)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	} else if err != nil {
		return false, err
	}
	written, err := time.Parse(time.RFC3339Nano, string(text)) // fails if the file is half written
	return time.Since(written) > c.age, err
}
