package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/natslock/locks/natslock"
)

// waitNotice is how long lockctl waits for a lock before it says so.
const waitNotice = time.Second

// noticed says that lockctl waits, for whom and at which place, when that takes a while.
// stop ends that, before lockctl goes on.
func (s *session) noticed(ctx context.Context, kind natslock.Kind, name string) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-time.After(waitNotice):
		case <-ctx.Done():
			return
		}
		info, err := s.Inspect(ctx, kind, name)
		if ctx.Err() == nil {
			complain("waiting for lock %s: %s", plain(name), waitText(info, err))
		}
	}()
	return func() { cancel(); <-done }
}

// waitText is what this process waits for.
func waitText(info natslock.Info, err error) string {
	if err != nil {
		return err.Error()
	}
	before, place := 0, 0
	host, _ := os.Hostname()
	for _, w := range info.Queue {
		if w.PID == os.Getpid() && w.Host == host {
			place = before + 1
		}
		before += w.Goroutines
	}
	held := holdings(info)
	blocked := "it is free, and the waiters before this one have not taken it"
	if len(held) > 0 {
		blocked = fmt.Sprintf("%s has had it for %s", held[0].name(), brief(time.Since(held[0].Since)))
		if len(held) > 1 {
			blocked = fmt.Sprintf("%s and %d more have it", held[0].name(), len(held)-1)
		}
	}
	if place == 0 {
		return blocked + "; the bucket has not stored a place in the queue for this one, \"lockctl doctor\" finds out why"
	}
	return fmt.Sprintf("%s; place %d of %d in the queue", blocked, place, before)
}
