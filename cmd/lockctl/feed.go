package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/internal/tool"
	"github.com/natslock/locks/kvstore"
	"github.com/natslock/locks/natslock"
)

// bucketWait is the time between two searches for a bucket that was deleted.
const bucketWait = time.Second

// feed follows the locks of a bucket over outages, and while there is no bucket
// any more. Its functions are called one at a time, but event not on the goroutine of
// the others.
type feed struct {
	g       *globals
	s       *session // connected; the client is the feed's
	pattern string

	event        func(natslock.Event)
	disconnected func()
	absent       func(why error) // no bucket any more, or no answer

	mu     sync.Mutex
	client *natslock.Client
}

// run returns nil when ctx has ended, or what cannot be waited out.
func (f *feed) run(ctx context.Context) error {
	status := f.s.nc.StatusChanged(nats.RECONNECTING)
	defer f.s.nc.RemoveStatusListener(status)
	var states sync.WaitGroup
	defer states.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var unnotified error // set before ctx ends
	states.Go(func() {
		for {
			select {
			case _, open := <-status:
				if !open {
					return
				}
				f.disconnected()
			case err := <-f.s.unnotified:
				unnotified = tool.Exitf(tool.ExitPermission, "cannot watch locks %s: %w; watch the names that this user may see, such as \"orders.>\"", show.Plain(f.pattern), err)
				cancel()
				return
			case <-ctx.Done():
				return
			}
		}
	})
	for opened := false; ; {
		err := f.s.open(f.g, natslock.WithOwner(operator()))
		if err == nil {
			f.use(f.s.Client)
			opened = true
			err = f.listen(ctx)
			f.use(nil)
		}
		passing := opened && (errors.Is(err, kvstore.ErrNotFound) || errors.Is(err, kvstore.ErrRemade) || tool.CodeOf(err) == tool.ExitUnavailable)
		switch {
		case ctx.Err() != nil:
			states.Wait()
			return unnotified
		case f.s.nc.IsClosed():
			return fmt.Errorf("the connection was closed: %w", errors.Join(f.s.nc.LastError(), natslock.ErrUnavailable))
		case !passing:
			return err
		}
		f.absent(err)
		select {
		case <-time.After(bucketWait):
		case <-ctx.Done():
			states.Wait()
			return unnotified
		}
	}
}

// listen passes events on until there are none any more.
func (f *feed) listen(ctx context.Context) error {
	for ev, err := range f.s.Watch(ctx, f.pattern) {
		if err != nil {
			return err
		}
		f.event(ev)
	}
	return nil
}

// use makes c the client that others may use, and closes the previous client.
func (f *feed) use(c *natslock.Client) {
	f.mu.Lock()
	before := f.client
	f.client = c
	f.mu.Unlock()
	if before != nil {
		_ = before.Close(context.Background()) // it holds no locks
		f.s.Client = nil
	}
}

var errNoBucket = errors.New("there is no bucket to ask")

// with calls fn with the client there is now, and with some time.
func (f *feed) with(limit time.Duration, fn func(ctx context.Context, c *natslock.Client) error) error {
	f.mu.Lock()
	c := f.client
	f.mu.Unlock()
	if c == nil {
		return errNoBucket
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return fn(ctx, c)
}
