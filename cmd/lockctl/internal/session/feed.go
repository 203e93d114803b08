package session

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/tool"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

// BucketWait is the time between two searches for a bucket that was deleted.
const BucketWait = time.Second

// Feed follows the locks of a bucket over outages, and while there is no bucket
// any more. Its functions are called one at a time, but Event not on the goroutine of
// the others.
type Feed struct {
	Globals *Globals
	Session *Session // connected; the client is the feed's
	Pattern string

	Event        func(admin.Event)
	Disconnected func()
	Absent       func(why error) // no bucket any more, or no answer

	mu     sync.Mutex
	client *natslock.Client
}

// Run returns nil when ctx has ended, or what cannot be waited out.
func (f *Feed) Run(ctx context.Context) error {
	status := f.Session.NC.StatusChanged(nats.RECONNECTING)
	defer f.Session.NC.RemoveStatusListener(status)
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
				f.Disconnected()
			case err := <-f.Session.unnotified:
				unnotified = tool.Exitf(tool.ExitPermission, "cannot watch locks %s: %w; watch the names that this user may see, such as \"orders.>\"", show.Plain(f.Pattern), err)
				cancel()
				return
			case <-ctx.Done():
				return
			}
		}
	})
	for opened := false; ; {
		err := f.Session.Open(f.Globals, natslock.WithOwner(Operator()))
		if err == nil {
			f.use(f.Session.Client)
			opened = true
			err = f.listen(ctx)
			f.use(nil)
		}
		passing := opened && (errors.Is(err, kvstore.ErrNotFound) || errors.Is(err, kvstore.ErrRemade) || tool.CodeOf(err) == tool.ExitUnavailable)
		switch {
		case ctx.Err() != nil:
			states.Wait()
			return unnotified
		case f.Session.NC.IsClosed():
			return fmt.Errorf("the connection was closed: %w", errors.Join(f.Session.NC.LastError(), natslock.ErrUnavailable))
		case !passing:
			return err
		}
		f.Absent(err)
		select {
		case <-time.After(BucketWait):
		case <-ctx.Done():
			states.Wait()
			return unnotified
		}
	}
}

// listen passes events on until there are none any more.
func (f *Feed) listen(ctx context.Context) error {
	for ev, err := range admin.New(f.Session.Client).Watch(ctx, f.Pattern) {
		if err != nil {
			return err
		}
		f.Event(ev)
	}
	return nil
}

// use makes c the client that others may use, and closes the previous client.
func (f *Feed) use(c *natslock.Client) {
	f.mu.Lock()
	before := f.client
	f.client = c
	f.mu.Unlock()
	if before != nil {
		_ = before.Close(context.Background()) // it holds no locks
		f.Session.Client = nil
	}
}

// ErrNoBucket is returned by With between two buckets.
var ErrNoBucket = errors.New("there is no bucket to ask")

// With calls fn with the client there is now, and with some time.
func (f *Feed) With(limit time.Duration, fn func(ctx context.Context, c *natslock.Client) error) error {
	f.mu.Lock()
	c := f.client
	f.mu.Unlock()
	if c == nil {
		return ErrNoBucket
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return fn(ctx, c)
}
